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

So the size of the micro-batches may change from one update to the next, as it does when `trainer` halves it.

Shape letters: A micro-batches of an update, B micro-batch, R ranks, K denominators, M metrics,
V variables.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import tf
from bert_tf.memory.plan import micro_batches_at_once
from bert_tf.memory.split import OutOfMemoryError
from bert_tf.model.losses import Features, Objective
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.optimizer.update_rules import gradient_norms
from bert_tf.ranks.workers import Workers
from bert_tf.run.statistics import UpdateResult
from bert_tf.training.state import TrainState
from bert_tf.training.tensor_list import pack, unpack


class AgreedUpdate(NamedTuple):
    """An update that all ranks have agreed on, before its first backward pass."""

    features: Features  # [A, B, ...]
    batch_number: int
    num_micro_batches: int | None  # only the first so many of the A count; None: all
    totals_K: np.ndarray  # denominators over all ranks
    metric_totals_M: tf.Tensor
    stop_requested: bool
    is_long: bool  # a rank may take so long that the others must wait in `Workers.keep_alive`
    is_timed: bool
    waited_secs: float  # time waited for other ranks so far

    @property
    def shape(self) -> tuple[int, int]:
        """A and B, the number and the size of the micro-batches."""
        num_accumulation_steps, micro_batch_size = self.features["input_ids"].shape[:2]
        return num_accumulation_steps, micro_batch_size


class GradientSums(NamedTuple):
    """This rank's sums over the micro-batches of an update."""

    gradients: tf.Tensor  # packed (`tensor_list`), float32, one for each variable, times the loss scale
    metrics_M: tf.Tensor
    own_secs: float  # as in `UpdateResult`
    ended_at: float  # by `time.monotonic`


