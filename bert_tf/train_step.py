"""One update: denominators, accumulation, one all-reduce, clipping, optimiser.

The update is a function of (weights, batch number, seed, data). It does not depend on how the
global batch is split into micro-batches and ranks (sums up to float rounding, masks exactly), nor
on what is compiled:

* Losses are sums over instances, divided by what the *whole* update holds. So the number of
  masked tokens of all ranks is known before the first backward pass.
* Masks follow the row's number in the global batch (`randomness`). Rows are rank-major: rank r,
  micro-batch a, row b is number (r*A + a)*B + b. Packed rows (`packing`) number the rows, not the
  instances, and there A is how many micro-batches the update has, up to the A of the shapes.
* Gradients are summed in float32 over A micro-batches inside one loop, averaged over the R ranks
  in one reduction, and unscaled after it.

Shape letters: A micro-batches of an update, B micro-batch, R ranks, K denominators, M metrics,
V variables.
"""
from __future__ import annotations

import functools
import hashlib
import math
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from bert_tf.distributed import Workers
from bert_tf.errors import UserError
from bert_tf.optimization import LossScale, gradient_norms
from bert_tf.randomness import DropoutKey, update_key

Features = Dict[str, tf.Tensor]

# From here on the ranks may differ so much in what an update takes them that they wait for each
# other with patience (`Workers.together`), and not in the all-reduce.
LONG_UPDATE_SECS = 10.0


def _now() -> tf.Tensor:
    """The host's clock in seconds when the graph comes here. tf.timestamp is refused under --deterministic."""
    return tf.numpy_function(time.monotonic, [], tf.float64)


class UpdateResult(NamedTuple):
    """What one update did. Reading a tensor waits for the update."""

    stop_requested: bool  # some rank asked all to stop after this update
    gather_secs: float  # of the exchange before the first backward pass, waiting for the slowest rank included
    metrics: tf.Tensor  # float32 [M]: means over the global batch, named by the objective
    gradient_norm: tf.Tensor  # of the global gradient before clipping
    is_finite: tf.Tensor  # bool; False: nothing was changed
    learning_rate: tf.Tensor
    loss_scale: tf.Tensor
    norm_by_variable: tf.Tensor  # float32 [V]: as gradient_norm, of each of `TrainStep.variables`
    change_by_variable: tf.Tensor  # float32 [V, 3]: norms of weights and change, trust ratio (`apply_update`)
    reduce_secs: tf.Tensor  # likewise, of the all-reduce


