"""float16's dynamic loss scale: the factor that keeps small gradients from vanishing."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf


class LossScale:
    """The factor by which float16's loss is multiplied, so that small gradients do not vanish.

    It is halved by an update with a non-finite gradient and doubled after `growth_interval` sound
    ones in a row, within [1, 2^24] (dynamic loss scaling, arXiv 1710.03740). Where not `enabled` it
    stays 1; skipped updates are counted all the same.
    """

    MAXIMUM = 2.0**24

    def __init__(self, enabled: bool = True, initial: float = 2.0**15, growth_interval: int = 2000):
        self.enabled, self._growth_interval = enabled, growth_interval
        self.scale = tf.Variable(initial if enabled else 1.0, trainable=False, dtype=tf.float32, name="loss_scale")
        # Of 64 bits: TensorFlow computes with int32 on the host, which would have to wait for the outcome.
        self.good_updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="good_updates")
        self.consecutive_skips = tf.Variable(0, trainable=False, dtype=tf.int64, name="consecutive_skips")

    @property
    def variables(self) -> list[tf.Variable]:
        return [self.scale, self.good_updates, self.consecutive_skips]

    def update(self, is_finite: tf.Tensor) -> None:
        """Notes an update's outcome, a bool scalar, without waiting for it."""
        sound = tf.cast(is_finite, tf.int64)
        self.consecutive_skips.assign((self.consecutive_skips + 1) * (1 - sound))
        if not self.enabled:
            return
        good_updates = (self.good_updates + 1) * sound
        grow = good_updates >= self._growth_interval
        wanted = tf.where(is_finite, tf.where(grow, self.scale * 2.0, self.scale), self.scale / 2.0)
        self.scale.assign(tf.clip_by_value(wanted, 1.0, self.MAXIMUM))
        self.good_updates.assign(tf.where(grow, tf.zeros_like(good_updates), good_updates))

    def num_consecutive_skips(self) -> int:
        """Updates skipped since the last applied one. Waits for the device."""
        return int(self.consecutive_skips.numpy())

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps. Waits for the device."""
        return {
            "scale": float(self.scale.numpy()),
            "good_updates": int(self.good_updates.numpy()),
            "consecutive_skips": self.num_consecutive_skips(),
        }

    def restore(self, state: Mapping[str, float]) -> None:
        """Takes over what `state` returned."""
        self.scale.assign(state["scale"])
        self.good_updates.assign(int(state["good_updates"]))
        self.consecutive_skips.assign(int(state["consecutive_skips"]))
