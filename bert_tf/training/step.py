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

So a micro-batch for which a rank's memory is too small can be halved in the middle of a run.

Shape letters: A micro-batches of an update, B micro-batch, R ranks, K denominators, M metrics,
V variables.
"""

from __future__ import annotations

import functools
import hashlib
import math
import time
from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.memory.plan import BatchSplit, halve
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.optimizer.update_rules import gradient_norms
from bert_tf.ranks.workers import Workers
from bert_tf.run.statistics import UpdateResult

Features = dict[str, tf.Tensor]

# From here on the ranks may differ so much in what an update takes them that they wait for each
# other with patience (`Workers.run_keeping_alive`), and not in the all-reduce.
LONG_UPDATE_SECS = 10.0

# After so many updates whatever needs memory has had it: the first ones compile, too.
TRIAL_UPDATES = 3


def _now() -> tf.Tensor:
    """The host's clock in seconds when the graph comes here. tf.timestamp is refused under --deterministic."""
    return tf.numpy_function(time.monotonic, [], tf.float64)


class OutOfMemory(UserError):
    """TensorFlow said that the memory is too small for the micro-batch."""


def _out_of_memory(micro_batch_size: int, error: tf.errors.OpError) -> OutOfMemory:
    return OutOfMemory(
        f"out of memory with a micro-batch of {micro_batch_size} ({str(error).splitlines()[0]}); --plan says what "
        "fits: a smaller --train_batch_size with more --num_accumulation_steps is the same update, --recompute takes "
        "less memory, and --train_batch_size=auto finds the size by itself"
    )


