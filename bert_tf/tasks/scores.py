"""Scores, losses and probabilities from the logits of classes. F rows, C classes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Counts(NamedTuple):
    """How many items (entities, rows or words) have a label, were predicted to have it, and both."""

    num_true: int
    num_predicted: int
    num_correct: int

    def scores(self) -> dict[str, float]:
        """Precision, recall and F1, from 0 to 1; 0 where nothing was predicted, or nothing is true."""
        precision, recall = (self.num_correct / max(num, 1) for num in (self.num_predicted, self.num_true))
        f1 = 2 * precision * recall / (precision + recall) if self.num_correct else 0.0
        return {"precision": precision, "recall": recall, "f1": f1}


def total(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip((0, 0, 0), *counts)))


def scores_of(counts: Mapping[str, Counts]) -> dict[str, float]:
    """`Counts.scores` of the total, and of each of the counts with its name and "_" in front, unless the name is ""."""
    by_prefix = {"": total(counts.values()), **{f"{name}_": counted for name, counted in counts.items() if name}}
    return {
        f"{prefix}{score}": value for prefix, counted in by_prefix.items() for score, value in counted.scores().items()
    }


def tsv(rows: Iterable[Iterable[Any]]) -> str:
    """A table with tabs between the columns; fields with tabs, quotation marks or line breaks in them are quoted."""
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows(rows)
    return text.getvalue()


def mean_loss(logits_FxC: np.ndarray, labels_F: np.ndarray) -> float:
    """Mean cross-entropy of classes, or mean squared error of numbers (float labels)."""
    logits_FxC = logits_FxC.astype(np.float64)
    if labels_F.dtype == np.float32:
        return float(np.mean((logits_FxC[:, 0] - labels_F) ** 2))
    label_logits_F = logits_FxC[np.arange(len(labels_F)), labels_F]
    return float(np.mean(np.logaddexp.reduce(logits_FxC, axis=1) - label_logits_F))


def probabilities(logits_FxC: np.ndarray) -> np.ndarray:
    """Softmax over the classes."""
    weights_FxC = np.exp(logits_FxC - logits_FxC.max(axis=1, keepdims=True))
    return weights_FxC / weights_FxC.sum(axis=1, keepdims=True)


def shown_probabilities(logits_FxC: np.ndarray) -> np.ndarray:
    """[C, F]: `probabilities` as texts with six decimals."""
    return np.char.mod("%.6f", probabilities(logits_FxC)).T
