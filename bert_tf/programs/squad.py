"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

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
from bert_tf.tasks.squad.settings import SETTINGS, DecodeSettings, FeatureSettings

FLAGS = flags.FLAGS

define_flags(*SETTINGS)

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
    require_flags(FLAGS.flag_values_dict(), *needed, "model_dir", mode=FLAGS.mode)
    if FLAGS.mode == "eval" and FLAGS.eval is False:
        raise UserError("--mode=eval scores, --noeval does not; choose one of them, or --mode=predict")
    return {name: FLAGS[name].value if name in needed else None for name in ("train_file", "predict_file")}


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    """Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""
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
    run_program(main, *SETTINGS)
