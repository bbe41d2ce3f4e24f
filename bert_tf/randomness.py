"""Stateless random bits: a function of (seed, batch number, site, global row) and of nothing else.

Every mask a training step draws is the same whatever the split into micro-batches and ranks,
whether the step runs eagerly, as a graph or under XLA, and after any restart. No generator state
exists, so none is saved.

How: the counter-based generator Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
as 1, 2, 3", SC 2011), called through the one TensorFlow op whose bits agree between kernels and
XLA. `tf.nn.experimental.stateless_dropout` does not qualify: its masks differ between graph and
XLA once the seed is a tensor.

The key is made of (seed, batch number, site). The counter starts at the row's number in the
update's global order times the counts a row takes. One count gives four 32-bit words, so the
elements of a row are rounded up to a multiple of four.
"""
from __future__ import annotations

import zlib
from typing import Sequence, Tuple

import numpy as np
import tensorflow as tf

PHILOX = 1  # value of the `alg` attribute in TensorFlow's random ops
WORDS_PER_COUNT = 4
_MASK_64 = (1 << 64) - 1


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014): a bijection of 64-bit integers."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def update_key(seed: int, batch_number: int) -> np.uint64:
    """The key all sites of one update share. uint64 scalar; a value, never captured in a graph."""
    return np.uint64(mix64(mix64(seed) ^ batch_number))


class DropoutKey:
    """What a forward pass needs to draw its masks.

    Attributes:
      key: uint64 scalar tensor from `update_key`.
      first_row: int64 scalar tensor, number of this micro-batch's first row in the update's
        global order.
    """

    def __init__(self, key: tf.Tensor, first_row: tf.Tensor):
        self.key = tf.convert_to_tensor(key, tf.uint64)
        self.first_row = tf.convert_to_tensor(first_row, tf.int64)

    def at(self, site: int) -> Tuple[tf.Tensor, tf.Tensor]:
        """(site key uint64 scalar, first row int64 scalar) for the dropout numbered `site`."""
        return tf.bitwise.bitwise_xor(self.key, tf.constant(mix64(site + 1), tf.uint64)), self.first_row


def random_bits(site_key: tf.Tensor, first_row: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Random int32 [rows, ...] of the static `shape`; rows are drawn as first_row, first_row+1, ..."""
    num_rows, row_shape = int(shape[0]), [int(size) for size in shape[1:]]
    row_elements = int(np.prod(row_shape, dtype=np.int64))
    counts_per_row = -(-row_elements // WORDS_PER_COUNT)
    start = tf.cast(first_row * counts_per_row, tf.uint64)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=tf.constant([num_rows, counts_per_row * WORDS_PER_COUNT], tf.int32),
        key=tf.reshape(site_key, [1]),
        counter=tf.stack([start, tf.zeros([], tf.uint64)]),
        alg=PHILOX,
        dtype=tf.int32,
    )
    return tf.reshape(bits[:, :row_elements], [num_rows] + row_shape)


def keep_mask(rate: float, site_key: tf.Tensor, first_row: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """bool of the static `shape` [rows, ...], False where a dropout at the static `rate` drops.

    An element is dropped where its random int32 lies in the lowest `rate` share of all values.
    """
    threshold = int(round(rate * 2.0**32)) - 2**31
    return random_bits(site_key, first_row, shape) >= threshold


def truncated_normal(seed: int, name: str, shape: Sequence[int], stddev: float) -> tf.Tensor:
    """Initial weights float32: normal, cut at two deviations, from (seed, variable name) alone."""
    key = mix64(mix64(seed) ^ zlib.crc32(name.encode("utf-8")))
    pair = np.array([key >> 32, key & 0xFFFFFFFF], np.uint32).view(np.int32)
    return tf.random.stateless_truncated_normal(
        shape, pair, stddev=stddev, dtype=tf.float32, alg="philox")
