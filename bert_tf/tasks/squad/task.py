"""SQuAD as a task: reads questions, makes windows, scores and writes answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import SPANS
from bert_tf.tasks.squad.decode import Decoded, DecodeSettings, decode
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, describe_empty_questions, read_examples, sound_answers
from bert_tf.tasks.squad.features import FeatureSettings, Windows, make_windows
from bert_tf.tasks.squad.metrics import score, score_version_2
from bert_tf.tasks.task import Head, Task, files_of_mode

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import SpanModel
    from bert_tf.model.losses import SpanObjective
    from bert_tf.tasks.job import TaskRun
    from bert_tf.tasks.predict import Predictor

SPAN_HEAD = Head("question answering", SPANS.variable, outputs=("start_logits", "end_logits"), by_position=True)


@dataclasses.dataclass
class SquadTask(Task):
    """One job of run_squad.py."""

    features: FeatureSettings = dataclasses.field(default_factory=FeatureSettings)
    decoding: DecodeSettings = dataclasses.field(default_factory=DecodeSettings)
    train_file: str | None = None  # None: no training
    predict_file: str | None = None  # None: no prediction
    wants_scores: bool | None = None  # None: if the file contains answers

    name, head = "squad", SPAN_HEAD
    # The questions to answer, and their windows.
    _questions: Sequence[Example] = dataclasses.field(default=(), init=False, repr=False)
    _windows: Windows | None = dataclasses.field(default=None, init=False, repr=False)

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any]) -> SquadTask:
        mode, files = flags["mode"], files_of_mode(flags)
        if mode == "eval" and flags["eval"] is False:
            raise UserError("--mode=eval scores, --noeval does not; choose one of them, or --mode=predict")
        return cls(
            FeatureSettings(**{field.name: flags[field.name] for field in dataclasses.fields(FeatureSettings)}),
            DecodeSettings(**{field.name: flags[field.name] for field in dataclasses.fields(DecodeSettings)}),
            **files,
            wants_scores=True if mode == "eval" else flags["eval"],
        )

    @property
    def max_seq_length(self) -> int:  # type: ignore[override]
        return self.features.max_seq_length

    @property
    def training_files(self) -> Sequence[Path]:
        return [Path(self.train_file)] if self.train_file else []

    def prepare(self, run: TaskRun) -> None:
        if self.predict_file:
            with run.workers.keep_alive():
                self._questions = self.read_questions()
            self._windows = self._cached_windows(run, lambda: list(self._questions), is_training=False)

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> SpanModel:
        from bert_tf.model.heads import SpanModel

        return SpanModel(config, backend, seed)

    def make_objective(self) -> SpanObjective:
        from bert_tf.model.losses import SpanObjective

        return SpanObjective()

    def training_rows(self, run: TaskRun) -> Windows:
        return self._cached_windows(run, lambda: self._read(self.train_file), is_training=True)

    def identity(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.features), "version_2_with_negative": self.decoding.version_2_with_negative}

    def settings(self) -> dict[str, Any]:
        names = ("train_file", "predict_file", "wants_scores")
        files_and_scores = {name: getattr(self, name) for name in names}
        return {**dataclasses.asdict(self.features), **dataclasses.asdict(self.decoding), **files_and_scores}

    def export_settings(self) -> dict[str, Any]:
        return {"task": self.name, **dataclasses.asdict(self.features), **dataclasses.asdict(self.decoding)}

    def other_modes(self) -> Mapping[str, Callable]:
        from bert_tf.tasks.squad import serving

        return {"sm_predict": serving.predict_with_export, "interactive": serving.converse}

    def read_questions(self) -> list[Example]:
        """The questions to answer. Raises `UserError` if they are to be scored and one has no answers to compare."""
        questions = self._read(self.predict_file)
        unknown = next((question for question in questions if question.answers is None), None)
        if self.wants_scores and unknown:
            raise UserError(
                f"{self.predict_file}: question {unknown.question_id!r} has no field 'answers', so its prediction "
                "cannot be scored; pass --noeval for a file without answers"
            )
        return questions

    def _read(self, path: str | None) -> list[Example]:
        return read_examples(str(path), version_2_with_negative=self.decoding.version_2_with_negative)

    def _cached_windows(self, run: TaskRun, read: Callable[[], list[Example]], *, is_training: bool) -> Windows:
        """The windows of the file to train on or to answer, from the run folder's cache if it has them."""
        path = Path(str(self.train_file if is_training else self.predict_file))

        def make() -> Windows:
            examples = read()
            if is_training:
                examples, note = sound_answers(examples, path)
            else:
                note = describe_empty_questions(examples, path)
            if note:
                run.say(note)
            is_chief = run.workers.is_chief
            return make_windows(examples, run.tokenizer, self.features, is_training=is_training, show_progress=is_chief)

        check_file(path, NAME_A_FILE)
        version_2 = self.decoding.version_2_with_negative
        windows = run.cached(Windows, make, path, self.features, version_2, is_training)
        run.say(run.tokenizer.count_unknown(windows.tokens()).describe(path))
        return windows

    def finish(self, predictor: Predictor) -> None:
        if self._windows:
            self.answer(predictor, self._questions, self._windows)

    def answer(self, predictor: Predictor, questions: Sequence[Example], windows: Windows) -> None:
        """Writes the answers to ``predictions.json``, ``nbest_predictions.json`` and, for version 2.0,
        ``null_odds.json`` in the run folder, and scores them by the official rules if the job asks for it.

        The scores are printed as one line of JSON, and written to ``eval_results.txt`` and the run's metrics.

        Args:
          windows: those of the questions, made for prediction.
        """
        predicted = predictor.predict(windows, by_position=True)
        if not predictor.workers.is_chief:
            return
        starts, ends = predicted.outputs
        decoded = decode(questions, windows, starts, ends, self.decoding, show_progress=True)
        files: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
        if self.decoding.version_2_with_negative:
            files["null_odds.json"] = decoded.null_odds
        paths = [predictor.write(name, json.dumps(content, indent=4) + "\n") for name, content in files.items()]
        predictor.telemetry.note(f"answers to {len(questions):,} questions: {paths[0]}")
        scores, speed = self._score(predictor, questions, decoded), predicted.speed()
        if scores or speed:
            predictor.telemetry.evaluation(predictor.update, **scores, global_step=predictor.update, **speed)

    def _score(self, predictor: Predictor, questions: Sequence[Example], decoded: Decoded) -> dict[str, float]:
        """The scores; {} if the answers are not scored."""
        note = predictor.telemetry.note
        holds_answers = all(question.answers is not None for question in questions)
        if self.wants_scores is False or (self.wants_scores is None and not holds_answers):
            note("not scored: " + ("--noeval" if holds_answers else "the questions come without answers"))
            return {}
        if self.decoding.version_2_with_negative:
            scores = score_version_2(questions, decoded.predictions, decoded.null_odds)
            note(
                f"best null threshold: {scores['best_f1_thresh']} (F1 {scores['best_f1']:.3f}); use it with "
                "--null_score_diff_threshold"
            )
        else:
            scores = score(questions, decoded.predictions)
        note(json.dumps(scores))
        predictor.write_scores(scores)
        return scores
