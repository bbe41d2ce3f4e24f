"""What a fine-tuning task is: files, rows, head, objective, scores. `job` trains, predicts, scores and exports any.

A new task is a folder with a subclass of `Task`, and a line in `TASKS`. Its module does not import TensorFlow, so
that a program can refuse flags and files at once; its head does, and is imported where a model is made.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import Head

if TYPE_CHECKING:
    from bert_tf.base.tensorflow import keras
    from bert_tf.interchange.weights import Weights
    from bert_tf.model.backends.plain import Plain
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor
    from bert_tf.text.vocabulary import Tokenizer

# What files are for: to train on; to predict and score; to predict, and score if the right answers are there.
TRAIN, EVAL, PREDICT = "train", "eval", "predict"
# The files that a mode reads, by their flags; it ignores others.
_USES = {
    "train_and_predict": {TRAIN: "train_file", PREDICT: "predict_file"},
    "train_and_eval": {TRAIN: "train_file", EVAL: "predict_file"},
    "train": {TRAIN: "train_file"},
    "predict": {PREDICT: "predict_file"},
    "eval": {EVAL: "predict_file"},
    "sm_predict": {PREDICT: "predict_file"},
}


def files_of_mode(flags: Mapping[str, Any]) -> dict[str, Sequence[Path]]:
    """The files that --mode needs, by what they are for. Raises `UserError` if one is not given."""
    files: dict[str, Sequence[Path]] = {}
    for use, name in _USES.get(flags["mode"], {}).items():
        if not flags[name]:
            raise UserError(f"--{name} is required with --mode={flags['mode']}")
        # What is scored while training must hold the right answers.
        files[EVAL if use == PREDICT and TRAIN in files and flags["eval_steps"] else use] = [Path(flags[name])]
    return files


class Conclusion(NamedTuple):
    """What a model's outputs say of a file.

    Attributes:
      files: texts to be written into the run folder, by name.
      about: what the first of them holds, in a few words.
      notes: lines to be shown.
      scores: by name; none if the right answers are not known, or not wanted.
    """

    files: Mapping[str, str] = {}
    about: str = ""
    notes: Sequence[str] = ()
    scores: Mapping[str, float] = {}


class TaskRows(Protocol):
    """Rows for training or prediction, in memory. F rows, S positions of the longest."""

    @property
    def num_tokens(self) -> np.ndarray:
        """int [F]: the number of real tokens in each row; the rest is padding."""
        ...

    @property
    def tokens(self) -> np.ndarray:
        """The ids of all tokens, without padding."""
        ...

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The model's inputs [..., S] and, where they are known, targets for the rows numbered `rows` [...].

        A row of N sequences that belong together has inputs [..., N, S], and the tokens of its longest.
        """
        ...


