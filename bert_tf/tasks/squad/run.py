"""One SQuAD job: reads questions, fine-tunes, predicts and scores, as its mode says."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.model.heads import SpanModel
from bert_tf.model.losses import SpanObjective
from bert_tf.ranks.workers import Workers
from bert_tf.run.flops import span_flops_per_sequence
from bert_tf.run.run_folder import write_whole
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.finetuning import Task
from bert_tf.tasks.job import FinetuningJob, Head, TaskRun
from bert_tf.tasks.predict import Compute, Rows, compile_model, predict_rows, rows_per_compilation
from bert_tf.tasks.squad.decode import Decoded, DecodeSettings, decode
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, read_examples, sound_answers
from bert_tf.tasks.squad.features import Features, FeatureSettings, make_features
from bert_tf.tasks.squad.metrics import check_answers_known, score, score_version_2
from bert_tf.text.wordpiece import FullTokenizer

SPAN_HEAD = Head("question answering", "cls/squad/output_weights")


@dataclasses.dataclass(frozen=True)
class SquadJob(FinetuningJob):
    """One call of run_squad.py."""

    train_file: str | None  # None: no training
    predict_file: str | None  # None: no prediction
    features: FeatureSettings
    decoding: DecodeSettings
    wants_scores: bool | None  # None: if the file holds answers

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wants_scores and not self.predict_file:
            raise UserError("--eval scores predictions, but no --predict_file is given")


class Answerer(NamedTuple):
    """A trained model, and how texts become its inputs and its logits answers."""

    compute: Compute
    tokenizer: FullTokenizer
    features: FeatureSettings
    decoding: DecodeSettings
    rows_per_compilation: int | None  # as in `Rows`
    update: int  # its weights are those after so many updates


def run_squad(job: SquadJob, workers: Workers) -> bool:
    """Trains, predicts and scores as `job` says. Returns False when a signal stopped the training."""
    run = TaskRun(job, workers, job.features.max_seq_length, predicts_with=None if job.train_file else SPAN_HEAD)
    model = SpanModel(run.bert_config, run.blocks, job.training.seed)
    answer = None
    if job.predict_file:  # read before the training, which may take days, not after it
        predict_file = job.predict_file
        questions = workers.run_keeping_alive(lambda: _read(job, predict_file))
        if job.wants_scores:
            with _naming(predict_file):
                check_answers_known(questions)

        def answer(telemetry: Telemetry, update: int) -> None:
            features = _features(run, job, predict_file, lambda: questions, is_training=False)
            answerer = make_answerer(run, job, model, update)
            answer_questions(answerer, questions, features, job, workers, telemetry)

    return run.carry_out(model, _training_task(run, job, model) if job.train_file else None, answer)


def make_answerer(run: TaskRun, job: SquadJob, model: SpanModel, update: int) -> Answerer:
    compilation = rows_per_compilation(model)
    return Answerer(compile_model(model), run.tokenizer, job.features, job.decoding, compilation, update)


def _read(job: SquadJob, path: str) -> list[Example]:
    return read_examples(path, version_2_with_negative=job.decoding.version_2_with_negative)


@contextlib.contextmanager
def _naming(path: str) -> Iterator[None]:
    """Puts the file before the question that a `UserError` names."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _training_task(run: TaskRun, job: SquadJob, model: SpanModel) -> Task:
    path = str(job.train_file)
    features = _features(run, job, path, lambda: _read(job, path), is_training=True)
    return Task(
        "squad",
        model,
        SpanObjective(),
        features.num_windows,
        features.batch,
        span_flops_per_sequence(run.bert_config, job.features.max_seq_length),
        {**dataclasses.asdict(job.features), "version_2_with_negative": job.decoding.version_2_with_negative},
        [Path(path)],
    )


def _features(
    run: TaskRun, job: SquadJob, path: str, read: Callable[[], list[Example]], *, is_training: bool
) -> Features:
    """Windows of a SQuAD file, from the run folder's cache where it has them."""

    def make() -> Features:
        examples = read()
        if is_training:
            examples, note = sound_answers(examples, path)
            if note and run.workers.is_chief:
                print(note, flush=True)
        is_shown = run.workers.is_chief
        with _naming(path):
            return make_features(examples, run.tokenizer, job.features, is_training=is_training, show_progress=is_shown)

    check_file(Path(path), NAME_A_FILE)
    version_2 = job.decoding.version_2_with_negative
    return run.cached(Features, make, Path(path), job.features, version_2, is_training)


def answer_questions(
    answerer: Answerer,
    questions: Sequence[Example],
    features: Features,
    job: SquadJob,
    workers: Workers,
    telemetry: Telemetry,
) -> None:
    """Writes the answers into ``predictions.json``, ``nbest_predictions.json`` and, for version 2.0,
    ``null_odds.json`` of the run folder; scores them by the official rules where `job` wants that.

    The scores are printed as one line of JSON, and written to ``eval_results.txt`` and the run's metrics.

    Args:
      features: of the questions, made for prediction.
    """
    rows = Rows(features.batch, features.num_tokens, answerer.features.max_seq_length, answerer.rows_per_compilation)
    predicted = predict_rows(answerer.compute, rows, job.predict_batch_size, workers, by_position=True)
    if not workers.is_chief:
        return
    decoding, (starts, ends) = answerer.decoding, predicted.outputs
    decoded = decode(questions, features, starts, ends, answerer.tokenizer, decoding, show_progress=True)
    files: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
    if decoding.version_2_with_negative:
        files["null_odds.json"] = decoded.null_odds
    for name, content in files.items():
        write_whole(job.model_dir / name, json.dumps(content, indent=4) + "\n")
    telemetry.note(f"answers to {len(questions):,} questions: {job.model_dir / 'predictions.json'}")
    scores = _score(job, questions, decoded, decoding, telemetry)
    for line in predicted.describe_speed():
        telemetry.note(line)
    speed = predicted.speed()
    if scores or speed:
        telemetry.evaluation(answerer.update, **scores, global_step=answerer.update, **speed)


def _score(
    job: SquadJob, questions: Sequence[Example], decoded: Decoded, decoding: DecodeSettings, telemetry: Telemetry
) -> dict[str, float]:
    """The scores, {} where there are none."""
    holds_answers = all(question.answers is not None for question in questions)
    if job.wants_scores is False or (job.wants_scores is None and not holds_answers):
        telemetry.note("not scored: " + ("--noeval" if holds_answers else "the questions come without answers"))
        return {}
    if decoding.version_2_with_negative:
        scores = score_version_2(questions, decoded.predictions, decoded.null_odds)
        telemetry.note(
            f"best null threshold: {scores['best_f1_thresh']} (F1 {scores['best_f1']:.3f}); use it with "
            "--null_score_diff_threshold"
        )
    else:
        scores = score(questions, decoded.predictions)
    telemetry.note(json.dumps(scores))
    write_whole(job.model_dir / "eval_results.txt", "".join(f"{name} = {value}\n" for name, value in scores.items()))
    return scores
