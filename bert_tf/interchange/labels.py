"""What a classifier's outputs mean, by ``task.json`` beside our weights or ``config.json`` beside Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError, names_in_words
from bert_tf.base.fields import fault_of_label, first_repeated
from bert_tf.base.files import read_json_object
from bert_tf.interchange.heads import TEXTS, Head
from bert_tf.interchange.hugging_face import CONFIG
from bert_tf.interchange.weights import Weights

TASK_FILE = "task.json"
# Hugging Face's names of what a classifier's outputs are: the number itself, or a score for each class.
REGRESSION, CLASSES = "regression", "single_label_classification"
_CORRECT_IT = "correct it, or use another checkpoint"


class TrainedTask(NamedTuple):
    """The task that a classifier was trained on."""

    file: Path  # the file that says so
    name: str  # "": the file does not say
    problem: str  # REGRESSION, CLASSES, or another that is not supported
    labels: tuple[str, ...]  # in the order of the outputs
    is_named: bool  # False: the file does not say what the outputs mean; then the labels are LABEL_0, LABEL_1...
    text_columns: Sequence[str]  # empty: the file does not say

    def __str__(self) -> str:
        kind = "" if self.problem in (REGRESSION, CLASSES) else f"{self.problem}: "
        outputs = "numbers" if self.problem == REGRESSION else names_in_words(self.labels)
        return f"{self.name or 'a task'} ({kind}{outputs})"


def read_task(weights: Weights, head: Head = TEXTS) -> TrainedTask | None:
    """The task that the classifier `head` was trained on; None if no file beside the weights says it.

    Raises:
      UserError: the file is damaged or contradicts itself, or the weights have another number of classes than it says.
    """
    num_classes = (weights.shapes.get(head.variable) or [0])[0]
    is_theirs = weights.config_file.name == CONFIG
    file = weights.config_file if is_theirs else weights.folder / TASK_FILE
    if not file.is_file():
        return None
    task = (_read_config if is_theirs else _read_task_file)(file, num_classes)
    if len(task.labels) != num_classes:
        raise _task_error(task.file, f"names {len(task.labels)} labels, the weights have {num_classes} classes")
    for label in task.labels:
        if fault := fault_of_label(label):
            raise _task_error(task.file, f"has the label {label!r:.80}: {fault}")
    return task


def _read_task_file(file: Path, num_classes: int) -> TrainedTask:
    task = read_json_object(file, _CORRECT_IT)
    labels, text_columns = (task.get(field) or [] for field in ("labels", "text_columns"))
    for field, values in (("labels", labels), ("text_columns", text_columns)):
        if not isinstance(values, list) or not _are_names(values):
            raise _task_error(file, f"{field} is {values!r:.80}: must be a list of different texts")
    problem = REGRESSION if task.get("is_regression") else CLASSES
    return TrainedTask(
        file,
        str(task.get("task_name") or ""),
        problem=problem,
        labels=tuple(map(str, labels)) or numbered_labels(num_classes),
        is_named=bool(labels) or problem == REGRESSION,
        text_columns=list(map(str, text_columns)),
    )


def no_labels(weights: Weights) -> UserError:
    """The error if the labels must be known, and `read_task` finds none."""
    return UserError(f"{weights.folder / TASK_FILE}, with the model's labels, does not exist; use another checkpoint")


def _task_error(file: Path, fault: str) -> UserError:
    return UserError(f"{file}: {fault}; {_CORRECT_IT}")


def numbered_labels(num_classes: int) -> tuple[str, ...]:
    """Hugging Face's labels for classes without names."""
    return tuple(f"LABEL_{number}" for number in range(num_classes))


def _read_config(file: Path, num_classes: int) -> TrainedTask:
    """The task by ``id2label`` and ``problem_type``, read as `transformers` reads them."""
    values = read_json_object(file, _CORRECT_IT)
    by_number = values.get("id2label") or {}
    ordered = (
        [by_number.get(str(number)) for number in range(len(by_number))] if isinstance(by_number, dict) else [None]
    )
    if not _are_names(ordered):
        raise _task_error(file, f"id2label={by_number!r:.200}: must give each number from 0 on a label of its own")
    labels = tuple(map(str, ordered)) or numbered_labels(num_classes)
    problem = values.get("problem_type")
    is_named = bool(problem) if num_classes == 1 else labels != numbered_labels(len(labels))
    return TrainedTask(
        file,
        str(values.get("finetuning_task") or ""),
        problem=problem or (REGRESSION if num_classes == 1 else CLASSES),
        labels=labels,
        is_named=is_named,
        text_columns=(),
    )


def _are_names(values: Sequence[Any]) -> bool:
    """Whether all are texts or whole numbers, and none occurs twice."""
    return all(isinstance(value, (str, int)) for value in values) and first_repeated(map(str, values)) is None


def _normalize_label(label: str) -> str:
    """The label in lower case, without the hyphens, underscores and spaces between its letters."""
    return re.sub(r"(?<=[^\W\d_])[-_\s]+(?=[^\W\d_])", "", label).casefold()


def labels_in_trained_order(
    trained: Sequence[str], labels: Sequence[str], names: Sequence[str]
) -> tuple[str, ...] | None:
    """`labels` in the order of `trained`; None if the two differ also when compared by `_normalize_label`.

    Args:
      names: other names of the `labels`, in their order, which `trained` may have instead.
    """
    for names_of_labels in (labels, names):
        label_by_name = {_normalize_label(name): label for name, label in zip(names_of_labels, labels)}
        ordered = [label_by_name.get(_normalize_label(label), "") for label in trained]
        if len(label_by_name) == len(labels) and sorted(ordered) == sorted(labels):
            return tuple(ordered)
    return tuple(trained) if sorted(trained) == sorted(labels) else None
