"""What the fine-tuning programs share: the model's files, the run folder, the training and what follows it.

A program makes a job from its flags (`common_settings`), opens a `TaskRun`, makes rows and a model, and
passes them to `TaskRun.carry_out`, together with what is to be done after the training.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, TypeVar

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_folder
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.initialise import (
    choose_config,
    choose_tokenizer,
    choose_vocabulary,
    find_weights,
    initialise_from,
)
from bert_tf.interchange.saved_model import export_model
from bert_tf.interchange.weights import Weights
from bert_tf.memory.plan import Workload, choose_split, find_device, plan, with_scope
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import STATE, check_encoder, load_weights, named_variables, read_state
from bert_tf.run.run_folder import CONFIG, RunFolder, read_config
from bert_tf.run.telemetry import DONE, Telemetry
from bert_tf.settings.training import BatchSplit, FinetuningConfig
from bert_tf.tasks.cache import CACHE_VERSION, Arrays, cached_arrays, content_key
from bert_tf.tasks.finetuning import Task, finetune
from bert_tf.text.hugging_face import TOKENIZER
from bert_tf.text.tokenizer import CasingFlags
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer
from bert_tf.training.loop import make_blocks, open_run, run_record, write_report


@dataclasses.dataclass(frozen=True)
class FinetuningJob:
    """One call of a fine-tuning program; most values are checked where they are used."""

    model_dir: Path
    init_checkpoint: str | None
    bert_config_file: str | None  # None: the one beside the checkpoint
    vocab_file: str | None  # None: the one beside the checkpoint
    do_lower_case: bool | None  # None: as the weights say, else as the vocabulary suggests
    strip_accents: bool | None  # likewise
    training: FinetuningConfig
    predict_batch_size: int  # of one rank
    dllog_path: str | None
    continue_with_changes: bool
    allow_missing_weights: bool  # in the encoder of init_checkpoint, when training starts

    def settings(self) -> dict[str, Any]:
        """All values by name, including those of nested settings."""
        values: dict[str, Any] = {}
        for name, value in dataclasses.asdict(self).items():
            values.update(value if isinstance(value, dict) else {name: value})
        return values


Job = TypeVar("Job", bound=FinetuningJob)


class Head(NamedTuple):
    """What distinguishes a model that was fine-tuned on a task from one that was only pre-trained."""

    name: str  # as messages call it
    variable: str  # a variable that only the fine-tuned checkpoint has


def common_settings(flags: Mapping[str, Any], workers: Workers, is_training: bool) -> dict[str, Any]:
    """The fields of `FinetuningJob`, from the flags of a fine-tuning program."""
    flags = with_scope(flags)
    split = BatchSplit(1, num_ranks=workers.size)
    if is_training:
        split = choose_split(flags, lambda: _workload(flags, workers.size), workers)
    return {
        **{field.name: flags[field.name] for field in dataclasses.fields(FinetuningJob) if field.name in flags},
        "model_dir": Path(flags["model_dir"]),
        "training": FinetuningConfig.from_flags(flags, split),
    }


def describe_plan(flags: Mapping[str, Any]) -> str:
    """The text that --plan prints."""
    return "\n".join(plan(_workload(with_scope(flags), 1), find_device(flags["gpu_memory_gib"], 1)))


def _workload(flags: Mapping[str, Any], num_ranks: int) -> Workload:
    weights = find_weights(flags["init_checkpoint"]) if flags["init_checkpoint"] else None
    return Workload.from_flags(flags, choose_config(flags["bert_config_file"], weights), num_ranks)


def for_export(job: Job, folder: Path) -> Job:
    """The job with a model that XLA does not compile: servers may lack XLA, and those that have it compile themselves.

    Raises:
      UserError: `folder` exists, and an export overwrites nothing; or it cannot be made.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists; name another folder with --model_export_path, or remove it")
    check_folder(folder, f"--model_export_path={folder}")
    return dataclasses.replace(job, training=dataclasses.replace(job.training, xla_scope="off"))


