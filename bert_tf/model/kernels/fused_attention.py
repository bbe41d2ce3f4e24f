"""The attention of a layer and its gradients, as calls of the kernels in `attention`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar, NamedTuple

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


class Blocks(NamedTuple):
    """How a kernel cuts queries and keys into blocks, and how a program is compiled."""

    num_queries: int
    num_keys: int
    num_warps: int
    num_stages: int


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

    def _blocks(self) -> list[Blocks]:
        """Those of each kernel: the fastest on an H200; on older cards, not measured, such as spill little."""
        length = self.sequence_length
        if self._is_one_block:
            return [Blocks(length, length, length // 16, 1)] * 2
        if not self._has_wide_registers:
            rows = 64 if length % 128 else 128
            return [Blocks(rows, 64, rows // 16, 2), Blocks(64, 64, self.head_size // 16, 2), Blocks(64, 64, 8, 2)]
        if length % 128:
            return [Blocks(64, 64, 4, 2)] * 3
        return [Blocks(128, 128, 4, 2), Blocks(64, 64, 4, 3), Blocks(128, 64, 4, 2)]

    def kernels(self) -> tuple[Kernel, ...]:
        """The forward kernel, and that of all gradients, or those of d_query and of d_key and d_value."""
        shape = {"S": self.sequence_length, "N": self.num_heads, "D": self.head_size}
        scale, drop = {"SCALE": 1.0 / math.sqrt(self.head_size)}, {"KEEP_SCALE": keep_scale(self.dropout_rate)}
        inputs, masks, packed = [DATA] * 3, [INTEGERS] * 3, {"PACKED": self.is_packed}
        signatures = [("attend_forward", [*inputs, FLOATS, FLOATS, *masks, DATA, DATA, FLOATS], scale)]
        if self._is_one_block:
            types = [*inputs, FLOATS, *masks, DATA, FLOATS, *[DATA] * 4, FLOATS]
            signatures.append(("attend_gradients", types, scale))
        else:
            types = [*inputs, FLOATS, *masks, DATA, FLOATS, DATA, DATA, *[FLOATS] * 3]
            signatures.append(("attend_query_gradient", types, scale))
            types = [*inputs, *masks, FLOATS, DATA, FLOATS, FLOATS, DATA, DATA, FLOATS]
            signatures.append(("attend_key_value_gradients", types, {}))
        kernels = []
        for (function, types, scales), blocks in zip(signatures, self._blocks()):
            constants = {**shape, **scales, **drop, **packed}
            if function != "attend_gradients":
                constants |= {"Q": blocks.num_queries, "K": blocks.num_keys}
            kernels.append(Kernel.of("attention", function, types, constants, blocks.num_warps, blocks.num_stages))
        return tuple(kernels)

    def __call__(self, inputs_RxH, biases_H, visible: VisibleKeys, site: Site | None) -> tf.Tensor:
        """Attention of queries, keys and values (`inputs_RxH`) without their biases (float32) -> [R, H]."""
        masks = [*_numbers(visible), self._keep_bits.draw(site, self._batch_size)]

        @tf.custom_gradient
        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            context, scaled_query, log_sums = call(
                self.numbers[0],
                self._grid(self._blocks()[0].num_queries),
                [query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *masks],
                [self._flat, self._flat, self._by_query],
            )

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                inputs = [scaled_query, key_RxH, value_RxH, value_bias_H, *masks, context, log_sums, d_context_RxH]
                return self._gradients(inputs)

            return context, gradient

        return run(*inputs_RxH, *map(tf.convert_to_tensor, biases_H))

    def _gradients(self, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of queries, keys and values and of their biases; `inputs` are those of `attend_gradients`."""
        _, *numbers = self.numbers
        flat, by_query, length = self._flat, self._by_query, self.sequence_length
        if self._is_one_block:
            *gradients, sums = call(numbers[0], self._grid(length), inputs, [flat, flat, flat, self._sums(length, 3)])
            return [*gradients, *tf.unstack(tf.reduce_sum(sums, axis=0))]
        _, for_query, for_key_value = self._blocks()
        d_query, bias_dots, means, query_sums = call(
            numbers[0],
            self._grid(for_query.num_queries),
            inputs,
            [flat, by_query, by_query, self._sums(for_query.num_queries, 1)],
        )
        query, key, value, _, *masks, _, log_sums, d_context = inputs
        d_key, d_value, other_sums = call(
            numbers[1],
            self._grid(for_key_value.num_keys),
            [query, key, value, *masks, log_sums, d_context, bias_dots, means],
            [flat, flat, self._sums(for_key_value.num_keys, 2)],
        )
        sums = [tf.reduce_sum(query_sums, axis=0), tf.reduce_sum(other_sums, axis=0)]
        return [d_query, d_key, d_value, *tf.unstack(tf.concat(sums, axis=0))]

    @property
    def _batch_size(self) -> int:
        return self.num_rows // self.sequence_length

    def _grid(self, block_size: int) -> tuple[int, int, int]:
        """Programs that take blocks of queries or of keys."""
        return self.sequence_length // block_size, self.num_heads, self._batch_size

    @property
    def _flat(self) -> Buffer:
        return [self.num_rows, self.num_heads * self.head_size], self.dtype

    @property
    def _by_query(self) -> Buffer:
        return [self._batch_size, self.num_heads, self.sequence_length], tf.float32

    def _sums(self, block_size: int, num_inputs: int) -> Buffer:
        """Each block's sums of `num_inputs` gradients."""
        return [self.num_rows // block_size, num_inputs, self.num_heads * self.head_size], tf.float32


def _numbers(visible: VisibleKeys) -> list[tf.Tensor]:
    """Numbers of queries and keys, int32 [B, S]."""
    keys = tf.cast(visible.key_numbers_BxS, tf.int32)
    queries = visible.query_numbers_BxQ
    return [tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys]
