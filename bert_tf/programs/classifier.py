"""Classifies sentences and pairs of sentences: the nine GLUE tasks and your own files. See docs/fine_tuning.md."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import exit_on_user_error, require_modules

require_modules("absl", "numpy", "tensorflow", "tqdm")
from absl import app, flags  # noqa: E402

from bert_tf.base.command_line import define_finetuning_flags, parse_flags  # noqa: E402
from bert_tf.programs.finetuning import run_program  # noqa: E402

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
    "Records with a wrong number of columns that are left out of training and evaluation; default: 0, for QQP 100.",
)
flags.DEFINE_enum(
    "quoting",
    None,
    ["none", "csv"],
    "Quotation marks of .tsv and .csv: none: text; csv: they enclose fields. Default: csv for your .csv, else none.",
)


@exit_on_user_error
def main(_: Sequence[str]) -> None:
    run_program("glue", FLAGS.flag_values_dict())


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
