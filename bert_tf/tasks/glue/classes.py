"""What the classes of a model mean for a task: the labels of the weights that it starts from or predicts with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError, listed
from bert_tf.base.files import read_json_object
from bert_tf.interchange.heads import TEXTS
from bert_tf.interchange.labels import (
    CLASSES,
    REGRESSION,
    TASK_FILE,
    TrainedTask,
    in_trained_order,
    no_labels,
    read_task,
)
from bert_tf.interchange.weights import Weights
from bert_tf.tasks.glue.settings import BALANCED
from bert_tf.tasks.glue.tasks import TextTask, find_task


def learns_labels(task: TextTask) -> bool:
    """Whether the labels are those of the training file."""
    return task.is_custom and not task.is_regression


def as_started(task: TextTask, weights: Weights | None) -> tuple[TextTask, bool, str]:
    """For training: the task with its labels in the order of the weights' classes, whether the training takes over
    their classifier, and a line about a new classifier or an order that had to be assumed, or ""."""
    if weights is None or TEXTS.variable not in weights.shapes:
        return task, True, ""
    trained = read_task(weights)
    fitted = _in_order_of(task, trained)
    if fitted is None or weights.shapes[TEXTS.variable][:1] != [task.num_classes]:
        other = trained or "another number of classes"
        return task, False, f"{weights.source} was fine-tuned for {other}: a new classifier is made"
    return fitted, True, _assumed(fitted, weights, trained)


def as_trained(task: TextTask, weights: Weights) -> tuple[TextTask, str]:
    """For prediction: the task with its labels in the order of the weights' classes, and the line.

    Raises:
      UserError: the weights have other labels or another number of texts than the task, or their labels are unknown.
    """
    trained = read_task(weights)
    if trained is None and learns_labels(task):
        raise no_labels(weights)
    fitted = _in_order_of(task, trained)
    if trained and fitted is None:
        labels = ", ".join(task.labels) or ("numbers" if task.is_regression else "labels")
        fault = f"{weights.folder} was fine-tuned for {trained}, not for {task.name} ({labels})"
        raise UserError(f"{fault}; {_remedy(task, trained)}")
    if trained and trained.text_columns and len(trained.text_columns) != len(task.text_columns):
        theirs, ours = map(", ".join, (trained.text_columns, task.text_columns))
        raise UserError(f"{weights.folder} was fine-tuned on the text columns {theirs}, not on {ours}; name as many")
    assert fitted
    return fitted, "\n".join(filter(None, (_of_other_task(task, trained), _assumed(fitted, weights, trained))))


def _of_other_task(task: TextTask, trained: TrainedTask | None) -> str:
    """A warning if the weights say that they are of another known task, which has the same labels, or ""."""
    if trained is None or not trained.name or task.is_custom:
        return ""
    try:
        known = find_task(trained.name)
    except UserError:  # a user's own, or one that is not known here
        return ""
    if known.name == task.name:
        return ""
    other = f"{known.name}, which has the labels {listed(task.labels)}, too"
    return f"warning: by {trained.file} these weights are for {other}, not for {task.name}"


def _remedy(task: TextTask, trained: TrainedTask) -> str:
    """What to do where a task does not suit what the weights were trained for."""
    if trained.problem not in (REGRESSION, CLASSES):
        return "no task here is of that kind; name a checkpoint that gives each text one label, or a number"
    if task.is_regression == (trained.problem == REGRESSION):
        return f"name a checkpoint of that task, or give the labels these names in {trained.file}"
    if task.is_custom:
        return f"{'omit' if task.is_regression else 'pass'} --regression, or name another checkpoint"
    return "name a checkpoint of that task"


def weights_of(class_weights: str, labels: Sequence[str], targets_F: np.ndarray) -> np.ndarray:
    """float64 [C]: what the losses of each class are multiplied by.

    Args:
      class_weights: `BALANCED`, by which all classes have the same sum of weights, and the mean over the rows is 1; or
        a JSON file with an object of each label's weight.
      targets_F: the classes of the rows to train on.

    Raises: UserError if the file does not give each label, and no other, a number above 0.
    """
    if class_weights == BALANCED:
        counts_C = np.bincount(targets_F, minlength=len(labels))
        return len(targets_F) / ((counts_C > 0).sum() * np.maximum(counts_C, 1))
    rule = 'it must be a JSON object of each label, and no other, with a number above 0, as {"no": 1, "yes": 5}'
    weights = read_json_object(Path(class_weights), rule)
    are_numbers = all(type(value) in (int, float) and 0 < value < np.inf for value in weights.values())
    if {*weights} != {*labels} or not are_numbers:
        contents = f"{json.dumps(weights):.500}; {rule}; the labels are {listed(labels)}"
        raise UserError(f"--class_weights={class_weights} holds {contents}")
    return np.array([weights[label] for label in labels], np.float64)


def _in_order_of(task: TextTask, trained: TrainedTask | None) -> TextTask | None:
    """The task with its labels in the order of the trained classes; None if these are others."""
    if trained is None:
        return task
    if trained.problem != (REGRESSION if task.is_regression else CLASSES):
        return None
    if task.is_regression or (not trained.is_named and len(trained.labels) == len(task.labels)):
        return task
    labels = in_trained_order(trained.labels, task.labels or trained.labels, task.label_names)
    return dataclasses.replace(task, labels=labels) if labels else None


def _assumed(task: TextTask, weights: Weights, trained: TrainedTask | None) -> str:
    """A line if the weights do not say what their classifier's outputs mean, else ""."""
    if trained.is_named if trained else task.is_regression:
        return ""
    if trained and task.is_regression:
        return f"{trained.file} has no problem_type: the number is the model's own, not the sigmoid of a pipeline"
    file = f"{trained.file} does not say" if trained else f"{weights.folder / TASK_FILE} does not exist to say"
    return f"{file} what the classes mean, so they are taken in this order: {', '.join(task.labels)}"