class TrainStep:
    """Makes updates. Compiled once for fixed shapes; called by all ranks alike.

    Args:
      model: a model of `bert_tf.model`; its trainable variables are updated.
      objective: of `bert_tf.losses`; gives loss sums, denominators and metrics.
      optimizer: of `bert_tf.optimization`; its `iterations` counts updates applied.
      workers: the ranks.
      loss_scale: dynamic in float16, else fixed at 1.
      num_accumulation_steps: A. Features come as [A, B, ...].
      micro_batch_size: B.
      scope: what XLA compiles; "step" compiles the whole accumulation.
      seed: of the dropout masks.
      settings: anything that must be equal on all ranks; only its hash travels.
      reduce_dtype: type in which gradients travel between ranks. They are still scaled then, so that
        float16 can hold them.
    """

    def __init__(self, model: tf.keras.Model, objective, optimizer, workers: Workers, loss_scale: LossScale, *,
                 num_accumulation_steps: int, micro_batch_size: int, scope: str, seed: int, settings: str = "",
                 reduce_dtype: str = "float32"):
        self._model, self._objective, self._optimizer = model, objective, optimizer
        self._workers, self._loss_scale, self._seed = workers, loss_scale, seed
        self._reduce_dtype = tf.as_dtype(reduce_dtype)
        self._num_accumulation_steps, self._micro_batch_size = num_accumulation_steps, micro_batch_size
        # Half of a double's 53 bits are plenty for noticing that two ranks disagree.
        self._fingerprint = int(hashlib.sha256(settings.encode()).hexdigest()[:12], 16)
        self._last_secs = math.inf  # the first update compiles, which may take minutes
        self.variables: List[tf.Variable] = list(model.trainable_variables)
        optimizer.build(self.variables)
        self._accumulate = tf.function(self._accumulate_micro_batches, jit_compile=scope == "step", autograph=False)
        self._apply = tf.function(self._reduce_and_apply, autograph=False)

    def __call__(self, features: Features, batch_number: int, stop_requested: bool = False,
                 num_micro_batches: Optional[int] = None) -> UpdateResult:
        """Updates the weights with this rank's features [A, B, ...] of global batch `batch_number`.

        Args:
          num_micro_batches: how many of the A count, from the first one on; None for all. It must be
            the same on all ranks, and may be another one in each update.

        Raises:
          UserError: ranks disagree about settings or position.
        """
        local = self._objective.local_denominators(features).numpy()
        gather_started = time.monotonic()
        totals, stop_requested, is_long = self._agree(local, batch_number, stop_requested)
        gather_secs = time.monotonic() - gather_started
        share = self._num_accumulation_steps * self._workers.size
        # Scaled up by A*R, so that a micro-batch's loss is of the order of its mean: dividing by
        # the global count here would make gradients too small for float16.
        loss_weights = tf.constant(share / totals, tf.float32)
        per_rank = num_micro_batches or self._num_accumulation_steps
        first_row = self._workers.rank * per_rank * self._micro_batch_size
        accumulate = functools.partial(
            self._accumulate, features, loss_weights, self._loss_scale.scale,
            tf.constant(update_key(self._seed, batch_number)), tf.constant(first_row, tf.int64),
            None if num_micro_batches is None else tf.constant(num_micro_batches))
        started = time.monotonic()
        gradients, metric_sums = self._workers.together(accumulate) if is_long else accumulate()
        self._last_secs = time.monotonic() - started
        metric_totals = totals[list(self._objective.metric_denominators)]
        with self._workers.expecting_all():
            results = self._apply(gradients, metric_sums, tf.constant(metric_totals, tf.float32))
        return UpdateResult(stop_requested, gather_secs, *results)

    def _agree(self, local: np.ndarray, batch_number: int, stop_requested: bool
               ) -> Tuple[np.ndarray, bool, bool]:
        """Denominators over all ranks, whether any rank wants to stop, and whether any was slow."""
        is_long = self._last_secs > LONG_UPDATE_SECS
        mine = np.array([self._fingerprint, batch_number, stop_requested, is_long, *local], np.float64)
        everyone = self._workers.gather(mine)
        for column, what in ((0, "settings"), (1, "position in the data")):
            differing = np.flatnonzero(everyone[:, column] != everyone[0, column])
            if differing.size:
                raise UserError(f"rank {differing[0]} has other {what} than rank 0 "
                                f"({everyone[differing[0], column]:.0f}, not {everyone[0, column]:.0f}); "
                                "start all ranks with the same arguments in the same run folder")
        any_stops, any_is_long = everyone[:, 2:4].any(axis=0)
        return np.maximum(everyone[:, 4:].sum(axis=0), 1.0), bool(any_stops), bool(any_is_long)

    def _accumulate_micro_batches(self, features: Features, loss_weights_K: tf.Tensor, scale: tf.Tensor,
                                  key: tf.Tensor, first_row: tf.Tensor,
                                  num_micro_batches: Optional[tf.Tensor] = None) -> Tuple[List[tf.Tensor], tf.Tensor]:
        """Sums over the micro-batches of the scaled gradients (float32) and of the metrics."""
        variables = self.variables
        end = self._num_accumulation_steps if num_micro_batches is None else num_micro_batches

        def add_micro_batch(number, gradient_sums, metric_sums):
            micro_batch = {name: tf.gather(values, number) for name, values in features.items()}
            row = first_row + tf.cast(number, tf.int64) * self._micro_batch_size
            with tf.GradientTape() as tape:
                losses_K, metrics_M = self._objective(self._model, micro_batch, DropoutKey(key, row))
                loss = tf.reduce_sum(losses_K * loss_weights_K) * scale
            gradients = tape.gradient(loss, variables)
            sums = [total + tf.cast(tf.convert_to_tensor(gradient), tf.float32)
                    for total, gradient in zip(gradient_sums, gradients)]
            return number + 1, sums, metric_sums + metrics_M

        # A loop of the graph, not of Python: unrolled, 16 micro-batches take minutes to compile.
        _, gradient_sums, metric_sums = tf.while_loop(
            lambda number, *_: number < end, add_micro_batch,
            (tf.constant(0), [tf.zeros(variable.shape) for variable in variables],
             tf.zeros([len(self._objective.metric_names)])),
            maximum_iterations=self._num_accumulation_steps, parallel_iterations=1)
        return gradient_sums, metric_sums

    def _reduce_and_apply(self, gradients: Sequence[tf.Tensor], metric_sums_M: tf.Tensor,
                          metric_totals_M: tf.Tensor) -> Tuple[tf.Tensor, ...]:
        """All-reduces, decides whether the update is sound, clips and applies it."""
        # The metrics travel with the gradients: every reduction by itself costs some milliseconds.
        sent = [*self._compress(gradients), metric_sums_M]
        with tf.control_dependencies(sent):
            started = _now()
        with tf.control_dependencies([started]):
            *gradients, metric_means_M = self._workers.mean(sent)
        with tf.control_dependencies([*gradients, metric_means_M]):
            reduce_secs = _now() - started
        gradients = self._decompress(gradients)
        metrics_M = metric_means_M * self._workers.size / metric_totals_M
        scale = tf.identity(self._loss_scale.scale)
        unscale = 1.0 / (self._num_accumulation_steps * scale)
        norm, norms_V = (values * unscale for values in gradient_norms(gradients))
        is_finite = tf.math.is_finite(norm)
        learning_rate = tf.identity(self._optimizer.current_learning_rate())
        clip = 1.0 / tf.maximum(norm / self._optimizer.global_clipnorm, 1.0)
        changes_Vx3 = self._optimizer.apply_update(gradients, self.variables, unscale * clip, is_finite)
        self._loss_scale.update(is_finite)
        return metrics_M, norm, is_finite, learning_rate, scale, norms_V, changes_Vx3, reduce_secs

    def _compress(self, gradients: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        """What travels between the ranks: in half precision the means, which fit its range, not the sums."""
        if self._reduce_dtype == tf.float32:
            return list(gradients)
        share = 1.0 / (self._num_accumulation_steps * self._workers.size)
        return [tf.cast(gradient * share, self._reduce_dtype) for gradient in gradients]

    def _decompress(self, gradients: Sequence[tf.Tensor]) -> List[tf.Tensor]:
        if self._reduce_dtype == tf.float32:
            return list(gradients)
        share = float(self._num_accumulation_steps * self._workers.size)
        return [tf.cast(gradient, tf.float32) * share for gradient in gradients]
