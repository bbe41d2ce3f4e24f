"""Fine-tuning: a task's rows in memory -> updates -> checkpoints, and SQuAD as such a task.

The order of rows follows the rule of pre-training: position p of the order lies in epoch p // n,
and an epoch is a permutation of the n rows drawn from (seed, epoch) alone. Update u takes positions
[u*G, (u+1)*G), whatever epoch borders lie between, so every update is full, and a run of E epochs
has int(n * E / G) updates. Dropout follows the row's number in the update (`randomness`). So the
ranks, the split into micro-batches and restarts change nothing.

Shape letters: A micro-batches of an update, B micro-batch, G global batch, S sequence.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.checkpoint import CheckpointFolder, resolve
from bert_tf.config import PRECISIONS, XLA_SCOPES, BertConfig, check_choices, check_counts
from bert_tf.data_order import GlobalOrder
from bert_tf.distributed import Workers
from bert_tf.errors import UserError
from bert_tf.inference import AnswerSheet, answer_questions, find_span_weights, load_span_weights
from bert_tf.input_pipeline import Batch
from bert_tf.losses import SpanObjective
from bert_tf.memory import Workload
from bert_tf.memory_trial import fit_into_memory
from bert_tf.model import SpanModel
from bert_tf.optimization import LossScale, make_optimizer
from bert_tf.run_folder import RunFolder, provenance
from bert_tf.squad.decode import DecodeSettings
from bert_tf.squad.examples import Example, check_answers, read_examples
from bert_tf.squad.features import Features, FeatureSettings, cached_features, content_key, make_features
from bert_tf.squad.metrics import check_answers_known
from bert_tf.telemetry import DONE, Telemetry, peak_tflops, span_flops_per_sequence
from bert_tf.tokenization import WORD_START, FullTokenizer, check_casing, load_vocab
from bert_tf.train_step import TrainStep
from bert_tf.training import (
    LoopSettings,
    TrainState,
    describe_devices,
    initialise_from,
    make_blocks,
    run_updates,
    start_or_resume,
    write_report,
)


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """How a task is trained. Batch sizes and the learning rate are per rank, as they are typed."""

    learning_rate: float
    num_train_epochs: float
    warmup_proportion: float
    train_batch_size: int  # micro-batch of one rank
    num_accumulation_steps: int
    num_ranks: int
    precision: str = "fp32"
    xla_scope: str = "off"
    recompute: bool = False  # layers are computed again in the backward pass, not kept
    may_split_more: bool = False  # the first updates halve a micro-batch that does not fit
    seed: int = 12345
    save_checkpoint_steps: int = 1000
    display_loss_steps: int = 10
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        check_counts(
            self,
            "train_batch_size",
            "num_accumulation_steps",
            "num_ranks",
            "save_checkpoint_steps",
            "display_loss_steps",
            "keep_checkpoints",
        )
        for name in ("learning_rate", "num_train_epochs"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name}={getattr(self, name)}: must be positive")
        if not 0 <= self.warmup_proportion < 1:
            raise UserError(f"warmup_proportion={self.warmup_proportion}: must lie in [0, 1)")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: must not be negative")
        check_choices(self, precision=PRECISIONS, xla_scope=XLA_SCOPES)

    @property
    def global_batch_size(self) -> int:
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def effective_learning_rate(self) -> float:
        """The peak rate really used: the flag is per rank, in fine-tuning too."""
        return self.learning_rate * self.num_ranks

    def num_updates(self, num_rows: int) -> int:
        """Updates in all epochs. Raises `UserError` where the rows do not fill one."""
        # A hair more, so that 100 rows * 0.29 epochs, which floating point makes 28.999..., are 29.
        updates = int(num_rows * self.num_train_epochs / self.global_batch_size + 1e-9)
        if updates < 1:
            raise UserError(
                f"{num_rows} rows x {self.num_train_epochs:g} epochs do not fill one update of "
                f"{self.global_batch_size} rows (train_batch_size {self.train_batch_size} x num_accumulation_steps "
                f"{self.num_accumulation_steps} x {self.num_ranks} rank(s)); make one of these smaller or "
                "num_train_epochs larger"
            )
        return updates

    def identity(self) -> dict[str, Any]:
        """The settings that make a run this run; the others may change when it is resumed."""
        return {
            "num_train_epochs": self.num_train_epochs,
            "warmup_proportion": self.warmup_proportion,
            "effective_learning_rate": self.effective_learning_rate,
            "global_batch_size": self.global_batch_size,
            "precision": self.precision,
            "seed": self.seed,
        }


class Task(NamedTuple):
    """What is fine-tuned: head, loss, rows."""

    name: str
    model: tf.keras.Model
    objective: Any  # of bert_tf.losses
    num_rows: int
    batch: Callable[[np.ndarray], dict[str, np.ndarray]]  # row numbers [...] -> inputs and targets [..., S] or [...]
    flops_per_sequence: float
    identity: Mapping[str, Any]  # what of model and data must not change within a run


def training_rows(order: GlobalOrder, batch_number: int, config: FinetuningConfig, rank: int) -> np.ndarray:
    """int64 [A, B]: the rows that one rank contributes to one update."""
    shape = (config.num_accumulation_steps, config.train_batch_size)
    start = (batch_number * config.num_ranks + rank) * shape[0] * shape[1]
    return np.array([run.file for run in order.runs(start, shape[0] * shape[1])]).reshape(shape)


def _batches(task: Task, config: FinetuningConfig, rank: int, batch_number: int) -> Iterator[Batch]:
    """One rank's features [A, B, ...] of update `batch_number` and all that follow, without end."""
    # The order moves blocks within files; with one record in every file it permutes single rows, as
    # it must here, where neighbours are questions to the same text.
    order = GlobalOrder([1] * task.num_rows, config.seed)
    weights = tf.ones([config.num_accumulation_steps, config.train_batch_size])
    while True:
        features = task.batch(training_rows(order, batch_number, config, rank))
        yield Batch({**{name: tf.constant(values) for name, values in features.items()}, "example_weights": weights})
        batch_number += 1


