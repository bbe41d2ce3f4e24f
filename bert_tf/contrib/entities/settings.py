"""The settings of labelling tokens, with the names of run_ner.py's flags."""

from __future__ import annotations

import dataclasses

from bert_tf.contrib.entities.labels import KINDS
from bert_tf.settings.declaration import setting
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.settings.training import FinetuningConfig


@dataclasses.dataclass(frozen=True)
class EntityOptions(FinetuningOptions):
    """What to do, and with which files."""

    task_name: str = setting(
        "ner",
        "What labels stand for; ner: for entities, by the letters of a scheme; pos: for single tokens, as parts of "
        "speech do.",
        choices=tuple(KINDS),
    )
    mode: str = setting(
        "train_and_predict",
        "What to do; predict: label the file, and score it if it has labels; eval: the same, but labels must be there; "
        "export_only: write a SavedModel; interactive: find entities in sentences at a prompt.",
        choices=("train_and_predict", "train", "predict", "eval", "export_only", "interactive"),
    )
    train_file: str | None = setting(
        None, "Files to train on, with commas between: a token and its label in each line, CoNLL-U, or JSON lines."
    )
    predict_file: str | None = setting(None, "File to label; with its right labels it is scored.")
    label_names: str | None = setting(
        None,
        "The labels, with commas between, in the order of the model's classes, and of the numbers that stand for them "
        "in JSON lines; default: those of the training files, sorted.",
    )
    max_bad_records: int = setting(0, "Sentences with a fault that are left out, counted and named.", at_least=0)


SETTINGS = (FinetuningConfig, EntityOptions)
