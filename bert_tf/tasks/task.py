"""The interface of a task, which is whatever trains a model, pre-training included. `job` runs any task.

A new task is a folder, here or in `contrib`, with a subclass of `Task` (of `finetuning.FinetuningTask`, if it has files
and a head of its own), and a line in `TASKS`. Its module must not import TensorFlow, so that a program can refuse wrong
settings and files at once. The module of its head does; it is imported when a model is made.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from bert_tf.base.registration import load
from bert_tf.bert_config import BertConfig
from bert_tf.memory.plan import Workload

if TYPE_CHECKING:
    from bert_tf.base.tensorflow import keras
    from bert_tf.model.backends.plain import Plain
    from bert_tf.ranks.workers import Workers
    from bert_tf.run.telemetry import Telemetry


Facts = dict[str, Any]  # JSON values by name, such as those in a run's files


class Run(NamedTuple):
    """A job under way, as its task sees it.

    Attributes:
      config: during `Task.open` the settings as typed, later those with which these ranks train (`job`).
      options: the other settings, of the task's own class.
      folder: the run folder, which is locked.
    """

    config: Any
    options: Any
    workers: Workers
    folder: Path

    def say(self, line: str) -> None:
        """Prints a line, only on the chief."""
        if self.workers.is_chief:
            print(line, flush=True)


class Task(abc.ABC):
    """A task with the settings of one job. The job calls the methods in the order below, on all ranks.

    Attributes:
      settings: the classes that declare the task's settings: those of the training, and the others.
      name: names the run in its log; "": the run folder's name does.
      model, objective: ``module:class`` of the model (the encoder, as ``model.bert``, with the task's head) and of the
        loss, like those in `bert_tf.model.losses`; strings, since importing the classes imports TensorFlow.
      num_classes: the number of classes, if the constructor of `model` takes one; else None.
      main_score: the one of `evaluate`'s scores by which checkpoints are compared.
      trains: whether there is something to train on; else trained weights are used.
      bert_config: the model's configuration.
      tokenizer_files: the texts of the tokenizer's files, by file name; {} if the tokenizer is not known.
      num_rows: the number of rows in an epoch.
    """

    settings: ClassVar[tuple[type, type]]
    name: ClassVar[str]
    model: str
    objective: str
    num_classes: int | None = None
    main_score: ClassVar[str]
    lower_is_better: ClassVar[bool] = False
    trains: bool
    bert_config: BertConfig
    tokenizer_files: Mapping[str, str]
    num_rows: int

    @abc.abstractmethod
    def held_out(self, config: Any) -> str | None:
        """A fingerprint of the data that is scored during training with these settings; None: there is none."""

    @property
    def model_files(self) -> dict[str, str]:
        """The text files, by name, that are written beside every copy of the weights."""
        return {"bert_config.json": self.bert_config.to_json(), **self.tokenizer_files}

    @classmethod
    @abc.abstractmethod
    def plan_config(cls, options: Any) -> BertConfig:
        """The configuration of the model whose training --plan plans; data files need not be given."""

    @classmethod
    @abc.abstractmethod
    def workload(cls, config: Any, options: Any, bert_config: BertConfig) -> Workload:
        """What decides the memory that the training takes, as far as it is known before files are read."""

    @classmethod
    @abc.abstractmethod
    def from_settings(cls, config: Any, options: Any) -> Task:
        """The task with these settings. Raises `UserError` if they contradict each other, or a file is missing."""

    @abc.abstractmethod
    def open(self, run: Run) -> None:
        """Finds the model's configuration and files, and checks them against each other and the settings."""

    @abc.abstractmethod
    def prepare(self, run: Run) -> None:
        """Reads all files, so that mistakes show before a training of days."""

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> keras.Model:
        head_sizes = () if self.num_classes is None else (self.num_classes,)
        return load(self.model)(config, *head_sizes, backend, seed)

    def num_outputs(self, model: keras.Model) -> int:
        """How many values the head of a fine-tuning task computes for one sequence; else 0."""
        return 0

    def make_objective(self) -> Any:
        return load(self.objective)()

    @abc.abstractmethod
    def identity(self, run: Run) -> Facts:
        """What must not change within a run, besides the training's settings, `bert_config` and --init_checkpoint."""

    @abc.abstractmethod
    def training(self, run: Run, model: keras.Model) -> Facts:
        """The fields of `training.trainer.Training` that only the task knows."""

    @abc.abstractmethod
    def make_scorer(self, run: Run, model: keras.Model) -> Any:
        """The object with which `evaluate` and `finish` run the model; made once."""

    @abc.abstractmethod
    def evaluate(self, scorer: Any, telemetry: Telemetry, update: int) -> Mapping[str, float]:
        """The scores of the held-out data after an update, by name; only the chief's are used. Writes no files."""

    @abc.abstractmethod
    def finish(self, scorer: Any, telemetry: Telemetry, update: int) -> None:
        """Predicts, scores or saves with the trained model, as the settings say."""


# By the tasks' names: ``module:class`` of each, in the ``task.py`` of its folder.
TASKS = {
    "pretraining": "bert_tf.tasks.pretraining.task:PretrainingTask",
    "squad": "bert_tf.tasks.squad.task:SquadTask",
    "glue": "bert_tf.tasks.glue.task:GlueTask",
    "entities": "bert_tf.contrib.entities.task:EntityTask",
    "choices": "bert_tf.contrib.choices.task:ChoiceTask",
}


def find_task_class(name: str) -> type[Task]:
    """The class of the task `name`; imports only that task's folder."""
    return load(TASKS[name])


def settings_classes(name: str) -> tuple[type, ...]:
    """The classes that declare a task's settings, from the ``settings.py`` of its folder."""
    return load(f"{TASKS[name].rpartition('.task:')[0]}.settings:SETTINGS")
