"""One update: denominators, accumulation, one all-reduce, clipping, optimizer.

The update is a function of (weights, batch number, seed, data). It does not depend on how the
global batch is split into micro-batches and ranks (sums up to float rounding, masks exactly), nor
on what is compiled:

* Losses are sums over instances, divided by the counts of the *whole* update. So the number of
  masked tokens of all ranks must be known before the first backward pass.
* Dropout masks depend on the row's number in the global batch (`randomness`). Rows are rank-major: rank r,
  micro-batch a, row b is number (r*A + a)*B + b. With packing (`packing`) the rows are numbered, not the
  instances, and A here is the update's number of micro-batches, at most the A of the shapes.
* Gradients are summed in float32 over A micro-batches inside one loop, always in order, averaged over
  the R ranks in one all-reduce, and then unscaled. On a CPU two micro-batches may be computed at
  the same time (`memory.plan.micro_batches_at_once`).

So the size of the micro-batches may change from one update to the next; `memory.halving` makes use of that.

Shape letters: A micro-batches of an update, B micro-batch, R ranks, K denominators, M metrics,
V variables.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.memory.halving import out_of_memory
from bert_tf.memory.plan import micro_batches_at_once
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.optimizer.update_rules import gradient_norms
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, Snapshot
from bert_tf.run.statistics import UpdateResult

Features = dict[str, tf.Tensor]

# Ranks whose updates take this long may differ so much that some would exceed the all-reduce's time limit:
# they first wait for each other in `Workers.run_keeping_alive`.
LONG_UPDATE_SECS = 10.0


def _now(*after: tf.Tensor) -> tf.Tensor:
    """The host's clock in seconds once the device has computed `after`. --deterministic does not allow tf.timestamp."""
    return tf.numpy_function(lambda *_: time.monotonic(), after, tf.float64)


