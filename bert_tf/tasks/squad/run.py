"""One SQuAD job: reads questions, fine-tunes, predicts and scores, as its settings say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
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
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, describe_empty_questions, read_examples, sound_answers
from bert_tf.tasks.squad.features import Features, FeatureSettings, make_features
from bert_tf.tasks.squad.metrics import score, score_version_2
from bert_tf.text.vocabulary import Tokenizer

SPAN_HEAD = Head("question answering", "cls/squad/output_weights")


@dataclasses.dataclass(frozen=True)
class SquadJob(FinetuningJob):
    """One call of run_squad.py."""

    train_file: str | None  # None: no training
    predict_file: str | None  # None: no prediction
    features: FeatureSettings
    decoding: DecodeSettings
    wants_scores: bool | None  # None: if the file contains answers


class Answerer(NamedTuple):
    """A trained model and its tokenizer."""

    compute: Compute
    tokenizer: Tokenizer
    rows_per_compilation: int | None  # as in `Rows`
    update: int  # number of updates that its weights were trained for


def run_squad(job: SquadJob, workers: Workers) -> bool:
    """Trains, predicts and scores as `job` says. Returns False if a signal or --max_hours stopped the training."""
    run = TaskRun(job, workers, job.features.max_seq_length, predicts_with=None if job.train_file else SPAN_HEAD)
    model = SpanModel(run.bert_config, run.blocks, job.training.seed)
    answer = None
    if job.predict_file:  # read before the training, which may take days, so that mistakes show at once
        questions = workers.run_keeping_alive(lambda: read_questions(job))

        def answer(telemetry: Telemetry, update: int) -> None:
            features = _features(run, job, lambda: questions, is_training=False)
            answerer = make_answerer(run, model, update)
            answer_questions(answerer, questions, features, job, workers, telemetry)

    return run.carry_out(model, _training_task(run, job, model) if job.train_file else None, answer)


def make_answerer(run: TaskRun, model: SpanModel, update: int) -> Answerer:
    return Answerer(compile_model(model), run.tokenizer, rows_per_compilation(model), update)


def read_questions(job: SquadJob) -> list[Example]:
    """The questions to answer. Raises `UserError` if they are to be scored and one has no answers to compare with."""
    questions = _read(job, job.predict_file)
    unknown = next((question for question in questions if question.answers is None), None)
    if job.wants_scores and unknown:
        raise UserError(
            f"{job.predict_file}: question {unknown.question_id!r} has no field 'answers', so its prediction cannot be "
            "scored; pass --noeval for a file without answers"
        )
    return questions


def _read(job: SquadJob, path: str | None) -> list[Example]:
    return read_examples(str(path), version_2_with_negative=job.decoding.version_2_with_negative)


def _training_task(run: TaskRun, job: SquadJob, model: SpanModel) -> Task:
    features = _features(run, job, lambda: _read(job, job.train_file), is_training=True)
    return Task(
        "squad",
        model,
        SpanObjective(),
        features.num_windows,
        features.batch,
        span_flops_per_sequence(run.bert_config, job.features.max_seq_length),
        {**dataclasses.asdict(job.features), "version_2_with_negative": job.decoding.version_2_with_negative},
        [Path(str(job.train_file))],
    )


def _features(run: TaskRun, job: SquadJob, read: Callable[[], list[Example]], *, is_training: bool) -> Features:
    """The windows of the file to train on or to answer, from the run folder's cache if it has them."""
    path = Path(str(job.train_file if is_training else job.predict_file))

    def make() -> Features:
        examples, is_chief = read(), run.workers.is_chief
        if is_training:
            examples, note = sound_answers(examples, path)
        else:
            note = describe_empty_questions(examples, path)
        if note and is_chief:
            print(note, flush=True)
        return make_features(examples, run.tokenizer, job.features, is_training=is_training, show_progress=is_chief)

    check_file(path, NAME_A_FILE)
    features = run.cached(Features, make, path, job.features, job.decoding.version_2_with_negative, is_training)
    if run.workers.is_chief:
        print(run.tokenizer.count_unknown(features.tokens()).describe(path), flush=True)
    return features


def answer_questions(
    answerer: Answerer,
    questions: Sequence[Example],
    features: Features,
    job: SquadJob,
    workers: Workers,
    telemetry: Telemetry,
) -> None:
    """Writes the answers to ``predictions.json``, ``nbest_predictions.json`` and, for version 2.0,
    ``null_odds.json`` in the run folder, and scores them by the official rules if `job` asks for it.

    The scores are printed as one line of JSON, and written to ``eval_results.txt`` and the run's metrics.

    Args:
      features: those of the questions, made for prediction.
    """
    rows = Rows(features.batch, features.num_tokens, job.features.max_seq_length, answerer.rows_per_compilation)
    predicted = predict_rows(answerer.compute, rows, job.predict_batch_size, workers, by_position=True)
    if not workers.is_chief:
        return
    starts, ends = predicted.outputs
    decoded = decode(questions, features, starts, ends, job.decoding, show_progress=True)
    files: dict[str, Any] = {"predictions.json": decoded.predictions, "nbest_predictions.json": decoded.nbest}
    if job.decoding.version_2_with_negative:
        files["null_odds.json"] = decoded.null_odds
    for name, content in files.items():
        write_whole(job.model_dir / name, json.dumps(content, indent=4) + "\n")
    telemetry.note(f"answers to {len(questions):,} questions: {job.model_dir / 'predictions.json'}")
    scores = _score(job, questions, decoded, telemetry)
    for line in predicted.describe_speed():
        telemetry.note(line)
    speed = predicted.speed()
    if scores or speed:
        telemetry.evaluation(answerer.update, **scores, global_step=answerer.update, **speed)


def _score(job: SquadJob, questions: Sequence[Example], decoded: Decoded, telemetry: Telemetry) -> dict[str, float]:
    """The scores; {} if the answers are not scored."""
    holds_answers = all(question.answers is not None for question in questions)
    if job.wants_scores is False or (job.wants_scores is None and not holds_answers):
        telemetry.note("not scored: " + ("--noeval" if holds_answers else "the questions come without answers"))
        return {}
    if job.decoding.version_2_with_negative:
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
