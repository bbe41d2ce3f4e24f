"""Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bert_tf.base.determinism import make_deterministic
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.signals import STOPPED_EXIT_CODE, leave_on_stop_signals
from bert_tf.base.tensorflow import choose_device
from bert_tf.programs.flags import define_flags, require_flags, run_program
from bert_tf.tasks.glue.settings import SETTINGS

FLAGS = flags.FLAGS

define_flags(*SETTINGS)

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
    """Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""
    leave_on_stop_signals()
    choose_device(FLAGS.device)
    if FLAGS.plan:
        from bert_tf.tasks.job import describe_plan

        print(describe_plan(FLAGS.flag_values_dict()))
        return
    from bert_tf.tasks.glue.tasks import find_files

    require_flags(FLAGS.flag_values_dict(), "model_dir", mode=FLAGS.mode)
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
    run_program(main, *SETTINGS)
