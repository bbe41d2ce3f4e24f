"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

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

define_finetuning_flags(learning_rate=5e-6, max_seq_length=384)
flags.DEFINE_enum(
    "mode",
    "train_and_predict",
    ["train_and_predict", "train", "predict", "eval", "export_only", "sm_predict", "interactive"],
    "What to do; eval: predict and score; export_only: write a SavedModel; sm_predict: predict with it alone; "
    "interactive: answer questions at a prompt.",
)
flags.DEFINE_string("train_file", None, "SQuAD file to train on, e.g. train-v1.1.json.")
flags.DEFINE_string("predict_file", None, "SQuAD file to answer, e.g. dev-v1.1.json.")
flags.DEFINE_string("context_file", None, "With --mode=interactive: the text; default: it is asked for.")
flags.DEFINE_bool("eval", None, "Score the predictions by the official rules; default: if the file holds answers.")
flags.DEFINE_integer(
    "doc_stride",
    128,
    "Tokens between the starts of two windows; where it exceeds a window's length, the windows adjoin.",
)
flags.DEFINE_integer("max_query_length", 64, "Tokens of a question; more are cut off.")
flags.DEFINE_integer("n_best_size", 20, "Length of the list of best answers.")
flags.DEFINE_integer("max_answer_length", 30, "Tokens of an answer at most.")
flags.DEFINE_bool("version_2_with_negative", False, "Some questions have no answer (SQuAD 2.0).")
flags.DEFINE_float("null_score_diff_threshold", 0.0, "Answer nothing where the null odds are above.")

# Which files a mode reads; others are ignored.
_NEEDS = {
    "train_and_predict": ("train_file", "predict_file"),
    "train": ("train_file",),
    "predict": ("predict_file",),
    "eval": ("predict_file",),
    "sm_predict": ("predict_file",),
}


def _files_of_mode() -> dict[str, str | None]:
    needed = _NEEDS.get(FLAGS.mode, ())
    for name in (*needed, "model_dir"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required with --mode={FLAGS.mode}")
    if FLAGS.mode == "eval" and FLAGS.eval is False:
        raise UserError("--mode=eval scores, --noeval does not; choose one of them, or --mode=predict")
    return {name: FLAGS[name].value if name in needed else None for name in ("train_file", "predict_file")}


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    leave_on_stop_signals()
    choose_device(FLAGS.device)
    if FLAGS.plan:
        from bert_tf.tasks.job import describe_plan

        print(describe_plan(FLAGS.flag_values_dict()))
        return
    files = _files_of_mode()
    if FLAGS.deterministic:
        make_deterministic(Path(FLAGS.model_dir))
    from bert_tf.ranks.connect import connect
    from bert_tf.tasks.job import common_settings
    from bert_tf.tasks.squad.decode import DecodeSettings
    from bert_tf.tasks.squad.features import FeatureSettings
    from bert_tf.tasks.squad.run import SquadJob, run_squad
    from bert_tf.tasks.squad.serving import converse, export_squad, predict_with_export

    workers = connect(FLAGS.use_horovod)
    job = SquadJob(
        **common_settings(FLAGS.flag_values_dict(), workers, is_training=files["train_file"] is not None),
        train_file=files["train_file"],
        predict_file=files["predict_file"],
        features=FeatureSettings(FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length),
        decoding=DecodeSettings(
            FLAGS.n_best_size, FLAGS.max_answer_length, FLAGS.version_2_with_negative, FLAGS.null_score_diff_threshold
        ),
        wants_scores=True if FLAGS.mode == "eval" else FLAGS.eval,
    )
    export_path = Path(FLAGS.model_export_path or job.model_dir / "export")
    if FLAGS.mode == "export_only":
        export_squad(job, workers, export_path, FLAGS.export_batch_size)
    elif FLAGS.mode == "sm_predict":
        predict_with_export(job, workers, export_path)
    elif FLAGS.mode == "interactive":
        converse(job, workers, FLAGS.context_file)
    elif not run_squad(job, workers):
        sys.exit(STOPPED_EXIT_CODE)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
