"""The attention of a layer and its gradients as calls of the kernels in `attention` and `dropout_bits`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import NamedTuple

import tensorflow as tf

from bert_tf.model.elementwise import as_float32
from bert_tf.model.kernels.compilation import Kernel, Unavailable, compile_kernels
from bert_tf.model.kernels.launching import add_kernels, call
from bert_tf.model.randomness import ELEMENTS_PER_COUNT, keep_scale, threshold
from bert_tf.model.visibility import VisibleKeys

HEAD_SIZES = (32, 64, 128)
OLDEST_CAPABILITY = (8, 0)  # on older cards Triton makes no matrix instructions of these kernels
_TYPES = {tf.bfloat16: "*bf16", tf.float16: "*fp16"}
_DRAWN_AT_ONCE = 128  # words of 32 elements that a program of `draw_keep_bits` makes for each of eight heads


@dataclasses.dataclass(frozen=True)
class AttentionShape:
    """What the kernels are compiled for."""

    sequence_length: int
    num_heads: int
    head_size: int
    dropout_rate: float
    dtype: tf.DType

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_size)

    @property
    def num_counts(self) -> int:
        """Counts of a row's dropout mask, as in `randomness`."""
        return self.num_heads * self.sequence_length**2 // ELEMENTS_PER_COUNT

    def require_fit(self, capability: tuple[int, int]) -> None:
        """Raises: Unavailable, if there are no kernels for this."""
        if self.dtype not in _TYPES:
            raise Unavailable(f"it computes in bfloat16 and float16 only, not in {self.dtype.name}")
        if capability < OLDEST_CAPABILITY:
            raise Unavailable("it needs compute capability 8.0 or later, not {}.{}".format(*capability))
        if self.head_size not in HEAD_SIZES:
            raise Unavailable(f"heads have {self.head_size} elements, not {', '.join(map(str, HEAD_SIZES))}")
        if self.sequence_length % 64:
            raise Unavailable(f"the length of the sequences, {self.sequence_length}, is no multiple of 64")


class Blocks(NamedTuple):
    """How a kernel is cut into programs, and how a program is compiled."""

    num_queries: int
    num_keys: int
    num_warps: int
    num_stages: int


def choose_blocks(shape: AttentionShape) -> tuple[Blocks, Blocks, Blocks]:
    """For the forward kernel, that of d_query and that of d_key and d_value."""
    longest = 128 if shape.sequence_length % 128 == 0 else 64
    return Blocks(longest, longest, 8, 2), Blocks(longest, 64, 8, 2), Blocks(64, longest, 8, 2)


def kernels_for(shape: AttentionShape) -> list[Kernel]:
    """The kernels in the order of `FusedAttention`'s arguments."""
    data, floats, integers = _TYPES[shape.dtype], "*fp32", "*i32"
    forward, query, key_value = choose_blocks(shape)
    sizes = {"S": shape.sequence_length, "N": shape.num_heads, "D": shape.head_size}
    sizes["KEEP_SCALE"] = keep_scale(shape.dropout_rate)

    def kernel(function: str, types: tuple[str, ...], blocks: Blocks, **constants: float) -> Kernel:
        named = {**sizes, "Q": blocks.num_queries, "K": blocks.num_keys, **constants}
        return Kernel("attention", function, types, tuple(named.items()), blocks.num_warps, blocks.num_stages)

    masks = (integers,) * 3
    found = [
        kernel(
            "attend_forward", (*(data,) * 3, *(floats,) * 2, *masks, data, data, floats), forward, SCALE=shape.scale
        ),
        kernel(
            "attend_query_gradient",
            (*(data,) * 3, floats, *masks, data, floats, data, data, floats, floats),
            query,
            SCALE=shape.scale,
        ),
        kernel(
            "attend_key_value_gradients",
            (*(data,) * 3, *masks, floats, data, floats, floats, data, data),
            key_value,
        ),
    ]
    if shape.dropout_rate:
        constants = {
            "COUNTS": shape.num_counts,
            "THRESHOLD": threshold(shape.dropout_rate) << 16,
            "BLOCK": _DRAWN_AT_ONCE,
        }
        found.append(
            Kernel("dropout_bits", "draw_keep_bits", ("*u64", "*i64", integers), tuple(constants.items()), 4, 1)
        )
    return found


class FusedAttention:
    """Attention of one shape. `kernels` are the numbers of `kernels_for(shape)`, from `add_kernels`."""

    def __init__(self, shape: AttentionShape, kernels: list[int]):
        self._shape = shape
        self._forward, self._query_gradient, self._key_value_gradients, *self._draw = kernels
        self._forward_blocks, self._query_blocks, self._key_value_blocks = choose_blocks(shape)

    def __call__(self, inputs_RxH, biases_H, visible: VisibleKeys, site) -> tf.Tensor:
        """Attention of queries, keys and values (`inputs_RxH`) without their biases (float32) -> [R, H].

        Args:
          site: (site key uint64 scalar, first row int64 scalar) of the dropout, as from `DropoutKey.at`; None without.
        """
        shape = self._shape
        numbers = self._numbers(visible)
        num_rows = visible.key_numbers_BxS.shape[0]
        flat = ([num_rows * shape.sequence_length, shape.num_heads * shape.head_size], shape.dtype)
        by_query = ([num_rows, shape.num_heads, shape.sequence_length], tf.float32)
        keep_words = numbers[1] if site is None else self._draw_keep_words(site, num_rows)

        def grid(block_size: int) -> tuple[int, int, int]:
            return shape.sequence_length // block_size, shape.num_heads, num_rows

        @tf.custom_gradient
        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            masks = [*numbers, keep_words]
            context, scaled_query, log_sums = call(
                self._forward,
                grid(self._forward_blocks.num_queries),
                [query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *masks],
                [flat, flat, by_query],
            )

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                d_query, bias_dots, means = call(
                    self._query_gradient,
                    grid(self._query_blocks.num_queries),
                    [scaled_query, key_RxH, value_RxH, value_bias_H, *masks, context, log_sums, d_context_RxH],
                    [flat, by_query, by_query],
                )
                d_key, d_value = call(
                    self._key_value_gradients,
                    grid(self._key_value_blocks.num_keys),
                    [scaled_query, key_RxH, value_RxH, *masks, log_sums, d_context_RxH, bias_dots, means],
                    [flat, flat],
                )
                d_inputs = [d_query, d_key, d_value]
                return [*d_inputs, *(tf.reduce_sum(as_float32(each), axis=0) for each in d_inputs)]

            return context, gradient

        return run(*inputs_RxH, *map(tf.convert_to_tensor, biases_H))

    def _numbers(self, visible: VisibleKeys) -> list[tf.Tensor]:
        """Numbers of queries and keys, int32 [B, S]."""
        keys = tf.cast(visible.key_numbers_BxS, tf.int32)
        queries = visible.query_numbers_BxQ
        return [tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys]

    def _draw_keep_words(self, site, num_rows: int) -> tf.Tensor:
        words = self._shape.num_counts // 32
        (draw,) = self._draw
        grid = (-(-words // _DRAWN_AT_ONCE), num_rows, 1)
        return call(draw, grid, site, [([num_rows, ELEMENTS_PER_COUNT, words], tf.int32)])[0]


@functools.cache
def find_attention(shape: AttentionShape, capability: tuple[int, int]) -> FusedAttention:
    """The attention of this shape, compiled for cards of this compute capability. Raises: Unavailable."""
    shape.require_fit(capability)
    return FusedAttention(shape, add_kernels(compile_kernels(kernels_for(shape), capability)))
