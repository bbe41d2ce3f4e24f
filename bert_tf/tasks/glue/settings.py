"""The settings of classifying sentences, with the names of run_classifier.py's flags."""

from __future__ import annotations

import dataclasses

from bert_tf.settings.declaration import setting, with_default
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.settings.training import FinetuningConfig

BALANCED = "balanced"  # --class_weights


@dataclasses.dataclass(frozen=True)
class ClassifierOptions(FinetuningOptions):
    """The task, what to do, and with which files."""

    task_name: str | None = setting(
        None,
        "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, ChemProt (in any case), or custom: your own files.",
        is_required=True,
    )
    learning_rate: float = with_default(FinetuningConfig, "learning_rate", 3e-6)
    mode: str = setting(
        "train_and_eval",
        "What to do; predict: the test file; export_only: write a SavedModel.",
        choices=("train_and_eval", "train", "eval", "predict", "export_only"),
    )
    data_dir: str | None = setting(
        None, "Folder with the task's files under their published names: train.tsv, dev.tsv, test.tsv."
    )
    train_file: str | None = setting(None, "File to train on, instead of the folder's.")
    eval_file: str | None = setting(None, "File to score, instead of the folder's.")
    predict_file: str | None = setting(None, "File to predict, instead of the folder's.")
    text_columns: str | None = setting(
        None, "With --task_name=custom: the column with the text, or two with a comma between them."
    )
    label_column: str | None = setting(None, "With --task_name=custom: the column with the label.")
    columns: str | None = setting(
        None,
        "With --task_name=custom, for .csv and .tsv files without a header: the names of all columns, in their order, "
        "with commas between.",
    )
    regression: bool = setting(False, "With --task_name=custom: the labels are numbers, and a number is predicted.")
    no_score_for: str | None = setting(
        None,
        "With --task_name=custom: labels that mean that there is nothing, with commas between; precision, recall and "
        "F1 are over the others.",
    )
    class_weights: str | None = setting(
        None,
        "How much an example counts in training by its label: balanced (the rarer, the more), or a JSON file with an "
        "object of each label's weight.",
    )
    max_bad_records: int | None = setting(
        None,
        "Records with a fault that are left out of training and evaluation and named; default: 0, for QQP 100.",
        at_least=0,
    )
    quoting: str | None = setting(
        None,
        "Quotation marks of .tsv and .csv: none: text; csv: they enclose fields. Default: none for GLUE's files, csv "
        "for .csv, and for ChemProt's and your own .tsv what the content shows.",
        choices=("none", "csv"),
        variable="QUOTING",
    )


SETTINGS = (FinetuningConfig, ClassifierOptions)
