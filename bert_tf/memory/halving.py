"""Halves the micro-batch when the first updates run out of memory; the update stays the same.

On a GPU, running out of memory raises an error, and an update does not depend on how its rows are split
into micro-batches. So the micro-batch that `memory.plan` predicts to fit is tried in the first updates.
On a CPU the process is usually killed instead; there only the plan decides.

Shape letters: A micro-batches of an update, B micro-batch.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError, first_line
from bert_tf.settings.training import BatchSplit

# After this many updates, which include compilation, all memory has been allocated.
TRIAL_UPDATES = 3


def out_of_memory(micro_batch_size: int, error: tf.errors.OpError) -> UserError:
    """The error to raise if no smaller micro-batch is tried or possible."""
    return UserError(
        f"out of memory with a micro-batch of {micro_batch_size} ({first_line(error)}); --plan says what "
        "fits: a smaller --train_batch_size with more --num_accumulation_steps is the same update, --recompute takes "
        "less memory, and --train_batch_size=auto finds the size by itself"
    )


def halve(split: BatchSplit) -> BatchSplit:
    """The same rows in micro-batches of the largest size that divides them and is at most half the present one."""
    sizes = range(split.micro_batch_size // 2, 0, -1)
    return split.with_micro_batch(next(size for size in sizes if split.rows_per_rank % size == 0))


class HalvingStep:
    """A training step whose first updates may run out of memory: then all ranks halve the micro-batch and try again.

    Args:
      step: makes updates in stages, like `training.step.TrainStep`.
      workers: the ranks, from `ranks.workers`.
      split: how the features are split into micro-batches when they arrive.
      say: called with a message at each halving.
    """

    def __init__(self, step: Any, workers: Any, split: BatchSplit, say: Callable[[str], None]):
        self._step, self._workers, self._say = step, workers, say
        self.split = split  # the present one
        self._num_trials = TRIAL_UPDATES

    @property
    def variables(self) -> list[tf.Variable]:
        return self._step.variables

    def __call__(self, features: dict[str, tf.Tensor], *arguments: Any, **options: Any) -> Any:
        """Like the wrapped step's `__call__`; not for packed rows, whose split is fixed."""
        while self._num_trials:
            update = self._step.agree(self._reshaped(features), *arguments, **options)
            sums = self._workers.run_keeping_alive(functools.partial(self._try, update))
            if not self._workers.gather(np.array([sums is None], np.float64)).any():
                self._num_trials -= 1
                return self._step.apply(update, sums)
            self._halve()
        return self._step(self._reshaped(features), *arguments, **options)

    def _reshaped(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        shape = [self.split.num_accumulation_steps, self.split.micro_batch_size]
        return {
            name: values if values.shape[:2] == shape else tf.reshape(values, [*shape, *values.shape[2:]])
            for name, values in features.items()
        }

    def _try(self, update: Any) -> Any:
        """This rank's sums; None if the memory is too small."""
        try:
            gradients, metric_sums = self._step.sum_gradients(update)
            metric_sums.numpy()  # waits for the device, which may only then report that its memory is too small
            return gradients, metric_sums
        except tf.errors.ResourceExhaustedError as error:
            if self.split.micro_batch_size == 1:
                raise out_of_memory(1, error) from None
            return None

    def _halve(self) -> None:
        old, new = self.split, halve(self.split)
        self._say(
            f"out of memory with a micro-batch of {old.micro_batch_size}: going on with {new.num_accumulation_steps} "
            f"micro-batches of {new.micro_batch_size} instead of {old.num_accumulation_steps} of "
            f"{old.micro_batch_size}, the same examples in each update"
        )
        self.split, self._num_trials = new, TRIAL_UPDATES
