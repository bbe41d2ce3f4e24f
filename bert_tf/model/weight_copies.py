"""Copies of weights in the compute type, which are made once per update instead of once per micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

Copies = Mapping[Any, tf.Tensor]  # by `tf.Variable.ref()`


class WeightCopies:
    """What layers and heads of a model read in place of their variables.

    The masked-LM head reads a copy of the word table, so its gradient stays separate from that of the embedding
    lookup, and no micro-batch has to add two whole tables.
    """

    def __init__(self) -> None:
        self._copies: Copies = {}

    @contextlib.contextmanager
    def in_use(self, copies: Copies) -> Iterator[None]:
        """Within this context, `read` gives the copies."""
        self._copies = copies
        try:
            yield
        finally:
            self._copies = {}

    def read(self, weight: tf.Variable) -> tf.Variable | tf.Tensor:
        """The copy of a weight that is in use, else the weight itself."""
        return self._copies.get(weight.ref(), weight)