class TrainStep:
    """Makes updates. Compiled once for fixed shapes; called by all ranks alike.

    Args:
      model: a model of `bert_tf.model`; its trainable variables are updated.
      objective: of `bert_tf.model.losses`; gives loss sums, denominators and metrics.
      optimizer: of `bert_tf.optimizer`; its `iterations` counts updates applied.
      workers: the ranks.
      loss_scale: dynamic in float16, else fixed at 1.
      num_accumulation_steps: A. Features come as [A, B, ...].
      micro_batch_size: B.
      scope: what XLA compiles; "step" compiles the whole accumulation.
      seed: of the dropout masks.
      settings: anything that must be equal on all ranks; only its hash travels.
      reduce_dtype: type in which gradients travel between ranks. They are still scaled then, so that
        float16 can hold them.
      on_halving: where given, the first updates halve B on all ranks when one is out of memory, and
        call this with what happened.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        objective,
        optimizer,
        workers: Workers,
        loss_scale: LossScale,
        *,
        num_accumulation_steps: int,
        micro_batch_size: int,
        scope: str,
        seed: int,
        settings: str = "",
        reduce_dtype: str = "float32",
        on_halving: Callable[[str], None] | None = None,
    ):
        self._model, self._objective, self._optimizer = model, objective, optimizer
        self._workers, self._loss_scale, self._seed, self._scope = workers, loss_scale, seed, scope
        self._reduce_dtype = tf.as_dtype(reduce_dtype)
        self._on_halving = on_halving
        self._num_trials = TRIAL_UPDATES if on_halving else 0
        # Half of a double's 53 bits are plenty for noticing that two ranks disagree.
        self._fingerprint = int(hashlib.sha256(settings.encode()).hexdigest()[:12], 16)
        self._last_secs = math.inf  # the first update compiles, which may take minutes
        self.variables: list[tf.Variable] = list(model.trainable_variables)
        optimizer.build(self.variables)
        self._split(num_accumulation_steps, micro_batch_size)

    def _split(self, num_accumulation_steps: int, micro_batch_size: int) -> None:
        """Sets how the rank's rows of an update are split, and makes the functions anew."""
        self._num_accumulation_steps, self._micro_batch_size = num_accumulation_steps, micro_batch_size
        self._accumulate = tf.function(
            self._accumulate_micro_batches, jit_compile=self._scope == "step", autograph=False
        )
        self._apply = tf.function(self._reduce_and_apply, autograph=False)

    def __call__(
        self, features: Features, batch_number: int, stop_requested: bool = False, num_micro_batches: int | None = None
    ) -> UpdateResult:
        """Updates the weights with this rank's features [A, B, ...] of global batch `batch_number`.

        Args:
          num_micro_batches: how many of the A count, from the first one on; None for all. It must be
            the same on all ranks, and may be another one in each update.

        Raises:
          UserError: ranks disagree about settings or position, or the memory is too small.
        """
        local = self._objective.local_denominators(features)
        gather_started = time.monotonic()
        totals, stop_requested, is_long = self._agree(local, batch_number, stop_requested)
        gather_secs = time.monotonic() - gather_started
        # Before there is work for a device: what goes there later waits for that work, and the host with it.
        metric_totals = tf.constant(totals[list(self._objective.metric_denominators)], tf.float32)
        sums = self._sum_gradients(features, totals, batch_number, num_micro_batches, is_long)
        while sums is None:
            self._halve()
            sums = self._sum_gradients(features, totals, batch_number, num_micro_batches, is_long)
        try:
            with self._workers.expecting_all():
                results = self._apply(*sums, metric_totals)
        except tf.errors.ResourceExhaustedError as error:
            raise _out_of_memory(self._micro_batch_size, error) from None
        return UpdateResult(stop_requested, gather_secs, *results)

    def _sum_gradients(
        self, features: Features, totals: np.ndarray, batch_number: int, num_micro_batches: int | None, is_long: bool
    ) -> tuple[list[tf.Tensor], tf.Tensor] | None:
        """This rank's gradients and metrics; None where B is on trial and some rank's memory too small for it."""
        shape = [self._num_accumulation_steps, self._micro_batch_size]
        features = {
            name: values if values.shape[:2] == shape else tf.reshape(values, [*shape, *values.shape[2:]])
            for name, values in features.items()
        }
        share = self._num_accumulation_steps * self._workers.size
        # Scaled up by A*R, so that a micro-batch's loss is of the order of its mean: dividing by
        # the global count here would make gradients too small for float16.
        loss_weights = tf.constant(share / totals, tf.float32)
        per_rank = num_micro_batches or self._num_accumulation_steps
        first_row = self._workers.rank * per_rank * self._micro_batch_size
        accumulate = functools.partial(
            self._accumulate,
            features,
            loss_weights,
            self._loss_scale.scale,
            tf.constant(update_key(self._seed, batch_number)),
            tf.constant(first_row, tf.int64),
            None if num_micro_batches is None else tf.constant(num_micro_batches),
        )
        work = functools.partial(self._try, accumulate)
        started = time.monotonic()
        sums = self._workers.run_keeping_alive(work) if is_long else work()
        self._last_secs = time.monotonic() - started
        if self._num_trials:
            self._num_trials -= 1
            if self._workers.gather(np.array([sums is None], np.float64)).any():
                return None
        return sums

    def _try(self, accumulate: Callable) -> tuple[list[tf.Tensor], tf.Tensor] | None:
        """What `accumulate` returns; None where B is on trial and the memory too small for it."""
        try:
            gradients, metric_sums = accumulate()
            if self._num_trials:
                metric_sums.numpy()  # waits for the device, which may say only then that its memory is too small
            return gradients, metric_sums
        except tf.errors.ResourceExhaustedError as error:
            if not self._num_trials or self._micro_batch_size == 1:
                raise _out_of_memory(self._micro_batch_size, error) from None
            return None

    def _halve(self) -> None:
        size, num_steps = self._micro_batch_size, self._num_accumulation_steps
        half = halve(BatchSplit(size, num_steps, True))
        assert self._on_halving  # or nothing is on trial
        self._on_halving(
            f"out of memory with a micro-batch of {size}: going on with {half.num_accumulation_steps} micro-batches of "
            f"{half.micro_batch_size} instead of {num_steps} of {size}, the same examples in each update"
        )
        self._split(half.num_accumulation_steps, half.micro_batch_size)
        self._num_trials = TRIAL_UPDATES

    def _agree(self, local: np.ndarray, batch_number: int, stop_requested: bool) -> tuple[np.ndarray, bool, bool]:
        """Denominators over all ranks, whether any rank wants to stop, and whether any was slow."""
        is_long = self._last_secs > LONG_UPDATE_SECS
        mine = np.array([self._fingerprint, batch_number, stop_requested, is_long, *local], np.float64)
        everyone = self._workers.gather(mine)
        for column, what in ((0, "settings"), (1, "position in the data")):
            differing = np.flatnonzero(everyone[:, column] != everyone[0, column])
            if differing.size:
                raise UserError(
                    f"rank {differing[0]} has other {what} than rank 0 "
                    f"({everyone[differing[0], column]:.0f}, not {everyone[0, column]:.0f}); "
                    "start all ranks with the same arguments in the same run folder"
                )
        any_stops, any_is_long = everyone[:, 2:4].any(axis=0)
        return np.maximum(everyone[:, 4:].sum(axis=0), 1.0), bool(any_stops), bool(any_is_long)

    def _accumulate_micro_batches(
        self,
        features: Features,
        loss_weights_K: tf.Tensor,
        scale: tf.Tensor,
        key: tf.Tensor,
        first_row: tf.Tensor,
        num_micro_batches: tf.Tensor | None = None,
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
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
            sums = [
                total + tf.cast(tf.convert_to_tensor(gradient), tf.float32)
                for total, gradient in zip(gradient_sums, gradients)
            ]
            return number + 1, sums, metric_sums + metrics_M

        # 0, but unknown to TensorFlow, which keeps constants of up to 10 MB each as long as it lives.
        zero = tf.cast(tf.minimum(first_row, 0), tf.float32)
        # A loop of the graph, not of Python: unrolled, 16 micro-batches take minutes to compile.
        _, gradient_sums, metric_sums = tf.while_loop(
            lambda number, *_: number < end,
            add_micro_batch,
            (
                tf.constant(0),
                [tf.fill(variable.shape, zero) for variable in variables],
                tf.zeros([len(self._objective.metric_names)]),
            ),
            maximum_iterations=self._num_accumulation_steps,
            parallel_iterations=1,
        )
        return gradient_sums, metric_sums

    def _reduce_and_apply(
        self, gradients: Sequence[tf.Tensor], metric_sums_M: tf.Tensor, metric_totals_M: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """All-reduces, decides whether the update is sound, clips and applies it."""
        # The metrics travel with the gradients: every reduction by itself costs some milliseconds.
        (*gradients, metric_means_M), reduce_secs = self._timed_mean([*self._compress(gradients), metric_sums_M])
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

    def _timed_mean(self, sent: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Means over the ranks, and the seconds that took. One rank does without the clock, a call back to the host."""
        if self._workers.size == 1:
            return self._workers.mean(sent), tf.zeros([], tf.float64)
        with tf.control_dependencies(sent):
            started = _now()
        with tf.control_dependencies([started]):
            means = self._workers.mean(sent)
        with tf.control_dependencies(means):
            return means, _now() - started

    def _compress(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """What travels between the ranks: in half precision the means, which fit its range, not the sums."""
        if self._reduce_dtype == tf.float32:
            return list(gradients)
        share = 1.0 / (self._num_accumulation_steps * self._workers.size)
        return [tf.cast(gradient * share, self._reduce_dtype) for gradient in gradients]

    def _decompress(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if self._reduce_dtype == tf.float32:
            return list(gradients)
        share = float(self._num_accumulation_steps * self._workers.size)
        return [tf.cast(gradient, tf.float32) * share for gradient in gradients]
