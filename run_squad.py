"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See README.md."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError, exit_on_user_error, require_modules

require_modules("absl", "numpy", "tensorflow", "tqdm")
from absl import app, flags  # noqa: E402

from bert_tf.base.command_line import choose_device, define_training_flags, parse_flags  # noqa: E402
from bert_tf.base.determinism import make_deterministic  # noqa: E402
from bert_tf.base.signals import STOPPED_EXIT_CODE, leave_on_stop_signals  # noqa: E402

FLAGS = flags.FLAGS

define_training_flags(train_batch_size="8", learning_rate=5e-6, save_checkpoint_steps=1000)
flags.DEFINE_enum(
    "mode",
    "train_and_predict",
    ["train_and_predict", "train", "predict", "eval"],
    "What to do; eval: predict and score.",
)
flags.DEFINE_string("bert_config_file", None, "The model's bert_config.json; default: the one beside the checkpoint.")
flags.DEFINE_string("vocab_file", None, "The model's vocab.txt; default: the one beside the checkpoint.")
flags.DEFINE_string("train_file", None, "SQuAD file to train on, e.g. train-v1.1.json.")
flags.DEFINE_string("predict_file", None, "SQuAD file to answer, e.g. dev-v1.1.json.")
flags.DEFINE_bool("eval", None, "Score the predictions by the official rules; default: if the file holds answers.")
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Run folder, checkpoint folder or bert_model.ckpt to start from; none: "
    "random weights. To predict: a fine-tuned one, default the newest in --model_dir.",
)
flags.DEFINE_integer("predict_batch_size", 8, "Prediction batch of one rank.")
flags.DEFINE_float("num_train_epochs", 3.0, "Passes over the training file; may be fractional.")
flags.DEFINE_float("warmup_proportion", 0.1, "Share of the updates in which the rate rises.")
flags.DEFINE_integer("max_seq_length", 384, "Tokens of a row: question and a window of the context.")
flags.DEFINE_integer(
    "doc_stride",
    128,
    "Tokens between the starts of two windows; where it exceeds a window's length, the windows adjoin.",
)
flags.DEFINE_integer("max_query_length", 64, "Tokens of a question; more are cut off.")
flags.DEFINE_integer("n_best_size", 20, "Length of the list of best answers.")
flags.DEFINE_integer("max_answer_length", 30, "Tokens of an answer at most.")
flags.DEFINE_bool("do_lower_case", True, "Lower-case the text; true for uncased models.")
flags.DEFINE_bool("version_2_with_negative", False, "Some questions have no answer (SQuAD 2.0).")
flags.DEFINE_float("null_score_diff_threshold", 0.0, "Answer nothing where the null odds are above.")

# Which files a mode reads; others are ignored.
_NEEDS = {
    "train_and_predict": ("train_file", "predict_file"),
    "train": ("train_file",),
    "predict": ("predict_file",),
    "eval": ("predict_file",),
}


def _check_files() -> None:
    for name in (*_NEEDS[FLAGS.mode], "model_dir"):
        if not FLAGS[name].value:
            raise UserError(f"--{name} is required with --mode={FLAGS.mode}")
    if FLAGS.mode == "eval" and FLAGS.eval is False:
        raise UserError("--mode=eval scores, --noeval does not; choose one of them, or --mode=predict")


def _file_of_mode(name: str):
    return FLAGS[name].value if name in _NEEDS[FLAGS.mode] else None


def _workload(num_ranks: int):
    from bert_tf.interchange.initialise import choose_config, find_weights
    from bert_tf.memory.plan import Workload
    from bert_tf.model.blocks import choose_scope

    bert_config = choose_config(
        FLAGS.bert_config_file, find_weights(FLAGS.init_checkpoint) if FLAGS.init_checkpoint else None
    )
    scope = choose_scope(FLAGS.enable_xla, FLAGS.xla_scope, FLAGS.recompute)
    return Workload.from_flags(FLAGS.flag_values_dict(), bert_config, scope, num_ranks)


def _split(workers):
    from bert_tf.config import BatchSplit
    from bert_tf.memory.plan import AUTO, choose_split
    from bert_tf.training.loop import agree_on_split

    if not _file_of_mode("train_file"):
        return BatchSplit(1)
    num_steps = FLAGS.num_accumulation_steps if FLAGS["num_accumulation_steps"].present else None
    return agree_on_split(
        choose_split(
            FLAGS.train_batch_size,
            num_steps,
            FLAGS.global_batch_size,
            lambda: _workload(workers.size),
            FLAGS.gpu_memory_gib,
        ),
        FLAGS.train_batch_size == AUTO,
        workers,
    )


def _plan() -> None:
    from bert_tf.memory.plan import find_device, plan

    print("\n".join(plan(_workload(1), find_device(FLAGS.gpu_memory_gib, 1))))


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    leave_on_stop_signals()
    choose_device(FLAGS.device)
    if len(argv) > 1:
        raise UserError(f"unexpected argument {argv[1]!r}; every setting is a flag, see --help")
    if FLAGS.plan:
        _plan()
        return
    _check_files()
    if FLAGS.deterministic:
        make_deterministic(Path(FLAGS.model_dir))
    from bert_tf.config import FinetuningConfig
    from bert_tf.memory.plan import AUTO
    from bert_tf.model.blocks import choose_scope
    from bert_tf.ranks.connect import connect
    from bert_tf.tasks.squad.decode import DecodeSettings
    from bert_tf.tasks.squad.features import FeatureSettings
    from bert_tf.tasks.squad.run import SquadJob, run_squad

    workers = connect(FLAGS.use_horovod)
    split = _split(workers)
    job = SquadJob(
        model_dir=Path(FLAGS.model_dir),
        train_file=_file_of_mode("train_file"),
        predict_file=_file_of_mode("predict_file"),
        init_checkpoint=FLAGS.init_checkpoint,
        bert_config_file=FLAGS.bert_config_file,
        vocab_file=FLAGS.vocab_file,
        training=FinetuningConfig(
            learning_rate=FLAGS.learning_rate,
            num_train_epochs=FLAGS.num_train_epochs,
            warmup_proportion=FLAGS.warmup_proportion,
            train_batch_size=split.micro_batch_size,
            num_accumulation_steps=split.num_accumulation_steps,
            may_split_more=FLAGS.train_batch_size == AUTO,
            num_ranks=workers.size,
            precision=FLAGS.precision,
            xla_scope=choose_scope(FLAGS.enable_xla, FLAGS.xla_scope, FLAGS.recompute),
            recompute=FLAGS.recompute,
            seed=FLAGS.seed,
            save_checkpoint_steps=FLAGS.save_checkpoint_steps,
            display_loss_steps=FLAGS.display_loss_steps,
            keep_checkpoints=FLAGS.keep_checkpoints,
        ),
        features=FeatureSettings(FLAGS.max_seq_length, FLAGS.doc_stride, FLAGS.max_query_length),
        decoding=DecodeSettings(
            FLAGS.n_best_size,
            FLAGS.max_answer_length,
            FLAGS.version_2_with_negative,
            FLAGS.null_score_diff_threshold,
            FLAGS.do_lower_case,
        ),
        predict_batch_size=FLAGS.predict_batch_size,
        wants_scores=True if FLAGS.mode == "eval" else FLAGS.eval if FLAGS.mode != "train" else None,
        dllog_path=FLAGS.dllog_path,
        continue_with_changes=FLAGS.continue_with_changes,
    )
    if not run_squad(job, workers):
        sys.exit(STOPPED_EXIT_CODE)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
