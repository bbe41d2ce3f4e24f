"""What a fine-tuning task is: files, rows, head, objective, scores. `job` trains, predicts, scores and exports any.

A new task is a folder with a subclass of `Task`, and a line in `TASKS`. Its module does not import TensorFlow, so
that a program can refuse flags and files at once; its head does, and is imported where a model is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig

if TYPE_CHECKING:
    from bert_tf.base.tensorflow import keras
    from bert_tf.model.backends.plain import Plain
    from bert_tf.ranks.workers import Workers
    from bert_tf.tasks.job import FinetuningJob, TaskRun
    from bert_tf.tasks.predict import Predictor
import abc
import importlib
import json

import numpy as np


class Head(NamedTuple):
    """What a model that was fine-tuned on a task has, and one that was only pre-trained lacks."""

    name: str  # as messages call it
    variable: str  # its matrix, which only the fine-tuned checkpoint has
    outputs: Sequence[str]  # what the model computes, by its names in exports
    by_position: bool = False  # whether the outputs have a value for each position
    uses_pooler: bool = False  # whether it reads the pooled first position only


class TaskRows(Protocol):
    """Rows for training or prediction, in memory. F rows, S positions of the longest."""

    @property
    def num_tokens(self) -> np.ndarray:
        """int [F]: the number of real tokens in each row; the rest is padding."""
        ...

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs [..., S] and, where they are known, targets for the rows numbered `rows` [...].

        A row of N sequences that belong together has inputs [..., N, S], and the tokens of its longest.
        """
        ...


# The file flags that a mode needs; others are ignored.
_NEEDS = {
    "train_and_predict": ("train_file", "predict_file"),
    "train_and_eval": ("train_file", "predict_file"),
    "train": ("train_file",),
    "predict": ("predict_file",),
    "eval": ("predict_file",),
    "sm_predict": ("predict_file",),
}


def files_of_mode(flags: Mapping[str, Any]) -> dict[str, str | None]:
    """``train_file`` and ``predict_file`` as the flags give them, None where --mode does not need one.

    Raises:
      UserError: one that it needs is not given.
    """
    needed = _NEEDS.get(flags["mode"], ())
    for name in needed:
        if not flags[name]:
            raise UserError(f"--{name} is required with --mode={flags['mode']}")
    return {name: flags[name] if name in needed else None for name in ("train_file", "predict_file")}


class Task(abc.ABC):
    """A task with the files and settings of one job.

    Attributes:
      name: of the run; one of its settings that must not change.
      head: what its model has besides the encoder.
      max_seq_length: positions of a row.
      keeps_head: whether a training starts with the head of its initial weights, if they have one.
    """

    name: str
    head: Head
    max_seq_length: int
    keeps_head: bool = True

    @classmethod
    @abc.abstractmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> Task:
        """The task as a program's flags describe it. Raises `UserError` for flags that do not fit."""

    @classmethod
    def num_choices_of(cls, flags: Mapping[str, Any]) -> int:
        """Of how many sequences a row consists, for the plan of the memory, which is made before files are read."""
        return 1

    @property
    @abc.abstractmethod
    def training_files(self) -> Sequence[Path]:
        """What the training rows are made from; empty if the job does not train."""

    @abc.abstractmethod
    def prepare(self, run: TaskRun) -> None:
        """Reads what the job needs besides the training rows, so that mistakes show before a training of days."""

    @abc.abstractmethod
    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> keras.Model:
        """The encoder, as ``model.bert``, with this task's head."""

    @abc.abstractmethod
    def make_objective(self) -> Any:
        """Like those of `bert_tf.model.losses`."""

    @abc.abstractmethod
    def training_rows(self, run: TaskRun) -> TaskRows: ...

    def meaning(self) -> dict[str, Any]:
        """What the model's classes mean, for files beside the weights; empty if the head tells it."""
        return {}

    def identity(self) -> dict[str, Any]:
        """Settings of model and rows that must not change within a run."""
        return {**self.meaning(), "max_seq_length": self.max_seq_length}

    @abc.abstractmethod
    def settings(self) -> dict[str, Any]:
        """All settings by their flags' names, for config.json."""

    def companions(self) -> dict[str, str]:
        """Text files, by name, that belong beside the weights."""
        from bert_tf.interchange.labels import TASK_FILE

        meaning = self.meaning()
        return {TASK_FILE: json.dumps(meaning, indent=2) + "\n"} if meaning else {}

    @abc.abstractmethod
    def finish(self, predictor: Predictor) -> None:
        """Predicts, scores and writes what the job asks for; called on all ranks, after a training if there is one."""

    def export_settings(self) -> dict[str, Any]:
        """What the users of an exported model must know, among it "task", which says how to use it."""
        return {"task": self.name, "max_seq_length": self.max_seq_length, **self.meaning()}

    def other_modes(self) -> Mapping[str, Callable[[FinetuningJob, Any, Workers, Mapping[str, Any]], None]]:
        """What --mode may do besides training, predicting, scoring, exporting: called with the job, this task, the
        ranks and all flags by name."""
        return {}


TASKS = {
    "squad": "task.SquadTask",
    "glue": "task.GlueTask",
    "entities": "task.EntityTask",
    "choices": "task.ChoiceTask",
}


def find_task_class(name: str) -> type[Task]:
    """Imports only this task's folder."""
    module, _, name_of_class = TASKS[name].rpartition(".")
    return getattr(importlib.import_module(f"bert_tf.tasks.{name}.{module}"), name_of_class)


def task_settings() -> dict[str, tuple[type, ...]]:
    """The classes that declare each task's settings, from the ``settings.py`` of its folder."""
    return {name: importlib.import_module(f"bert_tf.tasks.{name}.settings").SETTINGS for name in TASKS}