@dataclasses.dataclass
class Task(abc.ABC):
    """A task with the files and settings of one job, which are its fields.

    Attributes:
      name: of the run; one of its settings that must not change.
      head: what its model has besides the encoder.
      main_score: the score by which checkpoints are compared, of those that `conclude` gives; more is better.
      num_texts: in a row.
      files: by what they are for, TRAIN first; "_PART" may stand behind it, where a task has several such files.
      max_seq_length: positions of a row.
      keeps_head: whether a training starts with the head of its initial weights, if they have one.
      contents, rows: what `prepare` has read, and made of it, by what the files are for.
    """

    name: ClassVar[str]
    head: ClassVar[Head]
    main_score: ClassVar[str]
    num_texts: ClassVar[int] = 1
    files: Mapping[str, Sequence[Path]]
    max_seq_length: int
    keeps_head: bool = dataclasses.field(default=True, init=False)
    contents: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)
    rows: dict[str, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> Task:
        """The task as a program's flags describe it. Raises `UserError` for flags that do not fit."""
        own = [field.name for field in dataclasses.fields(cls) if field.init and field.name != "files"]
        return cls(files_of_mode(flags), **{name: flags[name] for name in own})

    @classmethod
    def num_choices_of(cls, flags: Mapping[str, Any]) -> int:
        """Of how many sequences a row consists, for the plan of the memory, which is made before files are read."""
        return 1

    def __post_init__(self) -> None:
        least = 1 + 2 * self.num_texts
        if self.max_seq_length < least:
            room = f"room for [CLS] and, for each of the {self.num_texts} text(s), a token and [SEP]"
            raise UserError(f"max_seq_length={self.max_seq_length}: must be at least {least}, {room}")

    # --- What each task does in its own way

    @abc.abstractmethod
    def read(self, use: str, paths: Sequence[Path]) -> tuple[Any, str]:
        """What the files for a `use` hold, and lines about it. Raises `UserError` if they cannot be used."""

    @abc.abstractmethod
    def rows_of(self, content: Any, tokenizer: Tokenizer, *, show_progress: bool = False) -> TaskRows:
        """Tokenises what `read` has read, or what is typed."""

    @abc.abstractmethod
    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> keras.Model:
        """The encoder, as ``model.bert``, with this task's head."""

    @abc.abstractmethod
    def make_objective(self) -> Any:
        """Like those of `bert_tf.model.losses`."""

    @abc.abstractmethod
    def conclude(self, use: str, outputs: Sequence[np.ndarray]) -> Conclusion:
        """What the model's outputs for ``rows[use]`` say of ``contents[use]``."""

    def fit(self, weights: Weights | None) -> str:
        """Settles what depends on the weights to train from or to predict with, such as the order of labels, once the
        file to train on has been read; returns a line to be shown, or ""."""
        return ""

    def meaning(self) -> dict[str, Any]:
        """What the model's classes mean, for files beside the weights; empty if the head tells it."""
        return {}

    def converse(self, predictor: Predictor) -> None:
        """Answers what is typed; for a task whose --mode may be "interactive"."""
        raise NotImplementedError

    def of_export(self, settings: Mapping[str, Any]) -> Task:
        """The task as an exported model has it; for a task whose --mode may be "sm_predict". `settings`: those that
        `export_settings` gave. Raises `UserError` if they are damaged."""
        raise NotImplementedError

    # --- What is the same in all, as a rule

    @property
    def training_files(self) -> Sequence[Path]:
        return self.files.get(TRAIN, ())

    def prepare(self, run: TaskRun) -> None:
        """Reads all files, so that mistakes show before a training of days, and then makes their rows."""
        with run.workers.keep_alive():
            notes = [self._read(use) for use in self.files if use == TRAIN]
            notes += [self.fit(run.weights), *(self._read(use) for use in self.files if use != TRAIN)]
        for note in filter(None, notes):
            run.say(note)
        for use, paths in self.files.items():
            self.rows[use] = self.make_rows(use, run)
            run.say(run.tokenizer.count_unknown(self.rows[use].tokens).describe(", ".join(map(str, paths))))

    def _read(self, use: str) -> str:
        self.contents[use], note = self.read(use, self.files[use])
        return note

    def make_rows(self, use: str, run: TaskRun) -> Any:
        """The rows of the files for a `use`."""
        with run.workers.keep_alive():
            return self.rows_of(self.contents[use], run.tokenizer, show_progress=run.workers.is_chief)

    def finish(self, predictor: Predictor) -> None:
        """Predicts, scores and writes what the job asks for; called on all ranks, after a training if there is one."""
        scores: dict[str, float] = {}
        for use in self.files:
            if use != TRAIN:
                outputs = predictor.predict(self.rows[use])
                if predictor.workers.is_chief:
                    concluded = self.conclude(use, outputs)
                    predictor.tell(concluded)
                    scores.update(concluded.scores)
        predictor.record(scores)

    @property
    def held_out(self) -> dict[str, Sequence[Path]]:
        """The files that are scored while training."""
        return {use: paths for use, paths in self.files.items() if use.startswith(EVAL)}

    def evaluate(self, predictor: Predictor) -> dict[str, float]:
        """The scores of the `held_out` files, on the chief; called on all ranks. Writes and says nothing."""
        scores: dict[str, float] = {}
        for use in self.held_out:
            outputs = predictor.compute_all(self.rows[use]).outputs
            with predictor.workers.keep_alive():
                if predictor.workers.is_chief:
                    scores.update(self.conclude(use, outputs).scores)
        return scores

    def identity(self) -> dict[str, Any]:
        """Settings of model and rows that must not change within a run."""
        return {**self.meaning(), "max_seq_length": self.max_seq_length}

    def settings(self) -> dict[str, Any]:
        """All settings by their flags' names, for config.json."""
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.init}
        files = {f"{use}_file": ",".join(map(str, paths)) for use, paths in own.pop("files").items()}
        return {"task_name": self.name, **files, **own}

    def export_settings(self) -> dict[str, Any]:
        """What the users of an exported model must know, among it "task", which says how to use it."""
        return {"task": self.name, "max_seq_length": self.max_seq_length, **self.meaning()}

    def companions(self) -> dict[str, str]:
        """Text files, by name, that belong beside the weights."""
        from bert_tf.interchange.labels import TASK_FILE

        meaning = self.meaning()
        return {TASK_FILE: json.dumps(meaning, indent=2) + "\n"} if meaning else {}


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
