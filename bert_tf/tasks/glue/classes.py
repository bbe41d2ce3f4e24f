"""What the classes of a model mean for a task: the labels of the weights that it starts from or predicts with."""

from __future__ import annotations

import dataclasses

from bert_tf.base.errors import UserError
from bert_tf.interchange.labels import CLASSES, REGRESSION, TASK_FILE, TrainedTask, in_trained_order, read_task
from bert_tf.interchange.weights import Weights
from bert_tf.tasks.glue.task import CLASSIFIER_HEAD
from bert_tf.tasks.glue.tasks import TextTask


def learns_labels(task: TextTask) -> bool:
    """Whether the labels are those of the training file."""
    return task.is_custom and not task.is_regression


def as_trained(task: TextTask, weights: Weights) -> TextTask:
    """The task with the labels that the weights were trained with, in their order.

    Raises:
      UserError: the weights have other labels or another number of texts than the task, or their labels are unknown.
    """
    trained = read_task(weights)
    if trained is None and learns_labels(task):
        raise UserError(
            f"{weights.folder / TASK_FILE} does not exist, so the model's labels are not known; use a checkpoint of "
            "this program"
        )
    fitted = _in_order_of(task, trained)
    if trained and fitted is None:
        labels = ", ".join(task.labels) or ("numbers" if task.is_regression else "labels")
        raise UserError(
            f"{weights.folder} was fine-tuned for {trained}, not for {task.name} ({labels}); name a checkpoint of that "
            f"task, or give the labels these names in {trained.file}"
        )
    if trained and trained.text_columns and len(trained.text_columns) != len(task.text_columns):
        raise UserError(
            f"{weights.folder} was fine-tuned on the text columns {', '.join(trained.text_columns)}, not on "
            f"{', '.join(task.text_columns)}; name as many with --text_columns, or another checkpoint"
        )
    assert fitted
    return fitted


def as_started(task: TextTask, weights: Weights | None) -> tuple[TextTask, bool]:
    """For training: the task with its labels in the order of the initial classifier's, and whether that is taken over.

    It is not if it has other labels; then the training starts with the encoder alone.
    """
    if weights is None or CLASSIFIER_HEAD.variable not in weights.shapes:
        return task, True
    fitted = _in_order_of(task, read_task(weights))
    if fitted is None or weights.shapes[CLASSIFIER_HEAD.variable][:1] != [task.num_classes]:
        return task, False
    return fitted, True


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


def describe_classifier(task: TextTask, weights: Weights | None, is_taken_over: bool) -> list[str]:
    """A line if the order of the classes had to be assumed, or if the training starts with a new classifier."""
    if weights is None or CLASSIFIER_HEAD.variable not in weights.shapes:
        return []
    trained = read_task(weights)
    if not is_taken_over:
        return [
            f"{weights.source} was fine-tuned for {trained or 'another number of classes'}: a new classifier is made"
        ]
    if trained.is_named if trained else task.is_regression:
        return []
    if trained and task.is_regression:
        return [
            f"{trained.file} has no problem_type: the number is the model's own, of which transformers' pipeline shows "
            "the sigmoid"
        ]
    file = trained.file if trained else weights.folder / TASK_FILE
    lack = "does not say what the classes mean" if trained else "does not exist"
    return [f"{file} {lack}, so they are taken in this order: {', '.join(task.labels)}"]
