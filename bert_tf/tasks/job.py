"""Runs a job, which is a task with its settings. Every run starts here, of pre-training or of any other task.

A job locks the run folder, has the task find its model and read its files, builds the model, trains it, and then
predicts, scores or exports, as the settings say.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_folder, check_readable_path
from bert_tf.base.tensorflow import keras
from bert_tf.interchange.initialise import warn_of_weights
from bert_tf.interchange.saved_model import SETTINGS_FILE, export_model, load_exported, read_exported_files
from bert_tf.memory.split import complete_config, with_scope
from bert_tf.model.backends import make_backend
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.ranks.workers import Workers
from bert_tf.run.device import prepare_device, slow_fp16
from bert_tf.run.gpus import flops_per_row
from bert_tf.run.run_folder import RunFolder, locate_start
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import AUTO, BatchSplit, TrainingConfig, compute_dtype
from bert_tf.tasks.finetuning import FinetuningTask
from bert_tf.tasks.predict import Predictor
from bert_tf.tasks.rows import Outputs
from bert_tf.tasks.task import Facts, Run, Task
from bert_tf.tasks.weights import load_trained_weights
from bert_tf.training.evaluation import Evaluation
from bert_tf.training.trainer import Trainer, Training

# Takes the trained model, what `Task.make_scorer` made of it, telemetry, and how many updates it was trained for.
Finisher = Callable[[keras.Model, Any, Telemetry, int], None]


@dataclasses.dataclass(frozen=True)
class Job:
    """A task, and its settings as they were typed: `config` for the training, `options` for the rest."""

    config: Any
    options: Any
    task: Any


def run_job(job: Job, workers: Workers, finisher: Finisher | None = None) -> bool:
    """Trains, if there is something to train on, and then calls `finisher`, or by default the task's `finish`.

    Returns False if a signal or --max_hours stopped the training.
    """
    task = job.task
    with _open_job(job, workers) as (run, folder, telemetry):
        model = make_model(run, task)
        scorer = task.make_scorer(run, model)
        finish = functools.partial(finisher, model, scorer) if finisher else functools.partial(task.finish, scorer)
        if task.trains:
            training = make_training(run, task, model, scorer)
            return Trainer(run.config, training, workers, folder=folder, telemetry=telemetry).fit(finish)
        warn_of_weights(task.weights, model.config, telemetry)
        with workers.keep_alive():
            update = load_trained_weights(task.weights, model, task.head) if workers.is_chief else 0
        # Only the chief loads: another rank might find a newer checkpoint, or another file under this name.
        workers.broadcast(model.variables)
        telemetry.note(f"predicting with {task.weights.source}")
        finish(telemetry, update)
    return True


@contextlib.contextmanager
def _open_job(job: Job, workers: Workers) -> Iterator[tuple[Run, RunFolder, Telemetry]]:
    """Locks the run folder and has the task read its files. Errors of the chief end all ranks."""
    options, task = job.options, job.task
    path, log, is_chief = options.model_dir, options.dllog_path, workers.is_chief
    folder = RunFolder(path, log, is_chief=is_chief, continue_with_changes=options.continue_with_changes)
    with folder, Telemetry(path, is_chief=is_chief, dllog_path=log) as telemetry:
        run = Run(job.config, options, workers, folder.path)
        task.open(run)
        run = run._replace(config=_settle_config(job, workers))
        prepare_device(run.config.precision, run.config.xla_scope)
        if warning := slow_fp16(run.config.precision):
            run.say(f"warning: {warning}")
        task.prepare(run)
        yield run, folder, telemetry


def _settle_config(job: Job, workers: Workers) -> TrainingConfig:
    """The settings with which these ranks train or, without a global batch to be split, only compute."""
    config, options, task = job.config, job.options, job.task
    if not task.trains:
        return with_scope(config, options).with_split(BatchSplit(1, num_ranks=workers.size))
    return complete_config(config, options, lambda config: task.workload(config, options, task.bert_config), workers)


def make_model(run: Run, task: Task) -> keras.Model:
    """The model, with random weights."""
    config = run.config
    backend = make_backend(config.xla_scope, compute_dtype(config.precision), recompute=config.recompute)
    return task.make_model(task.bert_config, backend, config.seed)


def make_training(run: Run, task: Task, model: keras.Model, scorer: Any = None) -> Training:
    """How the model is trained; `scorer`: what `Task.make_scorer` made of it."""
    config, num_rows = run.config, task.num_rows
    workload = task.workload(config, run.options, task.bert_config)
    num_updates, warmup_steps = config.num_updates(num_rows), config.num_warmup_updates(num_rows)
    with run.workers.keep_alive():  # both calls read every file
        identity, held_out = run_identity(run, task), task.held_out(config)
    evaluation, interval = None, config.eval_interval(num_rows)
    if interval and held_out:
        scores = functools.partial(task.evaluate, scorer)
        evaluation = Evaluation(scores, task.main_score, held_out, interval, task.lower_is_better)
    return Training(
        name=task.name or run.folder.name,
        model=model,
        objective=task.make_objective(),
        optimizer=make_optimizer(
            config.optimizer_type,
            config.effective_learning_rate,
            warmup_steps,
            num_updates,
            config.decay_start(warmup_steps),
            compiled=config.xla_scope != "off",
            **config.optimizer_options,
        ),
        num_updates=num_updates,
        warmup_steps=warmup_steps,
        identity=identity,
        workload=workload,
        flops_per_sequence=flops_per_row(workload, task.num_outputs(model)),
        evaluation=evaluation,
        **task.training(run, model),
    )


def run_identity(run: Run, task: Task) -> Facts:
    """What must not change within a run."""
    start = run.options.init_checkpoint
    return {
        **run.config.identity(),
        "bert_config": task.bert_config.to_dict(),
        "init_checkpoint": locate_start(start, run.folder) if start else None,
        **task.identity(run),
    }


def converse(job: Job, workers: Workers) -> None:
    """Answers what is typed at a prompt. Raises `UserError` if there are several processes, as only one can read it."""
    if workers.size > 1:
        raise UserError("--mode=interactive answers in one process; omit --use_horovod")
    task: FinetuningTask = job.task

    def answer(_: keras.Model, predictor: Predictor, *__: Any) -> None:
        def ask(content: Any) -> tuple[Any, Outputs]:
            """The rows and their outputs; prints a line if many of the tokens are unknown."""
            rows = task.rows_from_content(content)
            unknown = task.tokenizer.count_unknown(rows.tokens)
            if unknown.are_many:
                print(unknown.describe("text"), flush=True)
            return rows, predictor.predict_each(rows)

        task.converse(ask)

    run_job(job, workers, answer)


def predict_with_export(job: Job, workers: Workers, folder: Path, typed: Collection[str] = ()) -> None:
    """Predicts with an exported model alone, whose settings also decide how to make rows and read outputs.

    Args:
      typed: the names of the settings that the user gave; with other values than the export's they are refused.
    """
    task: FinetuningTask = job.task
    with workers.keep_alive():
        exported, weights = load_exported(folder, task.export_settings()["task"]), read_exported_files(folder)
        try:
            task = task.with_export_settings(exported.settings)
        except UserError as error:
            raise UserError(f"{folder / SETTINGS_FILE}: {error}; export the model again") from None
    for name, value in job.task.export_settings().items():
        if name in typed and value != (exported_value := exported.settings.get(name)):
            raise UserError(
                f"--{name}={value} has no effect, as {folder} was exported with {name}={exported_value}; leave it out, "
                "or export the model again with it"
            )
    task.weights = weights
    with _open_job(dataclasses.replace(job, task=task), workers) as (run, _, telemetry):
        telemetry.note(f"predicting with {folder}, as its {SETTINGS_FILE} says")
        batch_size = exported.batch_size or run.options.predict_batch_size
        predictor = task.make_predictor(exported, run, batch_size, rows_per_compilation=None)
        task.finish(predictor, telemetry, exported.settings.get("updates_applied", 0))


def export_task(job: Job, workers: Workers, folder: Path, batch_size: int | None) -> None:
    """Writes the trained model to `folder`, for servers.

    It is exported without XLA: servers may lack XLA, and those that have it compile by themselves.

    Args:
      batch_size: None leaves the batch size variable.

    Raises:
      UserError: `folder` exists already (an export overwrites nothing), or cannot be made.
    """
    if folder.exists():
        raise UserError(f"{folder} already exists; name another folder with --model_export_path, or remove it")
    for check in (check_folder, check_readable_path):
        check(folder, f"--model_export_path={folder}")
    config = dataclasses.replace(job.config, xla_scope=AUTO)
    job = Job(config, dataclasses.replace(job.options, enable_xla=False), job.task)
    task: FinetuningTask = job.task

    def write(model: keras.Model, _: Predictor, telemetry: Telemetry, update: int) -> None:
        if workers.is_chief:
            settings = {
                **task.export_settings(),
                "batch_size": batch_size,
                "do_lower_case": task.tokenizer.do_lower_case,
                "precision": config.precision,
                "updates_applied": update,
            }
            export_model(model, folder, task.head.outputs, settings, task.model_files)
            telemetry.note(f"SavedModel with Triton's config.pbtxt: {folder}")

    run_job(job, workers, write)
