"""The attention of a layer and its gradients, as calls of the kernels in `attention`.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import Kernel, Unavailable
from bert_tf.model.kernels.drawing import KeepBits, Site
from bert_tf.model.kernels.launching import DATA, FLOATS, INTEGERS, call, find_kernels
from bert_tf.model.randomness import keep_scale
from bert_tf.model.visibility import VisibleKeys

HEAD_SIZES = (32, 64, 128)
Buffer = tuple[list[int], tf.DType]


class Blocks(NamedTuple):
    """How a kernel cuts queries and keys into blocks, and how a program is compiled."""

    num_queries: int
    num_keys: int
    num_warps: int
    num_stages: int


@dataclasses.dataclass(frozen=True)
class FusedAttention:
    """Attention of one shape.

    Raises: Unavailable, when it is made: there are no kernels for the shape, or they cannot be used here.
    """

    title: ClassVar[str] = "attention"
    sequence_length: int
    num_heads: int
    head_size: int
    dropout_rate: float
    is_packed: bool
    dtype: tf.DType

    def __post_init__(self) -> None:
        if self.head_size not in HEAD_SIZES:
            raise Unavailable(f"heads have {self.head_size} elements, not {', '.join(map(str, HEAD_SIZES))}")
        if self.sequence_length % 64:
            raise Unavailable(f"the length of the sequences, {self.sequence_length}, is no multiple of 64")
        find_kernels(self.kernels(), self.dtype)
        self._keep_bits()

    def _keep_bits(self) -> KeepBits | None:
        num_elements = self.num_heads * self.sequence_length**2
        return KeepBits(num_elements, self.dropout_rate) if self.dropout_rate else None

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
        """The forward kernel, and that of all gradients or those of d_query and of d_key and d_value."""
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
        forward, *_ = find_kernels(self.kernels(), self.dtype)
        num_rows = visible.key_numbers_BxS.shape[0]
        masks = _numbers(visible)
        keep_bits = self._keep_bits()
        masks.append(masks[0] if keep_bits is None or site is None else keep_bits.draw(site, num_rows))

        @tf.custom_gradient
        def run(query_RxH, key_RxH, value_RxH, query_bias_H, key_bias_H, value_bias_H):
            context, scaled_query, log_sums = call(
                forward,
                self._grid(0, num_rows),
                [query_RxH, key_RxH, value_RxH, query_bias_H, value_bias_H, *masks],
                [self._flat(num_rows)] * 2 + [self._by_query(num_rows)],
            )

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                inputs = [scaled_query, key_RxH, value_RxH, value_bias_H, *masks, context, log_sums, d_context_RxH]
                return self._gradients(inputs, num_rows)

            return context, gradient

        return run(*inputs_RxH, *map(tf.convert_to_tensor, biases_H))

    def _gradients(self, inputs: list[tf.Tensor], num_rows: int) -> list[tf.Tensor]:
        """The gradients of queries, keys and values and of their biases; `inputs` are those of `attend_gradients`."""
        _, *kernels = find_kernels(self.kernels(), self.dtype)
        flat, by_query = self._flat(num_rows), self._by_query(num_rows)
        if self._is_one_block:
            *gradients, sums = call(kernels[0], self._grid(1, num_rows), inputs, [*[flat] * 3, self._sums(num_rows, 3)])
            return [*gradients, *tf.unstack(tf.reduce_sum(sums, axis=0))]
        for_query, for_key_value = self._blocks()[1:]
        length = self.sequence_length
        d_query, bias_dots, means, query_sums = call(
            kernels[0],
            self._grid(1, num_rows),
            inputs,
            [flat, by_query, by_query, self._sums(num_rows * (length // for_query.num_queries), 1)],
        )
        query, key, value, _, *masks, _, log_sums, d_context = inputs
        d_key, d_value, other_sums = call(
            kernels[1],
            (length // for_key_value.num_keys, self.num_heads, num_rows),
            [query, key, value, *masks, log_sums, d_context, bias_dots, means],
            [flat, flat, self._sums(num_rows * (length // for_key_value.num_keys), 2)],
        )
        sums = [tf.reduce_sum(query_sums, axis=0), tf.reduce_sum(other_sums, axis=0)]
        return [d_query, d_key, d_value, *tf.unstack(tf.concat(sums, axis=0))]

    def _grid(self, kernel: int, num_rows: int) -> tuple[int, int, int]:
        """Programs of a kernel whose programs take blocks of queries."""
        return self.sequence_length // self._blocks()[kernel].num_queries, self.num_heads, num_rows

    def _flat(self, num_rows: int) -> Buffer:
        return [num_rows * self.sequence_length, self.num_heads * self.head_size], self.dtype

    def _by_query(self, num_rows: int) -> Buffer:
        return [num_rows, self.num_heads, self.sequence_length], tf.float32

    def _sums(self, num_programs: int, num_inputs: int) -> Buffer:
        return [num_programs, num_inputs, self.num_heads * self.head_size], tf.float32


def _numbers(visible: VisibleKeys) -> list[tf.Tensor]:
    """Numbers of queries and keys, int32 [B, S]."""
    keys = tf.cast(visible.key_numbers_BxS, tf.int32)
    queries = visible.query_numbers_BxQ
    return [tf.ones_like(keys) if queries is None else tf.cast(queries, tf.int32), keys]
