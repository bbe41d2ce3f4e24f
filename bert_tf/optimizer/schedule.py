"""The learning rate: warm-up, then a polynomial decay."""

from __future__ import annotations

import math
from typing import Any

from bert_tf.base.tensorflow import keras, tf


def check_range(*, high: float = math.inf, is_open: bool = False, **values: float) -> None:
    """Raises ValueError if a value lies outside [0, high), or (0, high) if `is_open`; NaN lies outside."""
    for name, value in values.items():
        if not (0 < value < high or (value == 0 and not is_open)):
            raise ValueError(f"{name}={value}: must lie in {'(' if is_open else '['}0, {high:g})")


@keras.utils.register_keras_serializable("bert_tf")
class WarmupPolynomialDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then peak * ((total - t) / (total - decay_start))^power; t is the number of updates applied.

    If the decay is counted from update 0, the rate drops at the end of the warm-up to the peak times
    (1 - warmup/total)^power; that is the published recipe. Counted from the end of the warm-up, it does not drop;
    counted from a later update, it stays at its peak until then (a trapezoid). From `total_steps` on the rate is 0.

    Args:
      peak_learning_rate: the rate at the end of the warm-up.
      warmup_steps: number of warm-up updates; 0 for none.
      total_steps: updates after which the rate is 0.
      power: 0.5 in the LAMB recipe, 1 with Adam.
      decay_start: the update from which the decay is counted.

    Raises:
      ValueError: total_steps is not positive, warmup_steps or decay_start is not in [0, total_steps], or
        peak_learning_rate or power is negative or not finite.
    """

    def __init__(
        self,
        peak_learning_rate: float,
        warmup_steps: int,
        total_steps: int,
        power: float = 1.0,
        decay_start: int = 0,
        name: str = "WarmupPolynomialDecay",
    ):
        check_range(is_open=True, total_steps=total_steps)
        check_range(high=total_steps + 1, warmup_steps=warmup_steps, decay_start=decay_start)
        check_range(peak_learning_rate=peak_learning_rate, power=power)
        self.peak_learning_rate, self.warmup_steps, self.total_steps = peak_learning_rate, warmup_steps, total_steps
        self.power, self.decay_start, self.name = power, decay_start, name

    def __call__(self, step: Any) -> tf.Tensor:
        """The rate of the update after `step` applied updates: float32 scalar."""
        with tf.name_scope(self.name):
            step = tf.cast(step, tf.float32)
            warming = step / max(self.warmup_steps, 1)
            start = min(self.decay_start, self.total_steps - 1)  # at least one step of decay, or `left` would be 0 / 0
            left = tf.maximum(self.total_steps - tf.maximum(step, start), 0.0) / (self.total_steps - start)
            return self.peak_learning_rate * tf.where(step < self.warmup_steps, warming, left**self.power)

    def get_config(self) -> dict[str, Any]:
        names = ("peak_learning_rate", "warmup_steps", "total_steps", "power", "decay_start", "name")
        return {name: getattr(self, name) for name in names}
