"""Fine-tuning on the rows of any task, which are kept in memory: updates and checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.batches.batches import Batch
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.settings.training import FinetuningConfig
from bert_tf.training.loop import LoopSettings, Run, Training, begin, run_updates
from bert_tf.training.step import TrainState, TrainStep


class Task(NamedTuple):
    """What is fine-tuned: model, loss and rows."""

    name: str
    model: tf.keras.Model
    objective: Any  # from bert_tf.model.losses
    num_rows: int
    batch: Callable[[np.ndarray], dict[str, np.ndarray]]  # row numbers [...] -> inputs and targets [..., S] or [...]
    flops_per_sequence: float
    identity: Mapping[str, Any]  # settings of model and data that must not change within a run
    files: Sequence[Path] = ()  # those that the rows were made from
    companions: Mapping[str, str] = MappingProxyType({})  # text files, by name, that belong beside the weights
    initialised: tf.keras.Model | None = None  # the part that initial weights are loaded into; None: the whole model


def training_rows(order: GlobalOrder, batch_number: int, config: FinetuningConfig, rank: int) -> np.ndarray:
    """int64 [A, B]: the rows that one rank contributes to one update."""
    shape = (config.num_accumulation_steps, config.train_batch_size)
    start = (batch_number * config.num_ranks + rank) * shape[0] * shape[1]
    return np.array([run.file for run in order.ranges(start, shape[0] * shape[1])]).reshape(shape)


def _batches(task: Task, config: FinetuningConfig, rank: int, batch_number: int) -> Iterator[Batch]:
    """One rank's features [A, B, ...] for update `batch_number` and all later ones, without end."""
    # The order permutes blocks within files. With one record per file it permutes single rows, which is
    # needed here, because neighbouring rows are questions about the same text.
    order = GlobalOrder([[1] * task.num_rows], config.seed)
    weights = np.ones([config.num_accumulation_steps, config.train_batch_size], np.float32)
    while True:
        features = {**task.batch(training_rows(order, batch_number, config, rank)), "example_weights": weights}
        # On the host, which sums the weights: if they were on a GPU it would have to wait for pending work.
        with tf.device("/CPU:0"):
            tensors = {name: tf.constant(values) for name, values in features.items()}
        # Outside the device scope, which belongs to a thread: another thread may request the next batch.
        yield Batch(tensors)
        batch_number += 1


def finetune(
    config: FinetuningConfig, task: Task, run: Run, initialise: Callable[[], None], bind: Callable[[], None]
) -> str | None:
    """Trains the task's model in place, from its newest checkpoint to the end of its epochs.

    Args:
      task: its identity must be that of the whole run.
      initialise, bind: as for `begin`.

    Returns:
      None if the end was reached, else what stopped the run, like `run_updates`.
    """
    num_updates = config.num_updates(task.num_rows)
    warmup_steps = int(num_updates * config.warmup_proportion)
    optimizer = make_optimizer(
        "adamw",
        config.effective_learning_rate,
        warmup_steps,
        num_updates,
        compiled=config.xla_scope != "off",
        bias_correction=config.adam_bias_correction,
    )
    state = TrainState(task.model, optimizer, LossScale(enabled=config.precision == "fp16"))
    run.workers.require_same(task.identity)
    training = Training(
        TrainStep(state, task.objective, run.workers, config.seed),
        state,
        functools.partial(_batches, task, config, run.workers.rank),
        lambda means: dict(zip(task.objective.metric_names, map(float, means))),
    )
    begin(
        training,
        run,
        config,
        initialise,
        bind,
        phase=task.name,
        warmup_steps=warmup_steps,
        flops_per_sequence=task.flops_per_sequence,
        num_rows=task.num_rows,
    )
    return run_updates(training, run, LoopSettings(config, num_updates, task.identity))
