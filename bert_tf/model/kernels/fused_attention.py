"""The attention of a layer and its gradients, as calls of the kernels in `attention`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.drawing import KeepBits, Site
from bert_tf.model.kernels.fused_operation import FusedOperation
from bert_tf.model.kernels.launching import DATA, FLOATS, INTEGERS, call
from bert_tf.model.kernels.requirements import HEAD_SIZES, LENGTH_UNIT
from bert_tf.model.randomness import keep_scale
from bert_tf.model.visibility import VisibleKeys

Buffer = tuple[list[int], tf.DType]


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
    def smallest_num_rows(self) -> int:
        return self.sequence_length

    def require_fit(self) -> None:
        if self.head_size not in HEAD_SIZES:
            raise Unavailable(f"heads have {self.head_size} elements, not {', '.join(map(str, HEAD_SIZES))}")
        if self.sequence_length % LENGTH_UNIT:
            raise Unavailable(f"the length of the sequences, {self.sequence_length}, is no multiple of {LENGTH_UNIT}")
        _ = self._keep_bits

    @functools.cached_property
    def _keep_bits(self) -> KeepBits:
        return KeepBits(self.num_heads * self.sequence_length**2, self.dropout_rate)

    @property
    def _is_one_block(self) -> bool:
        """Whether a program holds all queries and keys of a row, and so computes all gradients."""
        return self.sequence_length <= 128 and (self.head_size <= 64 or self._has_wide_registers)

    @property
    def _has_wide_registers(self) -> bool:
        """Whether matrix instructions read shared memory (9.0 and later), so that larger blocks fit into registers."""
        return launching.compute_capability() >= (9, 0)

    @property
    def _block_size(self) -> int:
        """Queries, and keys, of a block: so many are the fastest on an H100."""
        return self.sequence_length if self._is_one_block else LENGTH_UNIT

    def kernels(self) -> tuple[Kernel, ...]:
        """The forward kernel, and that of all gradients, or those of d_query and of d_key and d_value."""
        shape = {"S": self.sequence_length, "N": self.num_heads, "D": self.head_size}
        drop = {"KEEP_SCALE": keep_scale(self.dropout_rate), "PACKED": self.is_packed}
        scale, block = {"SCALE": 1.0 / math.sqrt(self.head_size)}, {"BLOCK": self._block_size}
        # The fastest on an H100 (9.0). Others were not measured: there they are such that registers nearly suffice.
        num_warps, is_measured = self._block_size // 16, launching.compute_capability()[0] == 9
        num_stages = 3 if self._has_wide_registers else 2  # a block, and those that are loaded ahead
        make = functools.partial(Kernel.of, "attention")
        inputs, both = [DATA] * 3, {**shape, **drop}
        visible = [INTEGERS] * 4  # the numbers of queries and of keys, ranges, the dropout's words
        forward = [*inputs, FLOATS, FLOATS, *visible, DATA, DATA, FLOATS]
        if self._is_one_block:
            types = [*inputs, FLOATS, *visible[1:], DATA, FLOATS, *[DATA] * 4, FLOATS]  # without ranges
            return (
                make("attend_forward", forward, {**both, **block, **scale}, num_warps, 1),
                make("attend_gradients", types, {**both, **scale}, num_warps, 1),
            )
        for_query = [*inputs, FLOATS, *visible, DATA, FLOATS, DATA, DATA, *[FLOATS] * 3]
        for_key = [*inputs, *visible, FLOATS, DATA, FLOATS, FLOATS, DATA, DATA, FLOATS]
        return (
            make("attend_forward", forward, {**both, **block, **scale}, num_warps, num_stages),
            make("attend_query_gradient", for_query, {**both, **block, **scale}, num_warps, num_stages),
            make("attend_key_value_gradients", for_key, {**both, **block}, 4 if is_measured else 8, num_stages),
        )

    def __call__(self, inputs_RxH, biases_H, visible: VisibleKeys, site: Site | None) -> tf.Tensor:
        """Attention of queries, keys and values (`inputs_RxH`) without their biases (float32) -> [R, H]."""
        numbers = _numbers(visible)
        ranges = _ranges(*numbers, self._block_size)
        words = self._keep_bits.draw(site, self._batch_size)

        @tf.custom_gradient
        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            context, scaled_query, log_sums = call(
                self.numbers[0],
                self._grid,
                [query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *numbers, ranges[0], words],
                [self._flat, self._flat, self._by_query],
            )

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                inputs, known = [scaled_query, key_RxH, value_RxH], [context, log_sums, d_context_RxH]
                if self._is_one_block:
                    return self._all_gradients([*inputs, value_bias_H, *numbers, words, *known])
                return self._gradients(inputs, value_bias_H, numbers, ranges, words, known)

            return context, gradient

        return run(*inputs_RxH, *map(tf.convert_to_tensor, biases_H))

    def _all_gradients(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of queries, keys and values and of their biases, by one kernel."""
        *gradients, sums = call(self.numbers[1], self._grid, inputs, [*[self._flat] * 3, self._sums(3)])
        return [*gradients, *tf.unstack(tf.reduce_sum(sums, axis=0))]

    def _gradients(
        self,
        inputs: list[tf.Tensor],
        value_bias_H: tf.Tensor,
        numbers: Sequence[tf.Tensor],
        ranges: list[tf.Tensor],
        words: tf.Tensor,
        known: list[tf.Tensor],
    ) -> list[tf.Tensor]:
        """The same by two kernels. known: the result, the logs of the queries' sums, and the result's gradient."""
        _, log_sums, d_context = known
        for_queries, for_keys = ranges
        d_query, bias_dots, means, query_sums = call(
            self.numbers[1],
            self._grid,
            [*inputs, value_bias_H, *numbers, for_queries, words, *known],
            [self._flat, self._by_query, self._by_query, self._sums(1)],
        )
        d_key, d_value, other_sums = call(
            self.numbers[2],
            self._grid,
            [*inputs, *numbers, for_keys, words, log_sums, d_context, bias_dots, means],
            [self._flat, self._flat, self._sums(2)],
        )
        sums = tf.reduce_sum(tf.concat([query_sums, other_sums], axis=1), axis=0)
        return [d_query, d_key, d_value, *tf.unstack(sums)]

    @property
    def _batch_size(self) -> int:
        return self.num_rows // self.sequence_length

    @property
    def _grid(self) -> tuple[int, int, int]:
        """Programs that take blocks of queries or of keys."""
        return self.sequence_length // self._block_size, self.num_heads, self._batch_size

    @property
    def _flat(self) -> Buffer:
        return [self.num_rows, self.num_heads * self.head_size], self.dtype

    @property
    def _by_query(self) -> Buffer:
        return [self._batch_size, self.num_heads, self.sequence_length], tf.float32

    def _sums(self, num_inputs: int) -> Buffer:
        """Each block's sums of `num_inputs` gradients."""
        return [self.num_rows // self._block_size, num_inputs, self.num_heads * self.head_size], tf.float32


def _numbers(visible: VisibleKeys) -> tuple[tf.Tensor, tf.Tensor]:
    """Numbers of queries and keys, int32 [B, S]."""
    keys = tf.cast(visible.key_numbers_BxS, tf.int32)
    queries = visible.query_numbers_BxQ
    return tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys


def _ranges(query_numbers_BxS: tf.Tensor, key_numbers_BxS: tf.Tensor, block_size: int) -> list[tf.Tensor]:
    """Which blocks may have a number in common: [first, end) of the keys' for each of the queries', and vice versa.

    Both are int32 [B, S / block_size, 2]. A block's numbers are taken for all those from the lowest to the highest.
    """
    shape = [query_numbers_BxS.shape[0], -1, block_size]
    queries, keys = tf.reshape(query_numbers_BxS, shape), tf.reshape(key_numbers_BxS, shape)
    lowest = tf.maximum(tf.reduce_min(queries, 2)[:, :, tf.newaxis], tf.reduce_min(keys, 2)[:, tf.newaxis])
    highest = tf.minimum(tf.reduce_max(queries, 2)[:, :, tf.newaxis], tf.reduce_max(keys, 2)[:, tf.newaxis])
    may_share = lowest <= highest
    return [_range(may_share), _range(tf.transpose(may_share, [0, 2, 1]))]


def _range(is_inside: tf.Tensor) -> tf.Tensor:
    """From the first to after the last true element of the last axis, int32 [..., 2]; zeros where there is none."""
    places = tf.range(is_inside.shape[-1])
    end = tf.reduce_max(tf.where(is_inside, places + 1, 0), axis=-1)
    first = tf.minimum(end, tf.reduce_min(tf.where(is_inside, places, is_inside.shape[-1]), axis=-1))
    return tf.stack([first, end], axis=-1)