class TrainStep:
    """Makes updates. Compiled once for each shape of the features; all ranks must make the same calls.

    An update has three stages, which `__call__` runs in turn: `agree_on_update`, `sum_gradients` (this rank's
    work only) and `apply`.

    Args:
      state: the model, whose trainable variables are updated, the optimizer and the loss scale.
      seed: seed of the dropout masks.
      reduce_dtype: type in which gradients are sent between ranks. To fit float16 they are sent multiplied by the
        loss scale.
    """

    def __init__(
        self, state: TrainState, objective: Objective, workers: Workers, seed: int, reduce_dtype: str = "float32"
    ):
        self.model, self._optimizer, self._loss_scale = state.model, state.optimizer, state.loss_scale
        self._objective, self._workers, self._seed = objective, workers, seed
        self._reduce_dtype = tf.as_dtype(reduce_dtype)
        self.variables: list[tf.Variable] = list(self.model.trainable_variables)
        self._optimizer.build(self.variables)
        self._accumulate = tf.function(
            self._accumulate_micro_batches, jit_compile=self.model.backend.scope == "step", autograph=False
        )

        def pack_sums(*arguments: Any) -> tuple[tf.Tensor, tf.Tensor]:
            gradients, metrics_M = self._accumulate(*arguments)
            return pack(gradients), metrics_M

        self._sum = tf.function(pack_sums, autograph=False)
        self._has_exchange = workers.size > 1 or self._reduce_dtype != tf.float32
        self._reduce = tf.function(self._mean_over_ranks, autograph=False)
        self._apply = tf.function(self._clip_and_apply, autograph=False)

    def __call__(self, features: Features, batch_number: int, **options: Any) -> UpdateResult:
        """Updates the weights with this rank's features [A, B, ...] of global batch `batch_number`.

        Args: as for `agree_on_update`.

        Raises:
          UserError: ranks disagree about the position in the data, or the memory is too small.
        """
        update = self.agree_on_update(features, batch_number, **options)
        with self._workers.keep_alive() if update.is_long else contextlib.nullcontext():
            sums = self.sum_gradients(update)
        return self.apply(update, sums)

    def agree_on_update(
        self,
        features: Features,
        batch_number: int,
        *,
        num_micro_batches: int | None = None,
        stop_requested: bool = False,
        is_long: bool = True,
        is_timed: bool = False,
    ) -> AgreedUpdate:
        """Adds up the denominators of all ranks, and checks and exchanges what all must know before an update.

        Args:
          num_micro_batches: only the first so many of the A count; None for all. It must be the
            same on all ranks, but may change from update to update.
          stop_requested: whether this rank asks all to stop after this update.
          is_long: whether this rank may take long: the first update is compiled, which may take minutes.
          is_timed: whether to wait for the device in order to measure `UpdateResult.own_secs` and `waited_secs`.

        Raises:
          UserError: ranks disagree about the position in the data.
        """
        started = time.monotonic()
        local_facts = [batch_number, stop_requested, is_long, *self._objective.local_denominators(features)]
        by_rank = self._workers.gather(np.array(local_facts, np.float64))  # a row for each rank
        waited_secs = time.monotonic() - started
        differing = np.flatnonzero(by_rank[:, 0] != by_rank[0, 0])
        if differing.size:
            raise UserError(
                f"rank {differing[0]} has another position in the data than rank 0 ({by_rank[differing[0], 0]:.0f}, "
                f"not {by_rank[0, 0]:.0f}); start all ranks with the same arguments in the same run folder"
            )
        any_stops, any_is_long = by_rank[:, 1:3].any(axis=0).tolist()
        totals_K = np.maximum(by_rank[:, 3:].sum(axis=0), 1.0)
        # Made now, while the device is idle: later the copy, and so the host, would wait for pending work.
        metric_totals_M = tf.constant(self._objective.metric_denominators(totals_K), tf.float32)
        global_facts = (totals_K, metric_totals_M, any_stops, any_is_long)
        return AgreedUpdate(features, batch_number, num_micro_batches, *global_facts, is_timed, waited_secs)

    def sum_gradients(self, update: AgreedUpdate) -> GradientSums:
        """This rank's gradients and metrics.

        Raises:
          OutOfMemoryError: the memory is too small; unless the update is timed, only `apply` may raise it.
        """
        started = time.monotonic()
        num_accumulation_steps, micro_batch_size = update.shape
        # Scaled up by A*R, so that a micro-batch's loss has the magnitude of its mean: dividing by
        # the global count alone would make gradients too small for float16.
        loss_weights = tf.constant(num_accumulation_steps * self._workers.size / update.totals_K, tf.float32)
        num_micro_batches = update.num_micro_batches or num_accumulation_steps
        first_row = self._workers.rank * num_micro_batches * micro_batch_size
        with _as_out_of_memory(update):
            gradients, metrics_M = self._sum(
                update.features,
                loss_weights,
                self._loss_scale.scale,
                tf.constant(update_key(self._seed, update.batch_number)),
                tf.constant(first_row, tf.int64),
                None if update.num_micro_batches is None else tf.constant(update.num_micro_batches),
            )
            if update.is_timed:
                metrics_M.numpy()  # waits for the device
        ended = time.monotonic()
        return GradientSums(gradients, metrics_M, ended - started, ended)

    def apply(self, update: AgreedUpdate, sums: GradientSums) -> UpdateResult:
        """Averages the gradients over the ranks and updates the weights."""
        num_accumulation_steps, _ = update.shape
        with _as_out_of_memory(update), self._workers.expecting_all_ranks():
            means, metric_means_M = sums.gradients, sums.metrics_M
            if self._has_exchange:
                means, metric_means_M = self._reduce(means, metric_means_M, num_accumulation_steps)
            if update.is_timed:
                metric_means_M.numpy()
            waited_secs = update.waited_secs + time.monotonic() - sums.ended_at if self._workers.size > 1 else 0.0
            results = self._apply(means, metric_means_M, update.metric_totals_M, num_accumulation_steps)
        return UpdateResult(update.stop_requested, sums.own_secs, waited_secs, *results)

    def _unpack(self, gradients: tf.Tensor, dtype: tf.DType) -> list[tf.Tensor]:
        return unpack(gradients, dtype, [variable.shape for variable in self.variables])

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

        # TensorFlow keeps int32 tensors on the host even on GPU machines, so they would be copied back and forth.
        features = {
            name: tf.cast(values, tf.int64) if values.dtype == tf.int32 else values for name, values in features.items()
        }

        backend, encoder = self.model.backend, self.model.bert
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
            with tf.GradientTape() as tape, encoder.weight_copies.reading_from(copies):
                tape.watch(copies.values())
                losses_K, metrics_M = self._objective(self.model, micro_batch, DropoutKey(key, row))
                loss = tf.reduce_sum(losses_K * loss_weights_K) * scale
            gradients, copies_gradients = tape.gradient(loss, (variables, list(copies.values())))
            by_variable = dict(zip(copies, copies_gradients))
            sums = [
                add(add(total, by_variable.get(variable.ref())), gradient)
                for total, variable, gradient in zip(gradient_sums, variables, gradients)
            ]
            return number + 1, sums, metric_sums + metrics_M

        # 0, but not a constant: TensorFlow would keep constants of up to 10 MB each for the life of the process.
        zero = tf.cast(tf.minimum(first_row, 0), tf.float32)

        def is_counted(number, *_):
            # A constant, so that XLA learns from `maximum_iterations` how often the loop runs.
            return tf.constant(True) if num_micro_batches is None else number < num_micro_batches

        # A loop in the graph, not in Python: unrolled, 16 micro-batches take minutes to compile.
        _, gradient_sums, metric_sums = tf.while_loop(
            is_counted,
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

    def _divisor(self, num_accumulation_steps: int) -> float:
        """The divisor of gradients before they are sent: in half precision sums over micro-batches could overflow."""
        return 1.0 if self._reduce_dtype == tf.float32 else float(num_accumulation_steps)

    def _mean_over_ranks(
        self, gradient_sums: tf.Tensor, metric_sums_M: tf.Tensor, num_accumulation_steps: int
    ) -> tuple[tf.Tensor, tf.Tensor]:
        gradients = self._unpack(gradient_sums, tf.float32)
        if self._reduce_dtype != tf.float32:
            divisor = self._divisor(num_accumulation_steps)
            gradients = [tf.cast(gradient / divisor, self._reduce_dtype) for gradient in gradients]
        # The metrics are sent with the gradients: each separate all-reduce costs some milliseconds.
        *means, metric_means_M = self._workers.mean([*gradients, metric_sums_M])
        return pack(means), metric_means_M

    def _clip_and_apply(
        self, means: tf.Tensor, metric_means_M: tf.Tensor, metric_totals_M: tf.Tensor, num_accumulation_steps: int
    ) -> tuple[tf.Tensor, ...]:
        """Unscales and clips the gradients, and applies the update if they are finite."""
        gradients = [tf.cast(mean, tf.float32) for mean in self._unpack(means, self._reduce_dtype)]
        metrics_M = metric_means_M * self._workers.size / metric_totals_M
        scale = tf.identity(self._loss_scale.scale)
        unscale = self._divisor(num_accumulation_steps) / (num_accumulation_steps * scale)
        norm, norms_V = (values * unscale for values in gradient_norms(gradients, self._optimizer.compiled))
        is_finite = tf.math.is_finite(norm)
        rate = tf.identity(self._optimizer.current_learning_rate())
        clip = 1.0 / tf.maximum(norm / self._optimizer.global_clipnorm, 1.0)
        changes_Vx3 = self._optimizer.apply_update(gradients, self.variables, unscale * clip, is_finite)
        self._loss_scale.update(is_finite)
        return metrics_M, norm, is_finite, rate, scale, norms_V, changes_Vx3


@contextlib.contextmanager
def _as_out_of_memory(update: AgreedUpdate) -> Iterator[None]:
    """Turns TensorFlow's error into one that names the size of the micro-batches."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise OutOfMemoryError(update.shape[1], error) from None
