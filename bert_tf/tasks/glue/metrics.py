"""Metrics and result files of text tasks. Metrics compare predictions with truths, both classes or numbers [N]."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Callable

import numpy as np

from bert_tf.tasks.glue.tasks import TextTask
from bert_tf.tasks.scores import Counts, mean_loss, scores_of, shown_probabilities, tsv


def accuracy(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    return float(np.mean(predicted_N == true_N))


def f1(predicted_N: np.ndarray, true_N: np.ndarray, positive: int = 1) -> float:
    """Harmonic mean of precision and recall of the class `positive`; 0 if it was neither predicted nor true."""
    num_hits = int(np.sum((predicted_N == positive) & (true_N == positive)))
    num_either = int(np.sum(predicted_N == positive) + np.sum(true_N == positive))
    return 2.0 * num_hits / num_either if num_either else 0.0


def macro_f1(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Mean F1 over all classes that were predicted or are true."""
    return float(np.mean([f1(predicted_N, true_N, label) for label in np.union1d(predicted_N, true_N)]))


def scores_of_classes(predicted_N: np.ndarray, true_N: np.ndarray, classes: Mapping[int, str]) -> dict[str, float]:
    """ "precision", "recall" and "f1", micro-averaged over `classes`, and those of each class with "NAME_" in front.

    As scikit-learn's f1_score(labels=classes, average="micro"): predicting one of `classes` where another class is true
    is a false positive, the reverse a false negative, and right predictions of other classes do not count.

    Args:
      classes: the names of the scored classes, by number.
    """
    counts = {}
    for number, name in classes.items():
        is_true_N, is_predicted_N = true_N == number, predicted_N == number
        counts[name] = Counts(
            *(int(mask_N.sum()) for mask_N in (is_true_N, is_predicted_N, is_true_N & is_predicted_N))
        )
    return scores_of(counts)


def matthews_correlation(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Matthews correlation coefficient; for more than two classes Gorodkin's R_K (Comput. Biol. Chem. 28, 2004).

    0 if all predictions, or all truths, are of one class.
    """
    # Python's integers are exact and do not overflow.
    num_labels = int(max(predicted_N.max(), true_N.max())) + 1
    predicted, true = (np.bincount(values_N, minlength=num_labels).tolist() for values_N in (predicted_N, true_N))
    num, num_right = len(true_N), int(np.sum(predicted_N == true_N))
    covariance = num_right * num - sum(p * t for p, t in zip(predicted, true))
    spread = (num**2 - sum(p * p for p in predicted)) * (num**2 - sum(t * t for t in true))
    return covariance / math.sqrt(spread) if spread else 0.0


def pearson(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Pearson correlation; NaN if either side is constant."""
    x, y = (values - values.mean() for values in (predicted_N.astype(np.float64), true_N.astype(np.float64)))
    x_norm, y_norm = np.linalg.norm(x), np.linalg.norm(y)
    if not x_norm or not y_norm:
        return math.nan
    return float(np.clip(np.dot(x / x_norm, y / y_norm), -1.0, 1.0))


def spearman(predicted_N: np.ndarray, true_N: np.ndarray) -> float:
    """Spearman correlation: the Pearson correlation of the `ranks`."""
    return pearson(ranks(predicted_N), ranks(true_N))


def ranks(values_N: np.ndarray) -> np.ndarray:
    """float64 [N]: ranks from 1; equal values get the mean of their ranks."""
    _, unique_N, counts = np.unique(values_N, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[unique_N]


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    function.__name__: function for function in (accuracy, f1, macro_f1, matthews_correlation, pearson, spearman)
}


def score(task: TextTask, logits_FxC: np.ndarray, truths_F: np.ndarray) -> dict[str, float]:
    """The task's metrics, the mean loss as "eval_loss" and, with `no_score_for`, precision, recall and F1."""
    if task.is_regression:
        compared = (logits_FxC[:, 0], truths_F)
    else:  # classes are numbered by their sorted labels: F1 must be that of the label 1, whatever the class order
        numbers_C = np.argsort(np.argsort(task.labels))
        compared = (numbers_C[logits_FxC.argmax(axis=1)], numbers_C[truths_F])
    scores = {name: METRICS[name](*compared) for name in task.metrics}
    if task.no_score_for:
        classes = {number: label for number, label in enumerate(task.labels) if label not in task.no_score_for}
        scores.update(scores_of_classes(logits_FxC.argmax(axis=1), truths_F, classes))
    return {**scores, "eval_loss": mean_loss(logits_FxC, truths_F)}


def describe_predictions(task: TextTask, indices: list[str], logits_FxC: np.ndarray) -> str:
    """The text of ``test_results.tsv``; for a custom task with labels also a column of probabilities for each class."""
    header, columns = ["index", "prediction"], [indices]
    if task.is_regression:
        numbers_F = np.clip(logits_FxC[:, 0], *(task.range or (-np.inf, np.inf)))
        columns.append([f"{number:.3f}" if task.range else f"{number:.6g}" for number in numbers_F])
    else:
        columns.append([task.labels[number] for number in logits_FxC.argmax(axis=1)])
        if task.is_custom:
            header += task.labels
            columns += shown_probabilities(logits_FxC).tolist()
    return tsv([header, *zip(*columns)])
