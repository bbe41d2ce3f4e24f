"""One SQuAD job: reads questions, fine-tunes, predicts and scores, as its mode says."""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.config import BertConfig, FinetuningConfig
from bert_tf.interchange.initialise import choose_config, choose_vocabulary, find_weights, initialise_from
from bert_tf.model.heads import SpanModel
from bert_tf.model.losses import SpanObjective
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder
from bert_tf.run.flops import span_flops_per_sequence
from bert_tf.run.run_folder import RunFolder, provenance
from bert_tf.run.telemetry import DONE, Telemetry
from bert_tf.tasks.finetuning import Task, finetune
from bert_tf.tasks.squad.answers import AnswerSheet, answer_questions, find_span_weights, load_span_weights
from bert_tf.tasks.squad.decode import DecodeSettings
from bert_tf.tasks.squad.examples import NAME_A_FILE, Example, check_answers, read_examples
from bert_tf.tasks.squad.features import Features, FeatureSettings, cached_features, content_key, make_features
from bert_tf.tasks.squad.metrics import check_answers_known
from bert_tf.text.vocabulary import WORD_START, check_casing, load_vocab
from bert_tf.text.wordpiece import FullTokenizer
from bert_tf.training.loop import Run, describe_devices, make_blocks, write_report


@dataclasses.dataclass(frozen=True)
class SquadJob:
    """One call of run_squad.py, its values checked where they are used."""

    model_dir: Path
    train_file: str | None  # None: no training
    predict_file: str | None  # None: no prediction
    init_checkpoint: str | None
    bert_config_file: str | None  # None: beside the checkpoint
    vocab_file: str | None  # None: beside the checkpoint
    training: FinetuningConfig
    features: FeatureSettings
    decoding: DecodeSettings
    predict_batch_size: int
    wants_scores: bool | None
    dllog_path: str | None
    continue_with_changes: bool

    def __post_init__(self) -> None:
        if self.predict_batch_size < 1:
            raise UserError(f"predict_batch_size={self.predict_batch_size}: must be at least 1")
        if self.wants_scores and not self.predict_file:
            raise UserError("--eval scores predictions, but no --predict_file is given")


