"""Dynamic loss scaling for float16."""

from __future__ import annotations

from collections.abc import Mapping

from bert_tf.base.tensorflow import tf


class LossScale:
    """The factor by which the loss is multiplied, so that small gradients do not vanish in float16.

    It is halved when an update has a non-finite gradient, and doubled after `growth_interval` consecutive
    finite ones, within [1, 2^24] (arXiv 1710.03740). If not `enabled` it stays 1, but skipped updates are
    still counted.
    """

    MAXIMUM = 2.0**24
    _STATE = ("scale", "good_updates", "consecutive_skips")

    def __init__(self, enabled: bool = True, growth_interval: int = 2000):
        self.enabled, self._growth_interval = enabled, growth_interval
        self.scale = tf.Variable(2.0**15 if enabled else 1.0, trainable=False, dtype=tf.float32, name="loss_scale")
        # int64, because TensorFlow computes int32 on the host, which would have to wait for the device.
        self.good_updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_updates")
        self.consecutive_skips = tf.Variable(0, trainable=False, dtype=tf.int64, name="consecutive_skips")

    @property
    def variables(self) -> list[tf.Variable]:
        return [getattr(self, name) for name in self._STATE]

    def update(self, is_finite: tf.Tensor) -> None:
        """Records whether an update was finite (bool scalar), and adapts the scale. Does not wait for the device."""
        applied = tf.cast(is_finite, tf.int64)
        self.consecutive_skips.assign((self.consecutive_skips + 1) * (1 - applied))
        if not self.enabled:
            return
        good_updates = (self.good_updates + 1) * applied
        grow = good_updates >= self._growth_interval
        scale = tf.where(is_finite, tf.where(grow, self.scale * 2.0, self.scale), self.scale / 2.0)
        self.scale.assign(tf.clip_by_value(scale, 1.0, self.MAXIMUM))
        self.good_updates.assign(tf.where(grow, tf.zeros_like(good_updates), good_updates))

    def num_consecutive_skips(self) -> int:
        """Updates skipped since the last applied one. Waits for the device."""
        return int(self.consecutive_skips.numpy())

    def state(self) -> dict[str, float]:
        """The state for a checkpoint. Waits for the device."""
        return {name: getattr(self, name).numpy().item() for name in self._STATE}

    def restore(self, state: Mapping[str, float]) -> None:
        for name in self._STATE:
            getattr(self, name).assign(state[name])
