"""The attention of a layer and its gradients, as calls of the kernels in `attention`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

from bert_tf.base.tensorflow import tf
from bert_tf.model.elementwise import with_gradient
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import KernelsUnavailable
from bert_tf.model.kernels.fused_operation import FusedOperation, Launch, Site, draw_keep_bits
from bert_tf.model.kernels.requirements import HEAD_SIZES, LENGTH_UNIT, SHORT_LENGTH, has_blocks
from bert_tf.model.randomness import keep_scale
from bert_tf.model.visibility import VisibleKeys


@dataclasses.dataclass(frozen=True)
class FusedAttention(FusedOperation):
    """Attention of one shape."""

    title: ClassVar[str] = "attention"
    num_rows: int  # R
    sequence_length: int
    num_heads: int
    head_size: int
    dropout_rate: float
    is_packed: bool
    dtype: tf.DType

    @property
    def _has_wide_registers(self) -> bool:
        """Whether matrix instructions read shared memory, so that larger blocks fit into registers: 9.0 to 11.0."""
        return (9, 0) <= launching.compute_capability() < (12, 0)

    @property
    def _is_one_block(self) -> bool:
        """Whether a program holds all queries and keys of a row, and so computes all gradients."""
        fits = self.head_size <= 64 or self._has_wide_registers or self.sequence_length < LENGTH_UNIT
        return self.sequence_length <= 128 and fits

    @property
    def _block_size(self) -> int:
        """The number of queries, and of keys, of a block: the fastest on an H100."""
        return self.sequence_length if self._is_one_block else LENGTH_UNIT

    @functools.cached_property
    def launches(self) -> list[Launch]:
        """The forward kernel's; then one for all gradients, or one for d_query and one for d_key and d_value."""
        length, num_heads, head_size = self.sequence_length, self.num_heads, self.head_size
        if head_size not in HEAD_SIZES:
            raise KernelsUnavailable(f"heads have {head_size} elements, not {', '.join(map(str, HEAD_SIZES))}")
        if not has_blocks(length):
            raise KernelsUnavailable(
                f"the length of the sequences, {length}, is no multiple of {LENGTH_UNIT}, nor {SHORT_LENGTH}"
            )
        batch_size, width, block_size = self.num_rows // length, num_heads * head_size, self._block_size
        data, floats, flat = self.dtype, tf.float32, ([self.num_rows, width], self.dtype)
        by_query = ([batch_size, num_heads, length], floats)

        def sums(num_inputs: int) -> launching.Buffer:
            """Shape and type of each block's sums of its inputs' gradients."""
            return [self.num_rows // block_size, num_inputs, width], floats

        inputs, visible = [data] * 3, [tf.int32] * 4  # numbers of queries and of keys, ranges, the dropout's words
        drop = {"KEEP_SCALE": keep_scale(self.dropout_rate), "PACKED": self.is_packed}
        sizes = {"S": length, "N": num_heads, "D": head_size, **drop}
        scale, block = {"SCALE": 1.0 / math.sqrt(head_size)}, {"BLOCK": block_size}
        # The fastest on an H100 (9.0). For others, not measured, such that registers nearly suffice.
        num_warps, is_measured = block_size // 16, launching.compute_capability()[0] == 9
        # One for the current block, the others for blocks that are loaded ahead.
        num_stages = 1 if self._is_one_block else 3 if self._has_wide_registers else 2
        grid = length // block_size, num_heads, batch_size  # programs take blocks of queries or of keys
        make = functools.partial(Launch, "attention", grid=grid, num_warps=num_warps, num_stages=num_stages)
        forward = [*inputs, floats, floats, *visible]
        launches = [make("attend_forward", forward, [flat, flat, by_query], constants={**sizes, **block, **scale})]
        if self._is_one_block:
            input_types = [*inputs, floats, *visible[1:], data, floats, data]  # without ranges
            launches += [
                make("attend_gradients", input_types, [flat, flat, flat, sums(3)], constants={**sizes, **scale})
            ]
        else:
            query_reads = [*inputs, floats, *visible, data, floats, data]
            query_results = [flat, by_query, by_query, sums(1)]
            key_reads = [*inputs, *visible, floats, data, floats, floats]
            launches += [
                make("attend_query_gradient", query_reads, query_results, constants={**sizes, **block, **scale}),
                make(
                    "attend_key_value_gradients",
                    key_reads,
                    [flat, flat, sums(2)],
                    constants={**sizes, **block},
                    num_warps=4 if is_measured else 8,
                ),
            ]
        return launches + draw_keep_bits(self.dropout_rate, batch_size, num_heads * length**2)

    def __call__(self, inputs_RxH, biases_H, visible: VisibleKeys, site: Site | None) -> tf.Tensor:
        """Attention of queries, keys and values (`inputs_RxH`) without their biases (float32) -> [R, H]."""
        numbers = _numbers(visible)
        key_ranges, query_ranges = _ranges(*numbers, self._block_size)
        words = self.draw(site)

        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            context, scaled_query, log_sums = self.launch(
                0, query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *numbers, key_ranges, words
            )

            def gradient(d_context: tf.Tensor) -> list[tf.Tensor]:
                inputs, results = (scaled_query, key_RxH, value_RxH), (context, log_sums, d_context)
                if self._is_one_block:
                    *gradients, sums = self.launch(1, *inputs, value_bias_H, *numbers, words, *results)
                else:
                    d_query, bias_dots, means, query_sums = self.launch(
                        1, *inputs, value_bias_H, *numbers, key_ranges, words, *results
                    )
                    d_key, d_value, key_value_sums = self.launch(
                        2, *inputs, *numbers, query_ranges, words, log_sums, d_context, bias_dots, means
                    )
                    gradients, sums = [d_query, d_key, d_value], tf.concat([query_sums, key_value_sums], axis=1)
                return [*gradients, *tf.unstack(tf.reduce_sum(sums, axis=0))]

            return context, gradient

        return with_gradient(run, *inputs_RxH, *biases_H)


def _numbers(visible: VisibleKeys) -> tuple[tf.Tensor, tf.Tensor]:
    """The numbers of queries and of keys, int32 [B, S]."""
    keys = tf.cast(visible.key_numbers_BxS, tf.int32)
    queries = visible.query_numbers_BxQ
    return tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys


def _ranges(query_numbers_BxS: tf.Tensor, key_numbers_BxS: tf.Tensor, block_size: int) -> list[tf.Tensor]:
    """Which blocks may have a number in common: [first, end) of the key blocks for each query block, and vice versa.

    Both are int32 [B, S / block_size, 2]. A block counts as having all numbers from its lowest to its highest.
    """
    shape = [query_numbers_BxS.shape[0], -1, block_size]
    queries, keys = tf.reshape(query_numbers_BxS, shape), tf.reshape(key_numbers_BxS, shape)
    lowest = tf.maximum(tf.reduce_min(queries, 2)[:, :, tf.newaxis], tf.reduce_min(keys, 2)[:, tf.newaxis])
    highest = tf.minimum(tf.reduce_max(queries, 2)[:, :, tf.newaxis], tf.reduce_max(keys, 2)[:, tf.newaxis])
    may_share = lowest <= highest
    return [_range(may_share), _range(tf.transpose(may_share, [0, 2, 1]))]


def _range(is_inside: tf.Tensor) -> tf.Tensor:
    """[first, end) of the true elements along the last axis, int32 [..., 2]; zeros where there are none."""
    positions = tf.range(is_inside.shape[-1])
    end = tf.reduce_max(tf.where(is_inside, positions + 1, 0), axis=-1)
    first = tf.minimum(end, tf.reduce_min(tf.where(is_inside, positions, is_inside.shape[-1]), axis=-1))
    return tf.stack([first, end], axis=-1)
