"""The attention of a layer and its gradients, as calls of the kernels in `attention`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import tensorflow as tf

from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.drawing import KeepBits, Site
from bert_tf.model.kernels.launching import DATA, FLOATS, INTEGERS, call, find_kernels
from bert_tf.model.randomness import keep_scale
from bert_tf.model.visibility import VisibleKeys

HEAD_SIZES = (32, 64, 128)
Buffer = tuple[list[int], tf.DType]


class Blocks(NamedTuple):
    """How a kernel is cut into programs, and how a program is compiled."""

    num_queries: int
    num_keys: int
    num_warps: int
    num_stages: int


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """Attention of one shape.

    Raises: Unavailable, when it is made: there are no kernels for the shape, or they cannot be used here.
    """

    sequence_length: int
    num_heads: int
    head_size: int
    dropout_rate: float
    dtype: tf.DType

    def __post_init__(self):
        if self.head_size not in HEAD_SIZES:
            raise Unavailable(f"heads have {self.head_size} elements, not {', '.join(map(str, HEAD_SIZES))}")
        if self.sequence_length % 64:
            raise Unavailable(f"the length of the sequences, {self.sequence_length}, is no multiple of 64")
        find_kernels(self._kernels(), self.dtype)
        self._keep_bits()

    def _keep_bits(self) -> KeepBits | None:
        num_elements = self.num_heads * self.sequence_length**2
        return KeepBits(num_elements, self.dropout_rate) if self.dropout_rate else None

    def _blocks(self) -> tuple[Blocks, Blocks, Blocks]:
        """For the forward kernel, that of d_query and that of d_key and d_value: the fastest on an H200."""
        if self.sequence_length % 128:
            return (Blocks(64, 64, 4, 2),) * 3
        if self.sequence_length == 128:
            return Blocks(128, 128, 8, 1), Blocks(64, 64, 4, 2), Blocks(128, 64, 4, 2)
        return Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(128, 64, 4, 2)

    def _kernels(self) -> tuple[Kernel, ...]:
        """The forward kernel, that of d_query and that of d_key and d_value."""
        sizes = {"S": self.sequence_length, "N": self.num_heads, "D": self.head_size}
        sizes["KEEP_SCALE"] = keep_scale(self.dropout_rate)
        scale = {"SCALE": 1.0 / math.sqrt(self.head_size)}
        masks = [INTEGERS] * 3
        signatures = (
            ("attend_forward", [*[DATA] * 3, FLOATS, FLOATS, *masks, DATA, DATA, FLOATS], scale),
            ("attend_query_gradient", [*[DATA] * 3, FLOATS, *masks, DATA, FLOATS, DATA, DATA, *[FLOATS] * 3], scale),
            ("attend_key_value_gradients", [*[DATA] * 3, *masks, FLOATS, DATA, FLOATS, FLOATS, DATA, DATA, FLOATS], {}),
        )
        return tuple(
            Kernel.of(
                "attention",
                function,
                types,
                {**sizes, **constants, "Q": blocks.num_queries, "K": blocks.num_keys},
                blocks.num_warps,
                blocks.num_stages,
            )
            for (function, types, constants), blocks in zip(signatures, self._blocks())
        )

    def __call__(self, inputs_RxH, biases_H, visible: VisibleKeys, site: Site | None) -> tf.Tensor:
        """Attention of queries, keys and values (`inputs_RxH`) without their biases (float32) -> [R, H]."""
        forward, query_gradient, key_value_gradients = find_kernels(self._kernels(), self.dtype)
        for_forward, for_query, for_key_value = self._blocks()
        num_rows, length, width = (
            visible.key_numbers_BxS.shape[0],
            self.sequence_length,
            self.num_heads * self.head_size,
        )
        flat: Buffer = ([num_rows * length, width], self.dtype)
        by_query: Buffer = ([num_rows, self.num_heads, length], tf.float32)

        def grid(block_size: int) -> tuple[int, int, int]:
            return length // block_size, self.num_heads, num_rows

        def sums(block_size: int, *shape: int) -> Buffer:
            return [num_rows * (length // block_size), *shape, width], tf.float32

        masks = _numbers(visible)
        keep_bits = self._keep_bits()
        masks.append(masks[0] if keep_bits is None or site is None else keep_bits.draw(site, num_rows))

        @tf.custom_gradient
        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            context, scaled_query, log_sums = call(
                forward,
                grid(for_forward.num_queries),
                [query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *masks],
                [flat, flat, by_query],
            )

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                d_query, bias_dots, means, query_sums = call(
                    query_gradient,
                    grid(for_query.num_queries),
                    [scaled_query, key_RxH, value_RxH, value_bias_H, *masks, context, log_sums, d_context_RxH],
                    [flat, by_query, by_query, sums(for_query.num_queries)],
                )
                d_key, d_value, other_sums = call(
                    key_value_gradients,
                    grid(for_key_value.num_keys),
                    [scaled_query, key_RxH, value_RxH, *masks, log_sums, d_context_RxH, bias_dots, means],
                    [flat, flat, sums(for_key_value.num_keys, 2)],
                )
                d_key_bias, d_value_bias = tf.unstack(tf.reduce_sum(other_sums, axis=0))
                return [d_query, d_key, d_value, tf.reduce_sum(query_sums, axis=0), d_key_bias, d_value_bias]

            return context, gradient

        return run(*inputs_RxH, *map(tf.convert_to_tensor, biases_H))


def _numbers(visible: VisibleKeys) -> list[tf.Tensor]:
    """Numbers of queries and keys, int32 [B, S]."""
    keys = tf.cast(visible.key_numbers_BxS, tf.int32)
    queries = visible.query_numbers_BxQ
    return [tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys]
