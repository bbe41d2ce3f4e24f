"""What a task is: whatever trains, pre-training too. `job` begins, trains, predicts and exports any.

A new task is a folder, here or in `contrib`, with a subclass of `Task` (of `finetuning.FinetuningTask`, if it has files
and a head of its own), and a line in `TASKS`. Its module does not import TensorFlow, so that a program can refuse
settings and files at once; its head does, and is imported where a model is made.
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


Facts = dict[str, Any]  # by name, for the files of a run


class Run(NamedTuple):
    """A job under way, as its task sees it.

    Attributes:
      config: the settings as typed in `Task.open`, later those with which these ranks train (`memory.split.settle`).
      options: the other settings, of the task's own class.
      folder: the run folder, which is locked.
    """

    config: Any
    options: Any
    workers: Workers
    folder: Path

    def say(self, line: str) -> None:
        """Prints a line, on the chief."""
        if self.workers.is_chief:
            print(line, flush=True)


class Task(abc.ABC):
    """A task with the settings of one job. The job calls its methods in their order here, on all ranks.

    Attributes:
      settings: the classes that declare its settings: those of the training, and the others.
      name: of the run in its log; "": that of its folder.
      model, objective: ``module:class`` of the encoder, as ``model.bert``, with this task's head, and of the loss, like
        those of `bert_tf.model.losses`. Named, since they import TensorFlow.
      num_classes: of a head that has a number of them; None: of another one.
      main_score: the score by which checkpoints are compared, of those that `evaluate` gives.
      trains: whether there is something to train on; else trained weights are used.
      bert_config: the model's.
      tokenizer_files: the files of its tokenizer, by name; {} if it is not known.
      num_rows: in an epoch.
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
        """A fingerprint of what is scored while training, with these settings; None: nothing is."""

    @property
    def model_files(self) -> dict[str, str]:
        """The text files, by name, that are put beside every copy of the weights."""
        return {"bert_config.json": self.bert_config.to_json(), **self.tokenizer_files}

    @classmethod
    @abc.abstractmethod
    def plan_config(cls, options: Any) -> BertConfig:
        """The configuration of the model that --plan is about; no file of data need be given."""

    @classmethod
    @abc.abstractmethod
    def workload(cls, config: Any, options: Any, bert_config: BertConfig) -> Workload:
        """What the training takes of memory, as far as it is known before files are read."""

    @classmethod
    @abc.abstractmethod
    def from_settings(cls, config: Any, options: Any) -> Task:
        """The task of a job. Raises `UserError` for settings that do not fit."""

    @abc.abstractmethod
    def open(self, run: Run) -> None:
        """Finds the model's configuration and files, checked against each other and the settings."""

    @abc.abstractmethod
    def prepare(self, run: Run) -> None:
        """Reads all files, so that mistakes show before a training of days."""

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> keras.Model:
        of_classes = () if self.num_classes is None else (self.num_classes,)
        return load(self.model)(config, *of_classes, backend, seed)

    def num_outputs(self, model: keras.Model) -> int:
        """How many values a task's head gives for one sequence."""
        return 0

    def make_objective(self) -> Any:
        return load(self.objective)()

    @abc.abstractmethod
    def identity(self, run: Run) -> Facts:
        """What must not change within a run besides settings that are fixed, the configuration and the start."""

    @abc.abstractmethod
    def training(self, run: Run, model: keras.Model) -> Facts:
        """The fields of `training.trainer.Training` that only the task knows."""

    @abc.abstractmethod
    def make_scorer(self, run: Run, model: keras.Model) -> Any:
        """What `evaluate` and `finish` use of the model; made once."""

    @abc.abstractmethod
    def evaluate(self, scorer: Any, telemetry: Telemetry, update: int) -> Mapping[str, float]:
        """The scores of the held-out data after an update, by name; the chief's count. Writes nothing."""

    @abc.abstractmethod
    def finish(self, scorer: Any, telemetry: Telemetry, update: int) -> None:
        """Does with the trained model what the job asks for."""


# By the names of the tasks: ``module:class`` in the ``task.py`` of each one's folder.
TASKS = {
    "pretraining": "bert_tf.tasks.pretraining.task:PretrainingTask",
    "squad": "bert_tf.tasks.squad.task:SquadTask",
    "glue": "bert_tf.tasks.glue.task:GlueTask",
    "entities": "bert_tf.contrib.entities.task:EntityTask",
    "choices": "bert_tf.contrib.choices.task:ChoiceTask",
}


def find_task_class(name: str) -> type[Task]:
    """Imports only this task's folder."""
    return load(TASKS[name])


def settings_classes(name: str) -> tuple[type, ...]:
    """The classes that declare a task's settings, from the ``settings.py`` of its folder."""
    return load(f"{TASKS[name].rpartition('.task:')[0]}.settings:SETTINGS")
