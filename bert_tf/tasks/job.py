"""One job of any fine-tuning task: finds the model, trains, predicts, scores or exports, as its settings say."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_folder
from bert_tf.base.tensorflow import keras
from bert_tf.interchange.initialise import (
    choose_config,
    choose_tokenizer,
    choose_vocabulary,
    find_weights,
    initialise_from,
)
from bert_tf.interchange.saved_model import SETTINGS, export_model, files_beside, load_exported
from bert_tf.interchange.weights import Weights
from bert_tf.memory.plan import Workload, find_device, plan
from bert_tf.memory.split import choose_split, with_scope
from bert_tf.model.backends import make_backend
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.ranks.workers import Workers
from bert_tf.run.device import prepare_device
from bert_tf.run.gpus import task_flops_per_sequence
from bert_tf.run.run_folder import RunFolder
from bert_tf.run.telemetry import Telemetry
from bert_tf.run.variables import named_variables
from bert_tf.settings.training import BatchSplit, FinetuningConfig, compute_dtype
from bert_tf.tasks.data import TaskData
from bert_tf.tasks.predict import Predictor, compile_model, rows_per_compilation
from bert_tf.tasks.rows import CACHE_VERSION, Arrays, cached_arrays, content_key
from bert_tf.tasks.task import TRAIN, Task, TaskRows
from bert_tf.tasks.weights import find_trained_weights, load_trained_weights
from bert_tf.text.hugging_face import TOKENIZER
from bert_tf.text.tokenizer import CasingFlags
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer
from bert_tf.training.evaluation import Evaluation
from bert_tf.training.trainer import Trainer, Training

Finish = Callable[[Telemetry, int], None]  # with the number of updates that the weights were trained for
Scores = Callable[[Telemetry, int], Mapping[str, float]]  # likewise


@dataclasses.dataclass(frozen=True)
class FinetuningJob:
    """What a job of any task needs to know; most values are checked where they are used."""

    model_dir: Path
    training: FinetuningConfig
    predict_batch_size: int  # of one rank
    init_checkpoint: str | None = None
    bert_config_file: str | None = None  # None: the one beside the checkpoint
    vocab_file: str | None = None  # None: the one beside the checkpoint
    do_lower_case: bool | None = None  # None: as the weights say, else as the vocabulary suggests
    strip_accents: bool | None = None  # likewise
    dllog_path: str | None = None
    continue_with_changes: bool = False
    allow_missing_weights: bool = False  # in the encoder of init_checkpoint, when training starts

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], task: type[Task], workers: Workers, *, trains: bool) -> FinetuningJob:
        """From the flags of a fine-tuning program, by name."""
        flags = with_scope(flags)
        split = BatchSplit(1, num_ranks=workers.size)
        if trains:
            split = choose_split(flags, lambda: _workload(flags, task, workers.size), workers)
        settings = {field.name: flags[field.name] for field in dataclasses.fields(cls) if field.name in flags}
        training = FinetuningConfig.from_flags(flags, split)
        return cls(**{**settings, "model_dir": Path(flags["model_dir"]), "training": training})

    def settings(self) -> dict[str, Any]:
        """All values by name, including those of `training`."""
        values = dataclasses.asdict(self)
        return {**values.pop("training"), **values}


def describe_plan(flags: Mapping[str, Any], task: type[Task]) -> str:
    """The text that --plan prints."""
    return "\n".join(plan(_workload(with_scope(flags), task, 1), find_device(flags["gpu_memory_gib"], 1)))


def _workload(flags: Mapping[str, Any], task: type[Task], num_ranks: int) -> Workload:
    weights = find_weights(flags["init_checkpoint"]) if flags["init_checkpoint"] else None
    flags = {**flags, "uses_pooler": task.head.uses_pooler, "num_choices": task.num_choices_of(flags)}
    return Workload.from_flags(flags, choose_config(flags["bert_config_file"], weights), num_ranks)


def run_task(
    job: FinetuningJob, task: Task, workers: Workers, serve: Callable[[Predictor], None] | None = None
) -> bool:
    """Trains, and then predicts and scores, or does with the model what `serve` does.

    Returns False if a signal or --max_hours stopped the training.
    """
    if job.training.eval_steps and task.training_files and not task.held_out:
        ways = "use --mode=train_and_predict or train_and_eval, with a file to score"
        raise UserError(f"--eval_steps needs held-out data: {ways}")
    run = TaskRun(job, task, workers)
    task.prepare(run)
    model = task.make_model(run.bert_config, run.backend, job.training.seed)
    compute = compile_model(model)

    def predictor(telemetry: Telemetry, update: int) -> Predictor:
        return Predictor(
            compute,
            task,
            run.tokenizer,
            workers,
            telemetry=telemetry,
            update=update,
            batch_size=job.predict_batch_size,
            rows_per_compilation=rows_per_compilation(model),
        )

    def finish(telemetry: Telemetry, update: int) -> None:
        (serve or task.finish)(predictor(telemetry, update))

    def scores(telemetry: Telemetry, update: int) -> Mapping[str, float]:
        return task.evaluate(predictor(telemetry, update))

    if task.training_files:
        return Trainer(job.training, run.make_training(model, scores), workers, run.folder).fit(finish)
    run.predict(model, finish)
    return True


def converse(job: FinetuningJob, task: Task, workers: Workers) -> None:
    """Answers what is typed. Raises `UserError` if there are several processes: one prompt is read by one."""
    if workers.size > 1:
        raise UserError("--mode=interactive answers in one process; omit --use_horovod")
    run_task(job, task, workers, task.converse)


def predict_with_export(job: FinetuningJob, task: Task, workers: Workers, folder: Path) -> None:
    """Predicts with an exported model alone: tokenizer, rows and what is made of the outputs are the export's."""
    with workers.keep_alive():
        exported, weights = load_exported(folder, task.export_settings()["task"]), files_beside(folder)
        try:
            task = task.of_export(exported.settings)
        except UserError as error:
            raise UserError(f"{folder / SETTINGS}: {error}; export the model again") from None
    job = dataclasses.replace(job, bert_config_file=None, vocab_file=None, do_lower_case=None, strip_accents=None)
    run = TaskRun(job, task, workers, weights)
    task.prepare(run)
    with run.telemetry() as telemetry:
        stated = ", ".join(f"{name} {value}" for name, value in task.export_settings().items())
        telemetry.note(f"predicting with {folder}: {stated}")
        predictor = Predictor(
            exported,
            task,
            run.tokenizer,
            workers,
            telemetry=telemetry,
            update=exported.settings.get("updates_applied", 0),
            batch_size=exported.batch_size or job.predict_batch_size,
            rows_per_compilation=None,  # it takes no other length
        )
        task.finish(predictor)


