"""Multiple choice as a task: reads questions, chooses, scores and writes what it chose."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import numpy as np

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import CHOICES
from bert_tf.tasks.choices.read import Questions, read_questions
from bert_tf.tasks.choices.rows import ChoiceRows, make_choice_rows
from bert_tf.tasks.scores import mean_loss, probabilities
from bert_tf.tasks.task import Head, Task, files_of_mode

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import ChoiceModel
    from bert_tf.model.losses import ClassificationObjective
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor

PREDICTIONS = "predictions.tsv"
_SWAG_CHOICES = 4


class _Prepared(NamedTuple):
    questions: Questions
    rows: ChoiceRows


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
    _training: _Prepared | None = dataclasses.field(default=None, init=False, repr=False)
    _prediction: _Prepared | None = dataclasses.field(default=None, init=False, repr=False)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> ChoiceTask:
        train_file, predict_file = (Path(path) if path else None for path in files_of_mode(flags).values())
        needs_scores = flags["mode"] in ("eval", "train_and_eval")
        return cls(train_file, predict_file, flags["max_seq_length"], flags["max_bad_records"], needs_scores)

    @classmethod
    def num_choices_of(cls, flags: Mapping[str, Any]) -> int:
        if not flags["train_file"]:
            return _SWAG_CHOICES
        most = flags["max_bad_records"]
        return read_questions(Path(flags["train_file"]), needs_labels=True, max_bad_records=most, limit=1).num_choices

    @property
    def training_files(self) -> Sequence[Path]:
        return [self.train_file] if self.train_file else []

    def prepare(self, run: TaskRun) -> None:
        """Reads all files before the first text is tokenised."""
        with run.workers.keep_alive():
            read = (self._read(self.train_file, True), self._read(self.predict_file, self.needs_scores))
        for questions in filter(None, read):
            run.say(questions.describe())
        with run.workers.keep_alive():
            self._training, self._prediction = (self._make_rows(run, each) if each else None for each in read)

    def _read(self, path: Path | None, needs_labels: bool) -> Questions | None:
        if path is None:
            return None
        return read_questions(path, needs_labels=needs_labels, max_bad_records=self.max_bad_records)

    def _make_rows(self, run: TaskRun, read: Questions) -> _Prepared:
        is_chief = run.workers.is_chief
        rows = make_choice_rows(read.questions, run.tokenizer, self.max_seq_length, show_progress=is_chief)
        run.say(run.tokenizer.count_unknown(rows.sequences.ids_T).describe(read.path))
        return _Prepared(read, rows)

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> ChoiceModel:
        from bert_tf.model.heads import ChoiceModel

        return ChoiceModel(config, backend, seed)

    def make_objective(self) -> ClassificationObjective:
        from bert_tf.model.losses import ClassificationObjective

        return ClassificationObjective()

    def training_rows(self, run: TaskRun) -> ChoiceRows:
        assert self._training
        return self._training.rows

    def settings(self) -> dict[str, Any]:
        files = {name: path and str(path) for name, path in vars(self).items() if name.endswith("_file")}
        num_choices = {"num_choices": self._training.rows.num_choices} if self._training else {}
        return {**files, "max_seq_length": self.max_seq_length, "max_bad_records": self.max_bad_records, **num_choices}

    def export_settings(self) -> dict[str, Any]:
        return {"task": self.name, "max_seq_length": self.max_seq_length}

    def other_modes(self) -> Mapping[str, Callable]:
        from bert_tf.tasks.choices import serving

        return {"interactive": serving.converse}

    def finish(self, predictor: Predictor) -> None:
        """Writes a line for each question, with the probabilities of its choices, and the scores."""
        if not self._prediction:
            return
        labels_F = self._prediction.rows.labels_F
        predicted = predictor.predict(self._prediction.rows, by_position=False)
        if not predictor.workers.is_chief:
            return
        [scores_FxN] = predicted.outputs
        path = predictor.write(PREDICTIONS, "".join(_prediction_lines(scores_FxN, labels_F)))
        predictor.telemetry.note(f"choices for {len(scores_FxN):,} questions: {path}")
        scores: dict[str, float] = {}
        if labels_F is None:
            predictor.telemetry.note("not scored: the right choices are not known")
        else:
            accuracy = float((scores_FxN.argmax(axis=1) == labels_F).mean())
            scores = {
                "accuracy": accuracy,
                "eval_loss": mean_loss(scores_FxN, labels_F),
                "global_step": predictor.update,
            }
            predictor.write_scores(scores)
        if scores or predicted.batch_secs:
            predictor.telemetry.evaluation(predictor.update, **scores, **predicted.speed())


def _prediction_lines(scores_FxN: np.ndarray, labels_F: np.ndarray | None) -> Iterator[str]:
    """A header, and for each question its number, the choice, the right one if known, and each one's probability."""
    known = ["label"] if labels_F is not None else []
    yield "\t".join(["index", "prediction", *known, *map(str, range(scores_FxN.shape[1]))]) + "\n"
    for number, values_N in enumerate(probabilities(scores_FxN)):
        right = [labels_F[number]] if labels_F is not None else []
        shown = [number, values_N.argmax(), *right, *(f"{value:.6f}" for value in values_N)]
        yield "\t".join(map(str, shown)) + "\n"
