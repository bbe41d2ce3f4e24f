"""Stateless random bits for dropout: a function of (seed, batch number, site, global row) only.

A dropout mask is the same however the batch is split into micro-batches and ranks, whether the step
runs eagerly, as a graph or under XLA, and after resuming. There is no generator state to save.

The counter-based generator Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", SC 2011) gives 128 bits per count, 16 for each of eight elements. They are drawn by TensorFlow's own
op, or by the same arithmetic written out. The latter gives the same bits, but XLA fuses it: in scope
"blocks" it takes a fifth of the time on a CPU, and in scope "step" on a GPU only the decisions are
written to memory, not the bits. `tf.nn.experimental.stateless_dropout` cannot be used: its masks differ
between graph and XLA if the seed is a tensor.

The key is a function of (seed, batch number, site). A row's counter starts at its number in the
update's global order times the counts per row.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_tf.base.tensorflow import tf

PHILOX = 1  # value of the `alg` attribute in TensorFlow's random ops
# 16 bits decide whether an element is kept: rates are multiples of 2^-16.
ELEMENTS_PER_COUNT = 8
_LEVELS = 1 << 16
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK_64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014): a bijection of 64-bit integers."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def update_key(seed: int, batch_number: int) -> np.uint64:
    """The part of the key that all sites of an update share: a uint64 scalar, an input of the graph, not a constant."""
    return np.uint64(mix64(mix64(seed) ^ batch_number))


class DropoutKey(NamedTuple):
    """What a forward pass needs to draw its dropout masks."""

    key: tf.Tensor  # uint64 scalar, from `update_key`
    first_row: tf.Tensor  # int64 scalar: number of this micro-batch's first row in the update's global order

    def at(self, site: int) -> tuple[tf.Tensor, tf.Tensor]:
        """(site key uint64 scalar, first row int64 scalar) for the dropout numbered `site`."""
        key = tf.convert_to_tensor(self.key, tf.uint64)
        site_key = tf.bitwise.bitwise_xor(key, tf.constant(mix64(site + 1), tf.uint64))
        return site_key, tf.convert_to_tensor(self.first_row, tf.int64)


def _words_by_op(key: tf.Tensor, start: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.constant([*shape, 4]),
        key=key[tf.newaxis],
        counter=tf.stack([start, tf.zeros([], tf.uint64)]),
        alg=PHILOX,
        dtype=tf.int32,
    )


def _words_by_arithmetic(key: tf.Tensor, start: tf.Tensor, shape: Sequence[int]) -> list[tf.Tensor]:
    def halves(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(value, tf.uint32), tf.cast(tf.bitwise.right_shift(value, tf.constant(32, tf.uint64)), tf.uint32)

    def xor(*values: tf.Tensor) -> tf.Tensor:
        return functools.reduce(tf.bitwise.bitwise_xor, values)

    def multiples(step: int, count: int) -> tf.Tensor:
        return tf.range(count, dtype=tf.int64) * step

    # A sum of short ranges, because XLA would store a long one as a constant.
    low = math.gcd(shape[1], 1024)
    parts = (
        multiples(shape[1], shape[0])[:, tf.newaxis, tf.newaxis],
        multiples(low, shape[1] // low)[:, tf.newaxis],
        multiples(1, low),
    )
    counts = tf.reshape(sum((tf.cast(part, tf.uint64) for part in parts), start), shape)
    (a, b), c, d = halves(counts), tf.zeros(shape, tf.uint32), tf.zeros(shape, tf.uint32)
    keys = halves(key)
    for _ in range(_ROUNDS):
        (low_a, high_a), (low_c, high_c) = (
            halves(tf.cast(word, tf.uint64) * tf.constant(multiplier, tf.uint64))
            for word, multiplier in zip((a, c), _MULTIPLIERS)
        )
        a, b, c, d = xor(high_c, b, keys[0]), low_c, xor(high_a, d, keys[1]), low_a
        keys = tuple(part + tf.constant(step, tf.uint32) for part, step in zip(keys, _KEY_STEPS))
    return [tf.bitcast(word, tf.int32) for word in (a, b, c, d)]


def _counts(first_row: tf.Tensor, shape: Sequence[int]) -> tuple[tf.Tensor, list[int]]:
    """The first row's first count, and the shape of all counts: [rows, counts of a row]."""
    per_row = -(-math.prod(shape[1:]) // ELEMENTS_PER_COUNT)
    return tf.cast(first_row * per_row, tf.uint64), [shape[0], per_row]


def threshold(rate: float) -> int:
    """An element is kept if its 16 bits, as a signed integer, are at least this."""
    return int(round(rate * _LEVELS)) - _LEVELS // 2


def draw_mask(rate: float, site_key: tf.Tensor, first_row: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """`keep_mask(draw_decisions(...))` in one step, for code that XLA does not compile: bool of the static `shape`.

    Uses int16, which has GPU kernels; TensorFlow computes int32 on the host, even on GPU machines.
    """
    words = _words_by_op(site_key, *_counts(first_row, shape))
    kept = tf.bitcast(words, tf.int16) >= tf.constant(threshold(rate), tf.int16)  # [rows, counts, words, halves]
    return _trim_rows(tf.transpose(kept, [0, 2, 3, 1]), shape)


def _trim_rows(mask: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """[rows, ...] -> `shape`, without a row's surplus elements at the end: counts give a multiple of eight."""
    return tf.reshape(tf.reshape(mask, [shape[0], -1])[:, : math.prod(shape[1:])], shape)


def draw_decisions(
    rate: float, site_key: tf.Tensor, first_row: tf.Tensor, shape: Sequence[int], by_arithmetic: bool
) -> tf.Tensor:
    """The elements that a dropout keeps, one bit each, for code that XLA compiles: uint8 [rows, counts].

    Element i * counts + q of a row is kept if bit i of its byte q is set. The bit is set unless the element's
    16 random bits are among the lowest fraction `rate` of their values.

    Args:
      rate, shape: the dropout's, static; the shape is [rows, ...].
      first_row: the number of the first row; the other rows' numbers follow.
      by_arithmetic: write the arithmetic out instead of using TensorFlow's op; this changes the time, not the bits.
    """
    counts = _counts(first_row, shape)
    if by_arithmetic:
        words = _words_by_arithmetic(site_key, *counts)
    else:
        words = tf.unstack(_words_by_op(site_key, *counts), axis=-1)
    lowest = threshold(rate) << 16  # for 16 bits in the upper half of a signed word
    decisions = [half >= lowest for word in words for half in (tf.bitwise.left_shift(word, 16), word)]
    return tf.cast(tf.add_n([tf.where(kept, 1 << bit, 0) for bit, kept in enumerate(decisions)]), tf.uint8)


def keep_mask(decisions: tf.Tensor, shape: Sequence[int], positions_BxP: tf.Tensor | None = None) -> tf.Tensor:
    """The bits of `draw_decisions` as bool of the static `shape`, or `mask_at_positions` of it."""
    bits = tf.constant([1 << bit for bit in range(ELEMENTS_PER_COUNT)], tf.int32)
    mask = tf.bitwise.bitwise_and(tf.cast(decisions, tf.int32)[:, tf.newaxis, :], bits[:, tf.newaxis]) != 0
    return mask_at_positions(_trim_rows(mask, shape), positions_BxP)


def mask_at_positions(mask: tf.Tensor, positions_BxP: tf.Tensor | None) -> tf.Tensor:
    """[B, ..., S, H] -> [B, ..., P, H]; the whole mask if the positions are None."""
    return mask if positions_BxP is None else tf.gather(mask, positions_BxP, axis=-2, batch_dims=1)


def keep_scale(rate: float) -> float:
    """The factor for kept elements: 1 / (probability that `draw_decisions` keeps one)."""
    return _LEVELS / (_LEVELS - int(round(rate * _LEVELS)))


def truncated_normal(seed: int, name: str, shape: Sequence[int], stddev: float) -> tf.Tensor:
    """Initial weights, float32: normal, truncated at two standard deviations, a function of (seed, variable name)."""
    key = mix64(mix64(seed) ^ zlib.crc32(name.encode("utf-8")))
    seed_pair = np.array([key >> 32, key & 0xFFFFFFFF], np.uint32).view(np.int32)
    return tf.random.stateless_truncated_normal(shape, seed_pair, stddev=stddev, dtype=tf.float32, alg="philox")