def export_task(job: FinetuningJob, task: Task, workers: Workers, folder: Path, batch_size: int | None) -> None:
    """Writes the trained model to `folder`, for servers.

    XLA does not compile it: servers may lack XLA, and those that have it compile by themselves.

    Args:
      batch_size: None leaves the batch size variable.

    Raises:
      UserError: `folder` exists, and an export overwrites nothing; or it cannot be made.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists; name another folder with --model_export_path, or remove it")
    check_folder(folder, f"--model_export_path={folder}")
    job = dataclasses.replace(job, training=dataclasses.replace(job.training, xla_scope="off"))
    run = TaskRun(job, task, workers)
    task.prepare(run)
    model = task.make_model(run.bert_config, run.backend, job.training.seed)

    def write(telemetry: Telemetry, update: int) -> None:
        if workers.is_chief:
            settings = {
                **task.export_settings(),
                "batch_size": batch_size,
                "do_lower_case": run.tokenizer.do_lower_case,
                "precision": job.training.precision,
                "updates_applied": update,
            }
            export_model(model, folder, task.head.outputs, settings, run.model_files)
            telemetry.note(f"SavedModel with Triton's config.pbtxt: {folder}")

    run.predict(model, write)


class TaskRun:
    """A running job: its locked run folder, and the model's files, checked against each other and the job.

    Attributes:
      weights: those to train from or to predict with; None: random weights.
      bert_config, tokenizer: those of the model.
      backend: to build the model with.
    """

    def __init__(self, job: FinetuningJob, task: Task, workers: Workers, weights: Weights | None = None):
        self.job, self.workers, self._task = job, workers, task
        # Rank 0 locks the folder before anything is written. An error there ends all ranks.
        self.folder = RunFolder(
            job.model_dir, job.dllog_path, is_chief=workers.is_chief, continue_with_changes=job.continue_with_changes
        )
        with workers.keep_alive():
            self.weights = weights or self._find_weights()
            self.bert_config = choose_config(job.bert_config_file, self.weights)
            casing = CasingFlags(job.do_lower_case, job.strip_accents)
            self.tokenizer, assumed = choose_tokenizer(job.vocab_file, casing, self.bert_config, self.weights)
        if assumed:
            self.say(assumed)
        self.bert_config.check_length(task.max_seq_length)
        config = job.training
        prepare_device(config.precision, config.xla_scope)
        self.backend = make_backend(config.xla_scope, compute_dtype(config.precision), recompute=config.recompute)

    def _find_weights(self) -> Weights | None:
        if not self._task.training_files:
            return find_trained_weights(self.job.model_dir, self.job.init_checkpoint, self._task.head)
        return find_weights(self.job.init_checkpoint) if self.job.init_checkpoint else None

    def say(self, line: str) -> None:
        """Prints a line, on the chief."""
        if self.workers.is_chief:
            print(line, flush=True)

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
        path = self.job.model_dir / "features" / f"{name}.npz"
        return self.workers.chief_first(functools.partial(cached_arrays, path, kind, make, write=self.workers.is_chief))

    def telemetry(self) -> Telemetry:
        """That of a job without a training."""
        job, is_chief = self.job, self.workers.is_chief
        return Telemetry(job.model_dir, is_chief=is_chief, total_updates=0, dllog_path=job.dllog_path)

    def predict(self, model: keras.Model, finish: Finish) -> None:
        """Loads the trained weights into the model, and calls `finish`."""
        weights = self.weights
        assert weights
        with self.telemetry() as telemetry:
            for warning in weights.warnings:
                telemetry.warning(warning)
            update = load_trained_weights(weights, model, self._task.head)
            telemetry.note(f"predicting with {weights.source}")
            finish(telemetry, update)

    def make_training(self, model: keras.Model, scores: Scores) -> Training:
        """The training of the model; `scores`: of the held-out files, as `Evaluation` has them."""
        job, config, task = self.job, self.job.training, self._task
        rows, files = task.rows[TRAIN], task.training_files
        held_out = [path for paths in task.held_out.values() for path in paths]
        num_rows = len(rows.num_tokens)
        num_updates = config.num_updates(num_rows)
        warmup_steps = int(num_updates * config.warmup_proportion)
        identity = {
            **config.identity(),
            "task": task.name,
            "bert_config": self.bert_config.to_dict(),
            "init_checkpoint": job.init_checkpoint,
            "data": content_key(*files),
            **_identity_of(self.tokenizer),
            **task.identity(),
        }
        return Training(
            task.name,
            model,
            task.make_objective(),
            batches=TaskData(rows, config, self.workers.rank).batches,
            optimizer=make_optimizer(
                "adamw",
                config.effective_learning_rate,
                warmup_steps,
                num_updates,
                compiled=config.xla_scope != "off",
                bias_correction=config.adam_bias_correction,
            ),
            num_updates=num_updates,
            warmup_steps=warmup_steps,
            identity=identity,
            flops_per_sequence=self._flops_per_row(model, rows),
            initialise=lambda telemetry: initialise_from(
                self.weights,
                model if task.keeps_head else model.bert,
                telemetry,
                allow_missing=job.allow_missing_weights,
            ),
            sources={
                "data": ", ".join(map(str, files)),
                "vocabulary": str(choose_vocabulary(job.vocab_file, self.weights)),
            },
            companions={**self.model_files, **task.companions()},
            facts={
                "settings": {**job.settings(), **task.settings()},
                "data": {"files": len(files), "first_file": str(files[0]), "instances": num_rows},
                "main_score": task.main_score,
            },
            evaluation=Evaluation(scores, task.main_score, content_key(*held_out), config.eval_interval(num_rows)),
        )

    def _flops_per_row(self, model: keras.Model, rows: TaskRows) -> float:
        config, head = self.bert_config, self._task.head
        num_sequences = rows.batch(np.array([0]))["input_ids"].size // self._task.max_seq_length
        size = named_variables(model.variables)[head.variable].shape.num_elements()
        return num_sequences * task_flops_per_sequence(
            config,
            self._task.max_seq_length,
            size // config.hidden_size,
            by_position=not head.uses_pooler,
            uses_pooler=head.uses_pooler,
        )


def _identity_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """What tells tokenizers apart; one without a ``tokenizer.json`` counts as with an empty one."""
    files = {"vocabulary": VOCABULARY, TOKENIZER: TOKENIZER}
    keys = {name: content_key(tokenizer.files().get(file, "").encode("utf-8")) for name, file in files.items()}
    return {**keys, **tokenizer.casing.flags()}
