"""Scores and predictions of sentences, from the model's logits. F rows, C classes."""

from __future__ import annotations

import csv
import io

import numpy as np

from bert_tf.tasks.glue.metrics import METRICS, scores_of_classes
from bert_tf.tasks.glue.tasks import TextTask
from bert_tf.tasks.scores import mean_loss, probabilities


def score(task: TextTask, logits_FxC: np.ndarray, truths_F: np.ndarray) -> dict[str, float]:
    """The task's metrics, and the mean loss as "eval_loss"; precision, recall and F1 where some labels have no part."""
    if task.is_regression:
        compared = (logits_FxC[:, 0], truths_F)
    else:  # F1 is that of the label 1, whatever the order of the classes
        numbers_C = np.argsort(np.argsort(task.labels))
        compared = (numbers_C[logits_FxC.argmax(axis=1)], numbers_C[truths_F])
    scores = {name: METRICS[name](*compared) for name in task.metrics}
    if task.no_score_for:
        classes = {number: label for number, label in enumerate(task.labels) if label not in task.no_score_for}
        scores.update(scores_of_classes(logits_FxC.argmax(axis=1), truths_F, classes))
    return {**scores, "eval_loss": mean_loss(logits_FxC, truths_F)}


def describe_predictions(task: TextTask, indices: list[str], logits_FxC: np.ndarray) -> str:
    """The text of ``test_results.tsv``; for a custom task with a column of probabilities for each class."""
    header = ["index", "prediction"]
    lines: list[list[str]]
    if task.is_regression:
        numbers_F = np.clip(logits_FxC[:, 0], *(task.range or (-np.inf, np.inf)))
        lines = [
            [index, f"{number:.3f}" if task.range else f"{number:.6g}"] for index, number in zip(indices, numbers_F)
        ]
    else:
        lines = [[index, task.labels[number]] for index, number in zip(indices, logits_FxC.argmax(axis=1))]
    if task.is_custom and not task.is_regression:
        header += task.labels
        lines = [
            [*line, *(f"{value:.6f}" for value in values)] for line, values in zip(lines, probabilities(logits_FxC))
        ]
    text = io.StringIO()
    csv.writer(text, delimiter="\t", lineterminator="\n").writerows([header, *lines])
    return text.getvalue()
