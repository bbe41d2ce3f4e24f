"""Copies of weights in the compute type, which are made once per update instead of once per micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bert_tf.base.tensorflow import tf
from bert_tf.model.backends.plain import Plain

Copies = Mapping[Any, tf.Tensor]  # by `tf.Variable.ref()`


class WeightCopies:
    """The copies that a model's layers and heads read in place of their variables."""

    def __init__(self, backend: Plain):
        self._backend = backend
        self._copies: Copies = {}

    def make(self, kernels: Iterable[tf.Variable], word_table: tf.Variable) -> Copies:
        """Copies of the kernels, unless the compute type is float32 or layers are recomputed (to save memory);
        and of the word table. The masked-LM head reads the table's copy, so its gradient stays separate from that of
        the embedding lookup, and no micro-batch has to add two whole tables.
        """
        copied, dtype = [word_table], self._backend.compute_dtype
        if dtype != tf.float32 and not self._backend.recompute:
            copied += kernels
        return {weight.ref(): tf.cast(tf.convert_to_tensor(weight), dtype) for weight in copied}

    @contextlib.contextmanager
    def reading_from(self, copies: Copies) -> Iterator[None]:
        """Within this context, `read` gives the copies."""
        self._copies = copies
        try:
            yield
        finally:
            self._copies = {}

    def read(self, weight: tf.Variable) -> tf.Variable | tf.Tensor:
        """The copy of a weight that is in use, else the weight itself."""
        return self._copies.get(weight.ref(), weight)