@dataclasses.dataclass
class TrainState:
    """Everything that a checkpoint contains, including the position in the data."""

    model: tf.keras.Model
    optimizer: Any
    loss_scale: LossScale
    batches_consumed: int = 0

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.model.variables, *self.optimizer.slot_variables]

    @property
    def updates_applied(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def copy(self, checkpoints: CheckpointFolder, identity: Mapping[str, Any]) -> Snapshot:
        """A copy of the state, for `CheckpointFolder.write`."""
        state = {
            "batches_consumed": self.batches_consumed,
            "loss_scale": self.loss_scale.state(),
            "identity": dict(identity),
        }
        return checkpoints.copy(self.updates_applied, self.variables, state)

    def restore(self, checkpoints: CheckpointFolder, path: Path) -> None:
        state = checkpoints.restore(path, self.variables)
        self.optimizer.iterations.assign(state["updates_applied"])
        self.loss_scale.restore(state["loss_scale"])
        self.batches_consumed = state["batches_consumed"]

    def broadcast(self, workers: Workers) -> None:
        """Broadcasts rank 0's state to all ranks."""
        self.batches_consumed = int(workers.gather(np.array([self.batches_consumed], np.int64))[0, 0])
        workers.broadcast([*self.variables, self.optimizer.iterations, *self.loss_scale.variables])


class AgreedUpdate(NamedTuple):
    """An update that all ranks have agreed on, before its first backward pass."""

    features: Features  # [A, B, ...]
    batch_number: int
    num_micro_batches: int | None  # how many of the A count; None: all
    totals_K: np.ndarray  # denominators over all ranks
    metric_totals_M: tf.Tensor
    stop_requested: bool
    is_long: bool  # a rank may take so long that the others must wait in `Workers.run_keeping_alive`
    waited_secs: float  # time waited for other ranks so far

    @property
    def shape(self) -> tuple[int, int]:
        """A, B."""
        num_accumulation_steps, micro_batch_size = self.features["input_ids"].shape[:2]
        return num_accumulation_steps, micro_batch_size


GradientSums = tuple[list[tf.Tensor], tf.Tensor]  # of this rank: the gradient of each variable, and the metrics [M]


class TrainStep:
    """Makes updates. Compiled once for each shape of the features; all ranks must call it alike.

    An update has three stages, which `__call__` runs in turn: `agree`, `sum_gradients` (this rank's
    work only) and `apply`.

    Args:
      state: the model, whose trainable variables are updated, the optimizer and the loss scale.
      objective: from `bert_tf.model.losses`; gives loss sums, denominators and metrics.
      workers: the ranks.
      seed: of the dropout masks.
      reduce_dtype: type in which gradients are sent between ranks. They are still multiplied by the
        loss scale then, to fit float16.
    """

    def __init__(self, state: TrainState, objective: Any, workers: Workers, seed: int, reduce_dtype: str = "float32"):
        self._model, self._optimizer, self._loss_scale = state.model, state.optimizer, state.loss_scale
        self._objective, self._workers, self._seed = objective, workers, seed
        self._reduce_dtype = tf.as_dtype(reduce_dtype)
        self._last_secs = math.inf  # the first update includes compilation, which may take minutes
        self.variables: list[tf.Variable] = list(self._model.trainable_variables)
        self._optimizer.build(self.variables)
        self._accumulate = tf.function(
            self._accumulate_micro_batches, jit_compile=self._model.backend.scope == "step", autograph=False
        )
        self._apply = tf.function(self._reduce_and_apply, autograph=False)

    def __call__(
        self, features: Features, batch_number: int, stop_requested: bool = False, num_micro_batches: int | None = None
    ) -> UpdateResult:
        """Updates the weights with this rank's features [A, B, ...] of global batch `batch_number`.

        Args:
          num_micro_batches: only the first so many of the A count; None for all. It must be the
            same on all ranks, but may change from update to update.

        Raises:
          UserError: ranks disagree about the position in the data, or the memory is too small.
        """
        update = self.agree(features, batch_number, stop_requested, num_micro_batches)
        work, started = functools.partial(self.sum_gradients, update), time.monotonic()
        try:
            sums = self._workers.run_keeping_alive(work) if update.is_long else work()
        except tf.errors.ResourceExhaustedError as error:
            raise out_of_memory(update.shape[1], error) from None
        if update.is_long:
            waited_secs = update.waited_secs + time.monotonic() - started - self._last_secs
            update = update._replace(waited_secs=waited_secs)
        return self.apply(update, sums)

    def agree(
        self, features: Features, batch_number: int, stop_requested: bool = False, num_micro_batches: int | None = None
    ) -> AgreedUpdate:
        """Adds up the denominators of all ranks; arguments and errors as in `__call__`."""
        local, is_long = self._objective.local_denominators(features), self._last_secs > LONG_UPDATE_SECS
        started = time.monotonic()
        everyone = self._workers.gather(np.array([batch_number, stop_requested, is_long, *local], np.float64))
        waited_secs = time.monotonic() - started
        differing = np.flatnonzero(everyone[:, 0] != everyone[0, 0])
        if differing.size:
            raise UserError(
                f"rank {differing[0]} has another position in the data than rank 0 ({everyone[differing[0], 0]:.0f}, "
                f"not {everyone[0, 0]:.0f}); start all ranks with the same arguments in the same run folder"
            )
        any_stops, any_is_long = everyone[:, 1:3].any(axis=0).tolist()
        totals = np.maximum(everyone[:, 3:].sum(axis=0), 1.0)
        # Made now, while the device is idle: later the copy, and so the host, would wait for pending work.
        metric_totals = tf.constant(totals[list(self._objective.metric_denominators)], tf.float32)
        return AgreedUpdate(
            features, batch_number, num_micro_batches, totals, metric_totals, any_stops, any_is_long, waited_secs
        )

    def sum_gradients(self, update: AgreedUpdate) -> GradientSums:
        """This rank's gradients and metrics.

        Raises:
          tf.errors.ResourceExhaustedError: the memory is too small; TensorFlow may notice that only later.
        """
        self._last_secs = math.inf  # if this fails, the next attempt compiles again
        started = time.monotonic()
        num_accumulation_steps, micro_batch_size = update.shape
        # Scaled up by A*R, so that a micro-batch's loss has the magnitude of its mean: dividing by
        # the global count alone would make gradients too small for float16.
        loss_weights = tf.constant(num_accumulation_steps * self._workers.size / update.totals_K, tf.float32)
        per_rank = update.num_micro_batches or num_accumulation_steps
        first_row = self._workers.rank * per_rank * micro_batch_size
        sums = self._accumulate(
            update.features,
            loss_weights,
            self._loss_scale.scale,
            tf.constant(update_key(self._seed, update.batch_number)),
            tf.constant(first_row, tf.int64),
            None if update.num_micro_batches is None else tf.constant(update.num_micro_batches),
        )
        self._last_secs = time.monotonic() - started
        return sums

    def apply(self, update: AgreedUpdate, sums: GradientSums) -> UpdateResult:
        """Averages the gradients over the ranks and updates the weights."""
        num_accumulation_steps, micro_batch_size = update.shape
        try:
            with self._workers.expecting_all():
                results = self._apply(*sums, update.metric_totals_M, num_accumulation_steps)
        except tf.errors.ResourceExhaustedError as error:
            raise out_of_memory(micro_batch_size, error) from None
        return UpdateResult(update.stop_requested, update.waited_secs, *results)

    def _accumulate_micro_batches(
        self,
        features: Features,
        loss_weights_K: tf.Tensor,
        scale: tf.Tensor,
        key: tf.Tensor,
        first_row: tf.Tensor,
        num_micro_batches: tf.Tensor | None,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Sums of the scaled gradients (float32) and of the metrics over the micro-batches."""
        variables = self.variables
        num_accumulation_steps, micro_batch_size = features["input_ids"].shape[:2]
        end = num_accumulation_steps if num_micro_batches is None else num_micro_batches

        # TensorFlow keeps int32 tensors on the host even on GPU machines, so they would be copied back and forth.
        features = {
            name: tf.cast(values, tf.int64) if values.dtype == tf.int32 else values for name, values in features.items()
        }

        backend, encoder = self._model.backend, self._model.bert
        copies = encoder.copy_weights()

        def add(total, gradient):
            if gradient is None:
                return total
            if isinstance(gradient, tf.IndexedSlices):
                return backend.add_looked_up(total, gradient)
            return total + tf.cast(gradient, tf.float32)

        def add_micro_batch(number, gradient_sums, metric_sums):
            micro_batch = {name: tf.gather(values, number) for name, values in features.items()}
            row = first_row + tf.cast(number, tf.int64) * micro_batch_size
            with tf.GradientTape() as tape, encoder.weight_copies.in_use(copies):
                tape.watch(copies.values())
                losses_K, metrics_M = self._objective(self._model, micro_batch, DropoutKey(key, row))
                loss = tf.reduce_sum(losses_K * loss_weights_K) * scale
            gradients, of_copies = tape.gradient(loss, (variables, list(copies.values())))
            by_variable = dict(zip(copies, of_copies))
            sums = [
                add(add(total, by_variable.get(variable.ref())), gradient)
                for total, variable, gradient in zip(gradient_sums, variables, gradients)
            ]
            return number + 1, sums, metric_sums + metrics_M

        # 0, but not a constant: TensorFlow would keep constants of up to 10 MB each for the life of the process.
        zero = tf.cast(tf.minimum(first_row, 0), tf.float32)
        # A loop in the graph, not in Python: unrolled, 16 micro-batches take minutes to compile.
        _, gradient_sums, metric_sums = tf.while_loop(
            lambda number, *_: number < end,
            add_micro_batch,
            (
                tf.constant(0),
                [tf.fill(variable.shape, zero) for variable in variables],
                tf.zeros([len(self._objective.metric_names)]),
            ),
            maximum_iterations=num_accumulation_steps,
            parallel_iterations=micro_batches_at_once(backend.scope),
        )
        return gradient_sums, metric_sums

    def _reduce_and_apply(
        self,
        gradients: Sequence[tf.Tensor],
        metric_sums_M: tf.Tensor,
        metric_totals_M: tf.Tensor,
        num_accumulation_steps: int,
    ) -> tuple[tf.Tensor, ...]:
        """All-reduces, clips, and applies the update if it is finite."""
        sent, divisor = gradients, 1.0
        if self._reduce_dtype != tf.float32:
            # Send means over the micro-batches, not sums, which may exceed the range of half precision.
            divisor = float(num_accumulation_steps)
            sent = [tf.cast(gradient / divisor, self._reduce_dtype) for gradient in gradients]
        # The metrics are sent with the gradients: each separate all-reduce costs some milliseconds.
        (*means, metric_means_M), reduce_secs = self._timed_mean([*sent, metric_sums_M])
        gradients = [tf.cast(mean, tf.float32) for mean in means]
        metrics_M = metric_means_M * self._workers.size / metric_totals_M
        scale = tf.identity(self._loss_scale.scale)
        unscale = divisor / (num_accumulation_steps * scale)
        norm, norms_V = (values * unscale for values in gradient_norms(gradients))
        is_finite = tf.math.is_finite(norm)
        learning_rate = tf.identity(self._optimizer.current_learning_rate())
        clip = 1.0 / tf.maximum(norm / self._optimizer.global_clipnorm, 1.0)
        changes_Vx3 = self._optimizer.apply_update(gradients, self.variables, unscale * clip, is_finite)
        self._loss_scale.update(is_finite)
        return metrics_M, norm, is_finite, learning_rate, scale, norms_V, changes_Vx3, reduce_secs

    def _timed_mean(self, sent: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Means over the ranks, and the seconds from when the last tensor of `sent` was ready until they were.

        By then the operations before it have finished, on a GPU too; as it is small, copying it to the host for
        the clock delays nothing. A single rank does without the clock, which is a call back to the host.
        """
        means = self._workers.mean(sent)
        if self._workers.size == 1:
            return means, tf.zeros([], tf.float64)
        started = _now(sent[-1])
        with tf.control_dependencies([started, *means]):
            return means, _now() - started
