"""The settings of question answering, with the names of run_squad.py's flags."""

from __future__ import annotations

import dataclasses

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import check, setting, with_default
from bert_tf.settings.programs import FinetuningOptions
from bert_tf.settings.training import FinetuningConfig


@dataclasses.dataclass(frozen=True)
class FeatureSettings:
    """Lengths in tokens. Raises: UserError for a value out of range, or lengths that leave no room for the text."""

    max_seq_length: int = setting(384, "Tokens of a row.", at_least=1)
    doc_stride: int = setting(128, "Tokens between the starts of two windows, less than a window has.", at_least=1)
    max_query_length: int = setting(64, "Tokens of a question; more are cut off.", at_least=1)

    def __post_init__(self) -> None:
        check(self)
        if self.max_seq_length <= self.max_query_length + 3:
            raise UserError(
                f"max_seq_length={self.max_seq_length} leaves no room for the context: it must be more than "
                f"max_query_length={self.max_query_length} + 3 ([CLS] and two [SEP])"
            )
        if self.doc_stride >= self.max_seq_length - 3:
            raise UserError(
                f"doc_stride={self.doc_stride} is as long as a window of max_seq_length={self.max_seq_length} with its "
                "[CLS] and two [SEP], which cuts answers apart, as windows never overlap: it must be smaller"
            )


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
    """How spans become answers. Raises: UserError for a value out of range."""

    n_best_size: int = setting(20, "Length of the list of best answers.", at_least=1)
    max_answer_length: int = setting(30, "Tokens of an answer at most.", at_least=1)
    version_2_with_negative: bool = setting(False, "Some questions have no answer (SQuAD 2.0).")
    null_score_diff_threshold: float = setting(0.0, "Answer nothing where the null odds are above.")

    def __post_init__(self) -> None:
        check(self)
        if self.version_2_with_negative and self.n_best_size < 2:
            raise UserError(
                f"n_best_size={self.n_best_size} with version_2_with_negative: must be at least 2, no answer and the "
                "best one, from which the null odds follow; the default is 20"
            )


@dataclasses.dataclass(frozen=True)
class SquadOptions(FeatureSettings, DecodeSettings, FinetuningOptions):
    """What to do, and with which files."""

    learning_rate: float = with_default(FinetuningConfig, "learning_rate", 5e-6)
    mode: str = setting(
        "train_and_predict",
        "What to do; eval: predict and score; export_only: write a SavedModel; sm_predict: predict with it alone; "
        "interactive: answer questions at a prompt.",
        choices=("train_and_predict", "train", "predict", "eval", "export_only", "sm_predict", "interactive"),
    )
    train_file: str | None = setting(None, "SQuAD file to train on, e.g. train-v1.1.json.")
    predict_file: str | None = setting(None, "SQuAD file to answer, e.g. dev-v1.1.json.")
    context_file: str | None = setting(None, "With --mode=interactive: the text; default: it is asked for.")
    eval: bool | None = setting(
        None, "Score the predictions by the official rules; default: if the file holds answers."
    )


SETTINGS = (FinetuningConfig, SquadOptions)