def _name_metrics(objective: Any, means: np.ndarray) -> dict[str, float]:
    return dict(zip(objective.metric_names, map(float, means)))


def finetune(
    config: FinetuningConfig,
    task: Task,
    checkpoints: CheckpointFolder,
    telemetry: Telemetry,
    workers: Workers,
    initialise: Callable[[], None],
    after_save: Callable[[], None],
) -> bool:
    """Trains the task's model in place, from where its run folder stands, to the end of its epochs.

    Args:
      initialise: fills the model where there is no checkpoint to go on from.
      after_save: called on the chief after each checkpoint.

    Returns:
      True when the end was reached, False when a signal stopped the run (it was saved).
    """
    num_updates = config.num_updates(task.num_rows)
    optimizer = make_optimizer(
        "adamw",
        config.effective_learning_rate,
        int(num_updates * config.warmup_proportion),
        num_updates,
        compiled=config.xla_scope != "off",
    )
    loss_scale = LossScale(enabled=config.precision == "fp16")
    identity = {**config.identity(), **task.identity}
    step = TrainStep(
        task.model,
        task.objective,
        optimizer,
        workers,
        loss_scale,
        scope=config.xla_scope,
        num_accumulation_steps=config.num_accumulation_steps,
        micro_batch_size=config.train_batch_size,
        seed=config.seed,
        settings=repr(identity),
        on_halving=telemetry.warning if config.may_split_more else None,
    )
    state = TrainState(task.model, optimizer, loss_scale)
    resumed_from = start_or_resume(state, checkpoints, workers, telemetry, initialise)
    facts = {
        "num_ranks": workers.size,
        "global_batch_size": config.global_batch_size,
        "flops_per_sequence": task.flops_per_sequence,
        "num_rows": task.num_rows,
        "warmup_steps": int(num_updates * config.warmup_proportion),
    }
    peak = peak_tflops(describe_devices()["device"], config.precision)
    if peak:
        facts["peak_tflops"] = peak * workers.size
    telemetry.start(update=state.updates_applied, resumed_from=resumed_from, phase=task.name, **facts)
    settings = LoopSettings(
        num_updates, config.global_batch_size, config.save_checkpoint_steps, config.display_loss_steps, identity
    )
    return run_updates(
        step,
        state,
        functools.partial(_batches, task, config, workers.rank),
        settings,
        checkpoints,
        telemetry,
        workers,
        name_metrics=functools.partial(_name_metrics, task.objective),
        after_save=after_save,
    )


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
        self.weights = None if job.train_file else find_span_weights(job.model_dir, job.init_checkpoint)
        self.bert_config, self.vocab_file = self._find_model_files()
        if job.train_file:
            self.job = dataclasses.replace(job, training=self._fit_into_memory())
        self.tokenizer = FullTokenizer(str(self.vocab_file), do_lower_case=job.decoding.do_lower_case)
        self.model = SpanModel(self.bert_config, make_blocks(job.training), job.training.seed)

    def _fit_into_memory(self) -> FinetuningConfig:
        config = self.job.training
        work = Workload(
            self.bert_config,
            self.job.features.max_seq_length,
            0,
            config.xla_scope,
            config.train_batch_size,
            config.precision,
            config.recompute,
            config.num_ranks,
        )
        return fit_into_memory(config, work, "adamw", self.job.model_dir, self.workers)

    def _find_model_files(self) -> tuple[BertConfig, Path]:
        """The model's shape and its vocabulary, checked against each other and the flags."""
        job, files = self.job, []
        prefix = self.weights
        if not prefix and job.init_checkpoint:
            prefix = resolve(job.init_checkpoint)
        for flag, given, name in (
            ("bert_config_file", job.bert_config_file, "bert_config.json"),
            ("vocab_file", job.vocab_file, "vocab.txt"),
        ):
            if given:
                path = Path(given)
            elif prefix:
                path = prefix.parent / name
            else:
                raise UserError(f"--{flag} is required where no --init_checkpoint is given")
            if not path.is_file():
                raise UserError(f"{path} does not exist; give the model's {name} with --{flag}")
            files.append(path)
        config, vocab = BertConfig.from_json_file(files[0]), load_vocab(str(files[1]))
        if sum(piece.startswith(WORD_START) for piece in vocab) > 0.1 * len(vocab):
            raise UserError(
                f"{files[1]} holds SentencePiece's pieces; finding answers in a text needs a model with a "
                "WordPiece vocabulary"
            )
        if len(vocab) != config.vocab_size:
            raise UserError(
                f"{files[1]} has {len(vocab)} pieces, but {files[0]} says vocab_size="
                f"{config.vocab_size}; use the vocabulary the model was trained with"
            )
        if job.features.max_seq_length > config.max_position_embeddings:
            raise UserError(
                f"--max_seq_length={job.features.max_seq_length} is more than the model's "
                f"max_position_embeddings={config.max_position_embeddings}"
            )
        check_casing(vocab, job.decoding.do_lower_case, files[1])
        return config, files[1]

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

        if not Path(path).is_file():
            raise UserError(f"{path}: no such file; name a SQuAD file such as train-v1.1.json")
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
        made = self.workers.together(load if is_chief else lambda: None)
        return self.workers.together(load if made is None else lambda: made)  # others find the chief's in the cache

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
        if self.folder:
            self.folder.bind(
                {**config.identity(), **identity}, self._record(features), companions, job.continue_with_changes
            )
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
        return finetune(
            config,
            task,
            checkpoints,
            telemetry,
            self.workers,
            lambda: initialise_from(job.init_checkpoint, self.model, self.bert_config.vocab_size, telemetry),
            lambda: write_report(job.model_dir, telemetry),
        )

    def predict(self, telemetry: Telemetry, path: str, examples: list[Example], update: int) -> None:
        job = self.job
        features = self.features(path, lambda: examples, is_training=False)
        sheet = AnswerSheet(examples, features, self.tokenizer, job.decoding, job.wants_scores)
        answer_questions(self.model, sheet, job.predict_batch_size, job.model_dir, self.workers, telemetry, update)

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
        questions = run.read(job.predict_file)
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
            telemetry.note(f"predicting with {run.weights}")
        training_secs = time.monotonic() - started
        if finished and job.predict_file:
            run.predict(telemetry, job.predict_file, questions, num_updates)
        if job.train_file:
            telemetry.end(DONE if finished else "signal", total_secs=training_secs)
            if workers.is_chief:
                write_report(job.model_dir, telemetry)
    return finished
