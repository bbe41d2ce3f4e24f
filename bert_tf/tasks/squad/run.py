"""One SQuAD job: reads questions, fine-tunes, predicts and scores, as its mode says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.model.heads import SpanModel
from bert_tf.model.losses import SpanObjective
from bert_tf.ranks.workers import Workers
from bert_tf.run.flops import span_flops_per_sequence
from bert_tf.run.telemetry import Telemetry
from bert_tf.tasks.finetuning import Task
from bert_tf.tasks.job import FinetuningJob, TaskRun
from bert_tf.tasks.predict import Rows, compile_model, predict_rows, rows_per_compilation
from bert_tf.tasks.squad.answers import SPAN_HEAD, AnswerSheet, answer_questions
from bert_tf.tasks.squad.decode import DecodeSettings
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, read_examples, sound_answers
from bert_tf.tasks.squad.features import Features, FeatureSettings, make_features
from bert_tf.tasks.squad.metrics import check_answers_known


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


def run_squad(job: SquadJob, workers: Workers) -> bool:
    """Trains, predicts and scores as `job` says. Returns False when a signal stopped the training."""
    run = TaskRun(job, workers, job.features.max_seq_length, trained=None if job.train_file else SPAN_HEAD)
    model = SpanModel(run.bert_config, run.blocks, job.training.seed)
    answer = None
    if job.predict_file:  # read before the training, which may take days, not after it
        predict_file = job.predict_file
        questions = workers.run_keeping_alive(lambda: _read(job, predict_file))
        if job.wants_scores:
            check_answers_known(questions)

        def answer(telemetry: Telemetry, update: int) -> None:
            features = _features(run, job, predict_file, lambda: questions, is_training=False)
            rows = Rows(features.batch, features.num_tokens, job.features.max_seq_length, rows_per_compilation(model))
            predicted = predict_rows(compile_model(model), rows, job.predict_batch_size, workers, by_position=True)
            if workers.is_chief:
                sheet = AnswerSheet(questions, features, run.tokenizer, job.decoding, job.wants_scores, job.model_dir)
                answer_questions(sheet, predicted, telemetry, update)

    return run.carry_out(model, _training_task(run, job, model) if job.train_file else None, answer)


def _read(job: SquadJob, path: str) -> list[Example]:
    return read_examples(path, version_2_with_negative=job.decoding.version_2_with_negative)


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
        return make_features(
            examples, run.tokenizer, job.features, is_training=is_training, show_progress=run.workers.is_chief
        )

    check_file(Path(path), NAME_A_FILE)
    version_2 = job.decoding.version_2_with_negative
    return run.cached(Features, make, Path(path), job.features, version_2, is_training)
