"""What a classifier's outputs mean: ``task.json`` says it beside our weights, ``config.json`` beside Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object
from bert_tf.interchange.hugging_face import CONFIG
from bert_tf.interchange.weights import Weights

TASK_FILE = "task.json"
# Hugging Face's names of what a classifier's outputs are: the number itself, or a score for each class.
REGRESSION, CLASSES = "regression", "single_label_classification"
# Fields in which sentence-transformers says what its CrossEncoder applies to a model's output.
_CROSS_ENCODER = ("sentence_transformers", "sbert_ce_default_activation_function")
_CORRECT_IT = "correct it, or use another checkpoint"


class TrainedTask(NamedTuple):
    file: Path  # that says so
    name: str | None
    problem: str  # REGRESSION, CLASSES, or another, which no task here is
    labels: tuple[str, ...]  # in the order of the outputs
    is_named: bool  # False: the file does not say what the outputs mean; then the labels are LABEL_0, LABEL_1...
    text_columns: Sequence[str] | None
    described: Mapping[str, Any]  # what a config.json says besides the labels, by its fields

    def __str__(self) -> str:
        kind = "" if self.problem in (REGRESSION, CLASSES) else f"{self.problem}: "
        outputs = "numbers" if self.problem == REGRESSION else ", ".join(self.labels[:20])
        return f"{self.name or 'a task'} ({kind}{outputs})"


def read_task(weights: Weights, variable: str = "output_weights") -> TrainedTask | None:
    """The task that a classifier was trained on; None if there is no file beside its weights that says it.

    Args:
      variable: the classifier's matrix.

    Raises:
      UserError: the file is damaged or contradicts itself, or it does not name as many labels as the weights have
        classes.
    """
    num_classes = (weights.shapes.get(variable) or [0])[0]
    if weights.config_file.name == CONFIG:
        task = _read_config(weights.config_file, num_classes)
    elif (weights.folder / TASK_FILE).is_file():
        task = _read_task_file(weights.folder / TASK_FILE, num_classes)
    else:
        return None
    if len(task.labels) != num_classes:
        raise _wrong(task.file, f"names {len(task.labels)} labels, the weights have {num_classes} classes")
    return task


def _read_task_file(file: Path, num_classes: int) -> TrainedTask:
    task = read_json_object(file, _CORRECT_IT)
    labels, columns = task.get("labels", []), task.get("text_columns")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise _wrong(file, f"labels={labels!r:.80}: must be a list of texts")
    problem = REGRESSION if task.get("is_regression") else CLASSES
    return TrainedTask(
        file,
        task.get("task_name"),
        problem=problem,
        labels=tuple(labels) or numbered(num_classes),
        is_named=bool(labels) or problem == REGRESSION,
        text_columns=[str(column) for column in columns] if isinstance(columns, list) else None,
        described={"problem_type": problem},
    )


def _wrong(file: Path, fault: str) -> UserError:
    return UserError(f"{file}: {fault}; {_CORRECT_IT}")


def numbered(num_classes: int) -> tuple[str, ...]:
    """What Hugging Face calls classes without names."""
    return tuple(f"LABEL_{number}" for number in range(num_classes))


def _read_config(file: Path, num_classes: int) -> TrainedTask:
    values = read_json_object(file, _CORRECT_IT)
    orders = {field: _in_order(file, field, values.get(field)) for field in ("id2label", "label2id")}
    named = {field: labels for field, labels in orders.items() if labels != numbered(len(labels))}
    if len({*named.values()}) > 1:
        raise _wrong(file, f"id2label says {named['id2label']}, label2id {named['label2id']}")
    labels, is_named = next(iter(named.values()), numbered(num_classes)), bool(named)
    described = {name: values[name] for name in ("problem_type", *_CROSS_ENCODER) if values.get(name)}
    if num_classes > 1:
        described.setdefault("problem_type", CLASSES)
    problem = described.get("problem_type", REGRESSION)
    if problem == REGRESSION:
        is_named = bool(described)
        activations = [_activation(described[name]) for name in _CROSS_ENCODER if name in described]
        problem = next((f"a number through {name}" for name in activations if not name.endswith("Identity")), problem)
    return TrainedTask(
        file,
        values.get("finetuning_task"),
        problem=problem,
        labels=labels,
        is_named=is_named,
        text_columns=None,
        described=described,
    )


def _activation(setting: Any) -> str:
    """The class of what a CrossEncoder applies to a model's output, which new versions put into an object."""
    return str(setting.get("activation_fn", "Identity") if isinstance(setting, dict) else setting)


def _in_order(file: Path, field: str, mapping: Any) -> tuple[str, ...]:
    """The labels of ``id2label`` or ``label2id`` in the order of their numbers; () if there is none."""
    if mapping is None:
        return ()
    pairs = list(mapping.items()) if isinstance(mapping, dict) else []
    if field == "label2id":
        pairs = [(number, label) for label, number in pairs]
    labels = {str(number): str(label) for number, label in pairs if isinstance(label, (str, int))}
    numbers = [str(number) for number in range(len(pairs))]
    if not isinstance(mapping, dict) or set(labels) != {*numbers} or len({*labels.values()}) < len(pairs):
        raise _wrong(file, f"{field}={mapping!r:.200}: must give each number from 0 on a label of its own")
    return tuple(labels[number] for number in numbers)


def plain(label: str) -> str:
    """The label without case, and without the hyphens, underscores and spaces between its letters."""
    return re.sub(r"(?<=[^\W\d_])[-_\s]+(?=[^\W\d_])", "", label).casefold()


def in_trained_order(trained: Sequence[str], labels: Sequence[str], names: Sequence[str]) -> tuple[str, ...] | None:
    """`labels` in the order of `trained`; None if the two are not the same labels, also when compared by `plain`.

    Args:
      names: other names of the `labels`, in their order, by which they may be called in `trained`.
    """
    for known in (labels, names):
        by_plain = {plain(name): label for name, label in zip(known, labels)}
        ordered = [by_plain.get(plain(label), "") for label in trained]
        if len(by_plain) == len(labels) and sorted(ordered) == sorted(labels):
            return tuple(ordered)
    return tuple(trained) if sorted(trained) == sorted(labels) else None
