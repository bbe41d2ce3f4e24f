"""Which keys a query sees: the attention mask, as numbers from which each backend makes what it needs."""

from __future__ import annotations

from typing import NamedTuple

from bert_tf.base.tensorflow import tf

Features = dict[str, tf.Tensor]  # a model's inputs for a micro-batch, by name


class VisibleKeys(NamedTuple):
    """Numbers of keys and queries: a query sees the keys that have its own number.

    Shape letters: B batch, S keys, Q queries, which may be fewer, P chosen positions.
    """

    key_numbers_BxS: tf.Tensor
    query_numbers_BxQ: tf.Tensor | None = None  # None: all are 1, and the keys' numbers are a mask of zeros and ones

    @classmethod
    def from_features(cls, features: Features) -> VisibleKeys:
        """From the features' `input_mask`, or in packed rows from the instances' numbers."""
        if "instance_numbers" not in features:
            return cls(features["input_mask"])
        return cls(features["instance_numbers"], features["instance_numbers"])

    def to_queries(self, positions_BxP: tf.Tensor) -> VisibleKeys:
        """The same keys, for the queries at these positions only."""
        if self.query_numbers_BxQ is None:
            return self
        return self._replace(query_numbers_BxQ=tf.gather(self.query_numbers_BxQ, positions_BxP, batch_dims=1))

    def mask(self) -> tf.Tensor:
        """1 for each key that is seen, else 0: float32 [B, 1, 1, S] or [B, 1, Q, S], for scores [B, N, Q, S]."""
        keys = self.key_numbers_BxS
        if self.query_numbers_BxQ is None:
            return tf.cast(keys, tf.float32)[:, tf.newaxis, tf.newaxis, :]
        seen = self.query_numbers_BxQ[:, :, tf.newaxis] == keys[:, tf.newaxis, :]
        return tf.cast(seen, tf.float32)[:, tf.newaxis]
