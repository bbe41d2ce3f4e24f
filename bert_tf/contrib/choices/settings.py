"""The settings of multiple choice, with the names of run_swag.py's flags."""

from __future__ import annotations

import dataclasses

from bert_tf.settings.declaration import setting
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.settings.training import FinetuningConfig


@dataclasses.dataclass(frozen=True)
class ChoiceOptions(FinetuningOptions):
    """What to do, and with which files."""

    mode: str = setting(
        "train_and_predict",
        "What to do; predict: choose, and score if the right choices are known; eval, train_and_eval: the same, but "
        "they must be known; export_only: write a SavedModel; interactive: choose among what is typed.",
        choices=("train_and_predict", "train_and_eval", "train", "predict", "eval", "export_only", "interactive"),
    )
    train_file: str | None = setting(None, "File to train on: SWAG's CSV, or JSON lines.")
    predict_file: str | None = setting(None, "File of questions to answer; with the right choices it is scored.")
    fields: str | None = setting(
        None,
        "The files' fields with the context, the text before each choice, the choices and the right one, where their "
        "names are not those of SWAG or other known data: context=FIELD,start=FIELD,choices=FIELD,label=FIELD; or, for "
        "choices in fields of their own, the label of each: 0=FIELD,1=FIELD.",
    )
    max_bad_records: int = setting(0, "Questions with a fault that are left out, counted and named.", at_least=0)


SETTINGS = (FinetuningConfig, ChoiceOptions)
