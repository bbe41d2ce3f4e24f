"""What a classifier's outputs mean, by ``task.json`` beside our weights or ``config.json`` beside Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError, names_in_words
from bert_tf.base.fields import fault_of_label
from bert_tf.base.files import read_json_object
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


def read_task(weights: Weights, variable: str = "output_weights") -> TrainedTask | None:
    """The task that a classifier was trained on; None if no file beside the weights says it.

    Args:
      variable: the classifier's matrix.

    Raises:
      UserError: the file is damaged or contradicts itself, or the weights have another number of classes than it says.
    """
    num_classes = (weights.shapes.get(variable) or [0])[0]
    if weights.config_file.name == CONFIG:
        task = _read_config(weights.config_file, num_classes)
    elif (weights.folder / TASK_FILE).is_file():
        task = _read_task_file(weights.folder / TASK_FILE, num_classes)
    else:
        return None
    if len(task.labels) != num_classes:
        raise _task_error(task.file, f"names {len(task.labels)} labels, the weights have {num_classes} classes")
    for label in task.labels:
        if fault := fault_of_label(label):
            raise _task_error(task.file, f"has the label {label!r:.80}: {fault}")
    return task


def _read_task_file(file: Path, num_classes: int) -> TrainedTask:
    task, names = read_json_object(file, _CORRECT_IT), {}
    for field in ("labels", "text_columns"):
        values = task.get(field) or []
        if not isinstance(values, list) or not _are_names(values):
            raise _task_error(file, f"{field} is {values!r:.80}: must be a list of different texts")
        names[field] = tuple(map(str, values))
    labels = names["labels"]
    problem = REGRESSION if task.get("is_regression") else CLASSES
    return TrainedTask(
        file,
        str(task.get("task_name") or ""),
        problem=problem,
        labels=labels or numbered_labels(num_classes),
        is_named=bool(labels) or problem == REGRESSION,
        text_columns=names["text_columns"],
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
    labels = _in_order(file, values.get("id2label") or {}) or numbered_labels(num_classes)
    problem = values.get("problem_type") or None
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
    return all(isinstance(value, (str, int)) for value in values) and len({*map(str, values)}) == len(values)


def _in_order(file: Path, mapping: Any) -> tuple[str, ...]:
    """The labels of ``id2label`` in the order of their numbers. Raises: UserError if one is missing or repeated."""
    ordered = [mapping.get(str(number)) for number in range(len(mapping))] if isinstance(mapping, dict) else [None]
    if not _are_names(ordered):
        raise _task_error(file, f"id2label={mapping!r:.200}: must give each number from 0 on a label of its own")
    return tuple(map(str, ordered))


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
