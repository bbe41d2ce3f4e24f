"""Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError, exit_on_user_error, require_modules

require_modules("absl", "numpy", "tensorflow", "tqdm")
from absl import app, flags  # noqa: E402

from bert_tf.base.command_line import choose_device, define_finetuning_flags, parse_flags  # noqa: E402
from bert_tf.base.determinism import make_deterministic  # noqa: E402
from bert_tf.base.signals import STOPPED_EXIT_CODE, leave_on_stop_signals  # noqa: E402

FLAGS = flags.FLAGS

define_finetuning_flags(learning_rate=3e-6, max_seq_length=128)
flags.DEFINE_string(
    "task_name", None, "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI (in any case), or custom: your own files."
)
flags.DEFINE_enum(
    "mode",
    "train_and_eval",
    ["train_and_eval", "train", "eval", "predict", "export_only"],
    "What to do; predict: the test file; export_only: write a SavedModel.",
)
flags.DEFINE_string(
    "data_dir", None, "Folder with the task's files under their published names: train.tsv, dev.tsv, test.tsv."
)
flags.DEFINE_string("train_file", None, "File to train on, instead of the folder's.")
flags.DEFINE_string("eval_file", None, "File to score, instead of the folder's.")
flags.DEFINE_string("predict_file", None, "File to predict, instead of the folder's.")
flags.DEFINE_string(
    "text_columns", None, "With --task_name=custom: the column with the text, or two with a comma between them."
)
flags.DEFINE_string("label_column", None, "With --task_name=custom: the column with the label.")
flags.DEFINE_bool("regression", False, "With --task_name=custom: the labels are numbers, and a number is predicted.")
flags.DEFINE_integer(
    "max_bad_records",
    None,
    "Records with a wrong number of columns or wrong quoting that are left out of training and evaluation; default: 0, "
    "for QQP 100.",
)
flags.DEFINE_enum(
    "quoting",
    None,
    ["none", "csv"],
    "Quotation marks of .tsv and .csv: none: text; csv: they enclose fields. Default: none for GLUE's files, csv for "
    ".csv, and for your own .tsv what the content shows.",
)

_READS = {"train_and_eval": ("train", "eval"), "train": ("train",), "eval": ("eval",), "predict": ("predict",)}


def _task():
    from bert_tf.tasks.glue.tasks import CUSTOM, custom_task, find_task

    if not FLAGS.task_name:
        raise UserError("--task_name is required: the name of a GLUE task, or custom for your own files")
    if FLAGS.task_name.lower() != CUSTOM:
        task = find_task(FLAGS.task_name)
        for name in ("text_columns", "label_column", "regression"):
            if FLAGS[name].value:
                raise UserError(f"--{name} belongs to --task_name={CUSTOM}; the columns of {task.name} are known")
        return task
    if FLAGS.mode in ("train_and_eval", "train", "eval") and not FLAGS.label_column:
        raise UserError(f"--label_column is required with --mode={FLAGS.mode}")
    return custom_task(FLAGS.text_columns, FLAGS.label_column, FLAGS.regression)


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    leave_on_stop_signals()
    choose_device(FLAGS.device)
    if FLAGS.plan:
        from bert_tf.tasks.job import describe_plan

        print(describe_plan(FLAGS.flag_values_dict()))
        return
    from bert_tf.tasks.glue.tasks import find_files

    if not FLAGS.model_dir:
        raise UserError(f"--model_dir is required with --mode={FLAGS.mode}")
    task = _task()
    files = {
        use: find_files(task, use, FLAGS.data_dir, FLAGS[f"{use}_file"].value) for use in _READS.get(FLAGS.mode, ())
    }
    if FLAGS.deterministic:
        make_deterministic(Path(FLAGS.model_dir))
    from bert_tf.ranks.connect import connect
    from bert_tf.tasks.glue.run import GlueJob, export_glue, run_glue
    from bert_tf.tasks.job import common_settings

    workers = connect(FLAGS.use_horovod)
    job = GlueJob(
        **common_settings(FLAGS.flag_values_dict(), workers, is_training="train" in files),
        task=task,
        files=files,
        max_seq_length=FLAGS.max_seq_length,
        max_bad_records=FLAGS.max_bad_records,
        quoting=FLAGS.quoting,
    )
    if FLAGS.mode == "export_only":
        folder = Path(FLAGS.model_export_path or job.model_dir / "export")
        export_glue(job, workers, folder, FLAGS.export_batch_size)
    elif not run_glue(job, workers):
        sys.exit(STOPPED_EXIT_CODE)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