class _SquadRun:
    """Loads what a job needs, then trains and predicts."""

    def __init__(self, job: SquadJob, workers: Workers):
        self.job, self.workers = job, workers
        # Rank 0 locks before anything is written. What it finds wrong ends all ranks.
        self.folder = RunFolder(job.model_dir) if workers.is_chief else None
        self.weights = None
        if not job.train_file:
            self.weights = workers.run_keeping_alive(lambda: find_span_weights(job.model_dir, job.init_checkpoint))
        self.bert_config, self.vocab_file = workers.run_keeping_alive(self._find_model_files)
        self.tokenizer = FullTokenizer(str(self.vocab_file), do_lower_case=job.decoding.do_lower_case)
        self.model = SpanModel(self.bert_config, make_blocks(job.training), job.training.seed)

    def _find_model_files(self) -> tuple[BertConfig, Path]:
        """The model's shape and its vocabulary, checked against each other and the flags."""
        job, weights = self.job, self.weights
        if not weights and job.init_checkpoint:
            weights = find_weights(job.init_checkpoint)
        config, vocab_file = choose_config(job.bert_config_file, weights), choose_vocabulary(job.vocab_file, weights)
        vocab = load_vocab(vocab_file)
        if sum(piece.startswith(WORD_START) for piece in vocab) > 0.1 * len(vocab):
            raise UserError(
                f"{vocab_file} holds SentencePiece's pieces; finding answers in a text needs a model with "
                "a WordPiece vocabulary"
            )
        if len(vocab) != config.vocab_size:
            raise UserError(
                f"{vocab_file} has {len(vocab)} pieces, but the model's configuration says vocab_size="
                f"{config.vocab_size}; use the vocabulary the model was trained with"
            )
        if job.features.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"--max_seq_length={job.features.max_seq_length} is more than the model's "
                f"max_position_embeddings={config.max_position_embeddings}"
            )
        check_casing(vocab, job.decoding.do_lower_case, vocab_file)
        return config, vocab_file

    def read(self, path: str) -> list[Example]:
        return read_examples(path, version_2_with_negative=self.job.decoding.version_2_with_negative)

    def features(self, path: str, read: Callable[[], list[Example]], is_training: bool) -> Features:
        """Windows of a SQuAD file, from the run folder's cache where it has them."""
        job, is_chief = self.job, self.workers.is_chief

        def make() -> Features:
            examples = read()
            if is_training:
                check_answers(examples, path)
            return make_features(
                examples, self.tokenizer, job.features, is_training=is_training, show_progress=is_chief
            )

        check_file(Path(path), NAME_A_FILE)
        key = content_key(
            Path(path),
            self.vocab_file,
            job.features,
            job.decoding.do_lower_case,
            job.decoding.version_2_with_negative,
            is_training,
        )
        cache = job.model_dir / "features" / f"{key}.npz"
        load = functools.partial(cached_features, cache, make, write=is_chief)
        made = self.workers.run_keeping_alive(load if is_chief else lambda: None)
        return self.workers.run_keeping_alive(
            load if made is None else lambda: made
        )  # others find the chief's in the cache

    def train(self, telemetry: Telemetry, path: str, features: Features) -> bool:
        job, config = self.job, self.job.training
        identity = {
            "task": "squad",
            "bert_config": self.bert_config.to_dict(),
            "init_checkpoint": job.init_checkpoint,
            "data": content_key(Path(path)),
            "vocabulary": content_key(self.vocab_file),
            **dataclasses.asdict(job.features),
            "do_lower_case": job.decoding.do_lower_case,
            "version_2_with_negative": job.decoding.version_2_with_negative,
        }
        companions = {
            "bert_config.json": self.bert_config.to_json(),
            "vocab.txt": self.vocab_file.read_text(encoding="utf-8"),
        }
        task = Task(
            "squad",
            self.model,
            SpanObjective(),
            features.num_windows,
            features.batch,
            span_flops_per_sequence(self.bert_config, job.features.max_seq_length),
            identity,
        )
        checkpoints = CheckpointFolder(
            job.model_dir / "checkpoints",
            keep=config.keep_checkpoints,
            vocab_size=self.bert_config.vocab_size,
            companions=companions,
        )
        whole_identity = {**config.identity(), **identity}

        def bind() -> None:
            if self.folder:
                self.folder.bind(whole_identity, self._record(features), companions, job.continue_with_changes)

        def initialise() -> None:
            initialise_from(job.init_checkpoint, self.model, self.bert_config.vocab_size, telemetry)
            bind()  # only now, when no setting can be refused any more

        if self.folder:
            self.folder.check(whole_identity, job.continue_with_changes)
        if checkpoints.list():
            bind()
        run = Run(self.workers, checkpoints, telemetry, after_save=lambda: write_report(job.model_dir, telemetry))
        return finetune(config, task, run, initialise)

    def predict(self, telemetry: Telemetry, path: str, examples: list[Example], update: int) -> None:
        job = self.job
        features = self.features(path, lambda: examples, is_training=False)
        sheet = AnswerSheet(examples, features, self.tokenizer, job.decoding, job.wants_scores, job.predict_batch_size)
        answer_questions(self.model, sheet, job.model_dir, self.workers, telemetry, update)

    def _record(self, features: Features) -> dict[str, Any]:
        """What config.json keeps beside the run's identity."""
        config = self.job.training
        settings = {
            **dataclasses.asdict(config),
            **dataclasses.asdict(self.job.features),
            **dataclasses.asdict(self.job.decoding),
        }
        data = {"files": 1, "first_file": self.job.train_file, "instances": features.num_windows}
        return {
            "settings": settings,
            "bert_config": self.bert_config.to_dict(),
            "data": data,
            "num_ranks": config.num_ranks,
            "global_batch_size": config.global_batch_size,
            **describe_devices(),
            **provenance(),
        }


def run_squad(job: SquadJob, workers: Workers) -> bool:
    """Trains, predicts and scores as `job` says. Returns False when a signal stopped the training."""
    run = _SquadRun(job, workers)
    questions: list[Example] = []
    if job.predict_file:  # read before the training, which may take days, not after it
        predict_file = job.predict_file
        questions = workers.run_keeping_alive(lambda: run.read(predict_file))
        if job.wants_scores:
            check_answers_known(questions)
    num_updates = 0
    if job.train_file:
        path = job.train_file
        features = run.features(path, lambda: run.read(path), is_training=True)
        num_updates = job.training.num_updates(features.num_windows)
    with Telemetry(
        job.model_dir, is_chief=workers.is_chief, total_updates=num_updates, dllog_path=job.dllog_path
    ) as telemetry:
        finished, started = True, time.monotonic()
        if job.train_file:
            finished = run.train(telemetry, job.train_file, features)
        elif run.weights:
            num_updates = load_span_weights(run.weights, run.model, run.bert_config.vocab_size)
            telemetry.note(f"predicting with {run.weights.source}")
        training_secs = time.monotonic() - started
        if finished and job.predict_file:
            run.predict(telemetry, job.predict_file, questions, num_updates)
        if job.train_file:
            telemetry.end(DONE if finished else "signal", total_secs=training_secs)
            if workers.is_chief:
                write_report(job.model_dir, telemetry)
    return finished
