"""Matches a task's labels to the classes of the weights that it starts from or predicts with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError, names_in_words
from bert_tf.base.files import read_json_object
from bert_tf.interchange.heads import TEXTS
from bert_tf.interchange.hugging_face import CONFIG
from bert_tf.interchange.labels import (
    CLASSES,
    REGRESSION,
    TASK_FILE,
    TrainedTask,
    labels_in_trained_order,
    no_labels,
    read_task,
)
from bert_tf.interchange.weights import Weights
from bert_tf.tasks.glue.settings import BALANCED
from bert_tf.tasks.glue.tasks import TextTask, known_name


def learns_labels(task: TextTask) -> bool:
    """Whether the task takes its labels from the training file."""
    return task.is_custom and not task.is_regression


def adapt_for_training(task: TextTask, weights: Weights | None) -> tuple[TextTask, bool, str]:
    """The task with its labels in the order of the weights' classes, whether training starts with the weights'
    classifier, and a line about a new classifier or an order that had to be assumed, or ""."""
    if weights is None or TEXTS.variable not in weights.shapes:
        return task, True, ""
    trained = read_task(weights)
    adapted = _reorder_labels(task, trained)
    if adapted is None or weights.shapes[TEXTS.variable][:1] != [task.num_classes]:
        other = trained or "another number of classes"
        return task, False, f"{weights.source} was fine-tuned for {other}: a new classifier is made"
    return adapted, True, _note_assumption(adapted, weights, trained)


def adapt_for_prediction(task: TextTask, weights: Weights) -> tuple[TextTask, str]:
    """The task with its labels in the order of the weights' classes, and lines about what is doubtful, or "".

    Raises:
      UserError: the weights have other labels or another number of texts than the task, or their labels are unknown.
    """
    trained = read_task(weights)
    if trained is None and learns_labels(task):
        raise no_labels(weights)
    adapted = _reorder_labels(task, trained)
    if trained and adapted is None:
        labels = ", ".join(task.labels) or ("numbers" if task.is_regression else "labels")
        raise UserError(
            f"{weights.folder} was fine-tuned for {trained}, not for {task.name} ({labels}); {_remedy(task, trained)}"
        )
    columns, trained_columns = task.text_columns, tuple(trained.text_columns if trained else ())
    is_other_order = columns != trained_columns and sorted(columns) == sorted(trained_columns)
    if trained and trained_columns and (len(columns) != len(trained_columns) or is_other_order):
        remedy = "name as many with --text_columns, and the same in that order"
        raise UserError(
            f"{weights.folder} was fine-tuned on the text columns {', '.join(trained_columns)}, not on "
            f"{', '.join(columns)}; {remedy if task.is_custom else _remedy(task, trained)}"
        )
    assert adapted
    notes = (_warn_of_other_task(task, trained), _note_assumption(adapted, weights, trained))
    return adapted, "\n".join(filter(None, notes))


def _warn_of_other_task(task: TextTask, trained: TrainedTask | None) -> str:
    """A warning if the weights were trained on another known task, although its labels are the same, or ""."""
    other = trained and known_name(trained.name)
    if trained is None or other in (None, task.name) or task.is_custom:
        return ""
    return (
        f"warning: {trained.file} says that these weights are for {other}, which has the same labels "
        f"({names_in_words(task.labels)}), not for {task.name}"
    )


def _remedy(task: TextTask, trained: TrainedTask) -> str:
    """What to do if the weights were trained for something else than the task."""
    if trained.problem not in (REGRESSION, CLASSES):
        return "no task here is of that kind; name a checkpoint that gives each text one label, or a number"
    remedy = "name a checkpoint of that task"
    if task.is_custom and trained.problem == (CLASSES if task.is_regression else REGRESSION):
        return f"{remedy}, or {'omit' if task.is_regression else 'pass'} --regression"
    # Only in Hugging Face's file: an edited task.json does not match its hash in our checkpoint's manifest.
    if trained.file.name == CONFIG and trained.problem == CLASSES and not task.is_regression:
        return f"{remedy}, or, if the labels mean the same, rename them in {trained.file}"
    return remedy


def make_class_weights(class_weights: str, labels: Sequence[str], targets_F: np.ndarray) -> np.ndarray:
    """float64 [C]: the factors of each class's losses.

    Args:
      class_weights: the setting: `BALANCED` (the weights of the rows of each class have the same sum, and the mean over
        all rows is 1), or a JSON file with an object of each label's weight.
      targets_F: the classes of the rows to train on.

    Raises: UserError if the file does not give a number above 0 to each label and to nothing else.
    """
    if class_weights == BALANCED:
        counts_C = np.bincount(targets_F, minlength=len(labels))
        return len(targets_F) / ((counts_C > 0).sum() * np.maximum(counts_C, 1))
    rule = (
        f"it must be {BALANCED}, or a JSON object of each label, and no other, with a number above 0, as "
        '{"no": 1, "yes": 5}'
    )
    weights = read_json_object(Path(class_weights), rule)
    are_numbers = all(type(value) in (int, float) and 0 < value < np.inf for value in weights.values())
    if {*weights} != {*labels} or not are_numbers:
        raise UserError(
            f"--class_weights={class_weights} holds {json.dumps(weights):.500}; {rule}; the labels are "
            f"{names_in_words(labels)}"
        )
    return np.array([weights[label] for label in labels], np.float64)


def _reorder_labels(task: TextTask, trained: TrainedTask | None) -> TextTask | None:
    """The task with its labels in the order of the trained classes; None if the two have different labels."""
    if trained is None:
        return task
    if trained.problem != (REGRESSION if task.is_regression else CLASSES):
        return None
    if task.is_regression or (not trained.is_named and len(trained.labels) == len(task.labels)):
        return task
    labels = labels_in_trained_order(trained.labels, task.labels or trained.labels, task.label_names)
    return dataclasses.replace(task, labels=labels) if labels else None


def _note_assumption(task: TextTask, weights: Weights, trained: TrainedTask | None) -> str:
    """A line about what is assumed if no file says what the classifier's outputs mean, else ""."""
    if trained.is_named if trained else task.is_regression:
        return ""
    if trained and task.is_regression:
        return f"{trained.file} has no problem_type: numbers are the model's outputs, without a pipeline's sigmoid"
    file = f"{trained.file} does not say" if trained else f"{weights.folder / TASK_FILE} does not exist to say"
    return f"{file} what the classes mean, so they are taken in this order: {', '.join(task.labels)}"