class TaskRun:
    """A running job: its locked run folder, and the model's files, checked against each other and the job.

    Args:
      max_seq_length: number of tokens in a row.
      predicts_with: the head that the weights must have if the job does not train; None if it trains.

    Attributes:
      weights: those to train from or to predict with; None: random weights.
      bert_config, tokenizer: those of the model.
      blocks: to build the model with.
    """

    def __init__(self, job: FinetuningJob, workers: Workers, max_seq_length: int, predicts_with: Head | None):
        self.job, self.workers, self._head = job, workers, predicts_with
        # Rank 0 locks the folder before anything is written. An error there ends all ranks.
        self._folder = RunFolder(job.model_dir, job.dllog_path) if workers.is_chief else None
        self.weights, self.bert_config, self.tokenizer = workers.run_keeping_alive(self._find_model)
        if max_seq_length > self.bert_config.max_position_embeddings:
            raise UserError(
                f"--max_seq_length={max_seq_length} is more than the model's "
                f"max_position_embeddings={self.bert_config.max_position_embeddings}"
            )
        self.blocks = make_blocks(job.training)

    def _find_model(self) -> tuple[Weights | None, BertConfig, Tokenizer]:
        job = self.job
        if self._head:
            weights: Weights | None = find_trained_weights(job.model_dir, job.init_checkpoint, self._head)
        else:
            weights = find_weights(job.init_checkpoint) if job.init_checkpoint else None
        config = choose_config(job.bert_config_file, weights)
        flags = CasingFlags(job.do_lower_case, job.strip_accents)
        tokenizer, assumed = choose_tokenizer(job.vocab_file, flags, config, weights)
        if assumed and self.workers.is_chief:
            print(assumed, flush=True)
        return weights, config, tokenizer

    @property
    def model_files(self) -> dict[str, str]:
        """The text files that are put beside every copy of the weights, by name."""
        return {"bert_config.json": self.bert_config.to_json(), **self.tokenizer.files()}

    def cached(self, kind: type[Arrays], make: Callable[[], Arrays], *key: object) -> Arrays:
        """Rows from the run folder's cache, or made by `make` if the cache lacks them.

        Args:
          kind: the NamedTuple of arrays that `make` returns.
          key: what the rows depend on besides the tokenizer: files as `Path`, and settings.
        """
        name = content_key(CACHE_VERSION, *key, self.tokenizer.files())
        is_chief, path = self.workers.is_chief, self.job.model_dir / "features" / f"{name}.npz"
        load = functools.partial(cached_arrays, path, kind, make, write=is_chief)
        made = self.workers.run_keeping_alive(load if is_chief else lambda: None)
        # The other ranks find the chief's rows in the cache.
        return self.workers.run_keeping_alive(load if made is None else lambda: made)

    def carry_out(
        self, model: tf.keras.Model, task: Task | None, afterwards: Callable[[Telemetry, int], None] | None
    ) -> bool:
        """Trains the model on `task`, or if that is None loads the trained weights; then calls `afterwards`.

        Args:
          afterwards: gets the telemetry and the number of updates that the weights were trained for.

        Returns: False if a signal or --max_hours stopped the training; then `afterwards` was not called.
        """
        job = self.job
        num_updates = job.training.num_updates(task.num_rows) if task else 0
        with Telemetry(
            job.model_dir, is_chief=self.workers.is_chief, total_updates=num_updates, dllog_path=job.dllog_path
        ) as telemetry:
            stopped_by, started = None, time.monotonic()
            if task:
                stopped_by = self._train(task, telemetry)
            elif self.weights and self._head:
                for warning in self.weights.warnings:
                    telemetry.warning(warning)
                num_updates = load_trained_weights(self.weights, model, self._head)
                telemetry.note(f"predicting with {self.weights.source}")
            training_secs = time.monotonic() - started
            if not stopped_by and afterwards:
                afterwards(telemetry, num_updates)
            if task:
                telemetry.end(stopped_by or DONE, total_secs=training_secs)
                write_report(telemetry)
        return not stopped_by

    def export(
        self, model: tf.keras.Model, folder: Path, output_names: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        """Writes the trained model to `folder`, for servers; arguments as for `export_model`."""
        settings = {**settings, "do_lower_case": self.tokenizer.do_lower_case, "precision": self.job.training.precision}

        def write(telemetry: Telemetry, update: int) -> None:
            if self.workers.is_chief:
                described = {**settings, "updates_applied": update}
                export_model(model, folder, output_names, described, self.model_files)
                telemetry.note(f"SavedModel with Triton's config.pbtxt: {folder}")

        self.carry_out(model, None, write)

    def _train(self, task: Task, telemetry: Telemetry) -> str | None:
        job, config = self.job, self.job.training
        identity = {
            **config.identity(),
            "task": task.name,
            "bert_config": self.bert_config.to_dict(),
            "init_checkpoint": job.init_checkpoint,
            "data": content_key(*task.files),
            **_identity_of(self.tokenizer),
            **task.identity,
        }
        companions = {**self.model_files, **task.companions}
        # The files that hashes in the identity stand for.
        vocab_file = choose_vocabulary(job.vocab_file, self.weights)
        sources = {"data": ", ".join(map(str, task.files)), "vocabulary": str(vocab_file)}

        def initialise() -> None:
            model = task.initialised or task.model
            initialise_from(self.weights, model, telemetry, allow_missing=job.allow_missing_weights)

        def bind() -> None:
            assert self._folder
            data = {"files": len(task.files), "first_file": str(task.files[0]), "instances": task.num_rows}
            record = run_record(config, self.bert_config, settings=job.settings(), data=data, sources=sources)
            self._folder.bind(identity, record, companions)

        if self._folder:
            self._folder.check(identity, job.continue_with_changes, sources)
        run = open_run(config, self.bert_config.vocab_size, companions, self.workers, telemetry)
        return finetune(config, task._replace(identity=identity), run, initialise, bind)


def _identity_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tells tokenizers apart; the names that runs had before others than Google's were known come first."""
    files, casing = tokenizer.files(), tokenizer.casing
    identity: dict[str, Any] = {
        "vocabulary": content_key(files[VOCABULARY].encode("utf-8")),
        "do_lower_case": casing.lower_case,
    }
    if casing.strip_accents != casing.lower_case:
        identity["strip_accents"] = casing.strip_accents
    if TOKENIZER in files:
        identity[TOKENIZER] = content_key(files[TOKENIZER].encode("utf-8"))
    return identity


def _has_run_from(model_dir: Path, init_checkpoint: str) -> bool:
    """Whether the folder holds checkpoints of a run that started from these weights."""
    if not (model_dir / "checkpoints").is_dir() or not (model_dir / CONFIG).is_file():
        return False
    start = (read_config(model_dir) or {"identity": {}})["identity"].get("init_checkpoint")
    return isinstance(start, str) and Path(start).resolve() == Path(init_checkpoint).resolve()


def find_trained_weights(model_dir: Path, init_checkpoint: str | None, head: Head) -> Weights:
    """The weights to predict with: those of `init_checkpoint` if it was fine-tuned, else the run's newest; these also
    if that is where the run in `model_dir` started from, since then they are what it was fine-tuned to.

    Raises:
      UserError: neither has the head.
    """
    if init_checkpoint:
        weights = find_weights(init_checkpoint)
        if head.variable in weights.shapes and not _has_run_from(model_dir, init_checkpoint):
            return weights
    if (model_dir / "checkpoints").is_dir():
        return find_weights(model_dir, "--model_dir")
    if init_checkpoint:
        kind = f" but is a {' and a '.join(weights.architectures)}," if weights.architectures else ""
        raise UserError(
            f"--init_checkpoint={init_checkpoint} has no {head.name} head ({head.variable}),{kind} and "
            f"--model_dir={model_dir} holds no checkpoint; fine-tune it first with --mode=train"
        )
    raise UserError(
        f"--model_dir={model_dir} holds no checkpoint to predict with; fine-tune first with --mode=train, "
        "or name a fine-tuned checkpoint with --init_checkpoint"
    )


def load_trained_weights(weights: Weights, model: tf.keras.Model, head: Head) -> int:
    """Loads a model's weights for prediction; returns the number of updates it was trained for, 0 if unknown.

    Raises:
      UserError: the checkpoint lacks a variable that prediction uses.
    """
    check_encoder(weights, named_variables(model.variables), f"name a checkpoint that was fine-tuned for {head.name}")
    report = load_weights(weights, model.variables, model.config.vocab_size)
    used = {variable.name.split(":")[0] for variable in model.trainable_variables}
    missing = [name for name in report.missing if name in used]
    if missing:
        raise UserError(
            f"{weights.source} lacks {', '.join(missing[:3])} ({len(missing)} variables in all), so it cannot be "
            f"used for {head.name}; name a checkpoint that was fine-tuned for that"
        )
    return read_state(weights.folder)["updates_applied"] if (weights.folder / STATE).is_file() else 0
