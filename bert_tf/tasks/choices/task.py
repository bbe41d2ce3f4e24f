"""Multiple choice as a task: reads questions, chooses, scores and writes what it chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import CHOICES
from bert_tf.tasks.choices.read import read_questions
from bert_tf.tasks.choices.rows import ChoiceRows, make_choice_rows
from bert_tf.tasks.scores import mean_loss, probabilities
from bert_tf.tasks.task import Head, Task, files_of_mode

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import ChoiceModel
    from bert_tf.model.losses import ClassificationObjective
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor

_SWAG_CHOICES = 4


@dataclasses.dataclass
class ChoiceTask(Task):
    """One job of run_swag.py."""

    train_file: Path | None = None  # None: no training
    predict_file: Path | None = None  # None: no prediction
    max_seq_length: int = 128
    max_bad_records: int = 0
    needs_scores: bool = False  # whether the right choices of `predict_file` must be known

    name = "choices"
    head = Head("multiple choice", CHOICES.variable, outputs=("score",), uses_pooler=True)
    _rows: dict[Path, ChoiceRows] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> ChoiceTask:
        train_file, predict_file = (Path(path) if path else None for path in files_of_mode(flags).values())
        needs_scores = flags["mode"] in ("eval", "train_and_eval")
        return cls(train_file, predict_file, flags["max_seq_length"], flags["max_bad_records"], needs_scores)

    @classmethod
    def num_choices_of(cls, flags: Mapping[str, Any]) -> int:
        if not flags["train_file"]:
            return _SWAG_CHOICES
        options = {"max_bad_records": flags["max_bad_records"], "limit": 1}
        return len(read_questions(Path(flags["train_file"]), needs_labels=True, **options)[0][0].choices)

    @property
    def training_files(self) -> Sequence[Path]:
        return [self.train_file] if self.train_file else []

    def prepare(self, run: TaskRun) -> None:
        """Reads all files before the first text is tokenised."""
        needs_labels = {path: self.needs_scores for path in [self.predict_file] if path}
        needs_labels.update(dict.fromkeys(self.training_files, True))
        with run.workers.keep_alive():
            read = {
                path: read_questions(path, needs_labels=needs, max_bad_records=self.max_bad_records)
                for path, needs in needs_labels.items()
            }
        for path, (questions, note) in read.items():
            run.say(note)
            with run.workers.keep_alive():
                is_chief = run.workers.is_chief
                rows = make_choice_rows(questions, run.tokenizer, self.max_seq_length, show_progress=is_chief)
            run.say(run.tokenizer.count_unknown(rows.sequences.ids_T).describe(path))
            self._rows[path] = rows

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> ChoiceModel:
        from bert_tf.model.heads import ChoiceModel

        return ChoiceModel(config, backend, seed)

    def make_objective(self) -> ClassificationObjective:
        from bert_tf.model.losses import ClassificationObjective

        return ClassificationObjective()

    def training_rows(self, run: TaskRun) -> ChoiceRows:
        assert self.train_file
        return self._rows[self.train_file]

    def settings(self) -> dict[str, Any]:
        files = {"train_file": self.train_file, "predict_file": self.predict_file}
        numbers = {"max_seq_length": self.max_seq_length, "max_bad_records": self.max_bad_records}
        if self.train_file:
            numbers["num_choices"] = self._rows[self.train_file].num_choices
        return {**{name: path and str(path) for name, path in files.items()}, **numbers}

    def other_modes(self) -> Mapping[str, Callable]:
        from bert_tf.tasks.choices import serving

        return {"interactive": serving.converse}

    def finish(self, predictor: Predictor) -> None:
        """Writes a line for each question, with the probabilities of its choices, and the scores."""
        if not self.predict_file:
            return
        rows = self._rows[self.predict_file]
        predicted = predictor.predict(rows, by_position=False)
        [scores_FxN] = predicted.outputs
        path = predictor.write("predictions.tsv", "".join(_prediction_lines(scores_FxN, rows.labels_F)))
        predictor.telemetry.note(f"choices for {len(scores_FxN):,} questions: {path}")
        if rows.labels_F is None:
            predictor.telemetry.note("not scored: not all right choices are known")
            return
        accuracy = float((scores_FxN.argmax(axis=1) == rows.labels_F).mean())
        scores = {"accuracy": accuracy, "eval_loss": mean_loss(scores_FxN, rows.labels_F)}
        predictor.write_scores({**scores, "global_step": predictor.update})
        predictor.telemetry.evaluation(predictor.update, **scores, global_step=predictor.update, **predicted.speed())


def _prediction_lines(scores_FxN: np.ndarray, labels_F: np.ndarray | None) -> Iterator[str]:
    """A header, and for each question its number, the choice, the right one if known, and each one's probability."""
    right = [] if labels_F is None else [labels_F]
    columns = [np.arange(len(scores_FxN)), scores_FxN.argmax(axis=1), *right]
    header = ["index", "prediction", "label"][: len(columns)]
    yield "\t".join([*header, *map(str, range(scores_FxN.shape[1]))]) + "\n"
    for *numbers, values_N in zip(*columns, probabilities(scores_FxN)):
        yield "\t".join([*map(str, numbers), *(f"{value:.6f}" for value in values_N)]) + "\n"
