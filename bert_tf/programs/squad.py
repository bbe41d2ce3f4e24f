"""Answers questions about texts (SQuAD 1.1 and 2.0): fine-tunes, predicts, scores. See docs/fine_tuning.md."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import exit_on_user_error, require_modules

require_modules("absl", "numpy", "tensorflow", "tqdm")
from absl import app, flags  # noqa: E402

from bert_tf.base.command_line import define_finetuning_flags, parse_flags  # noqa: E402
from bert_tf.programs.finetuning import run_program  # noqa: E402

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


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    run_program("squad", FLAGS.flag_values_dict())


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
