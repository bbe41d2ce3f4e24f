"""The kernel's dropout masks are those of every other backend, bit by bit, and of the stand-in's NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.kernels.fused_operation import BITS_PER_WORD
from bert_tf.model.randomness import ELEMENTS_PER_COUNT, draw_decisions, draw_mask, keep_mask, threshold
from tests.model.kernels.interpreted import launch
from tests.model.kernels.stand_in import draw_keep_bits

BLOCK = 128  # words of a program


def draw_words(shape, rate, site_key, first_row, launch=launch):
    """As `FusedOperation.draw`: int32 [rows, elements / 32]."""
    num_rows, num_counts = shape[0], int(np.prod(shape[1:])) // ELEMENTS_PER_COUNT
    words = np.full([num_rows, num_counts * ELEMENTS_PER_COUNT // BITS_PER_WORD], 0x5A5A5A5A, np.int32)
    grid = (-(-num_counts // BITS_PER_WORD // BLOCK), num_rows, 1)
    site = [np.array(site_key, np.uint64), np.array(first_row, np.int64)]
    constants = dict(COUNTS=num_counts, THRESHOLD=threshold(rate) << 16, BLOCK=BLOCK)
    addresses = [array.ctypes.data for array in (*site, words)]
    launch("draw_keep_bits", grid, addresses, ["*u64", "*i64", "*i32"], constants)
    return words


def unpack(words, shape):
    """Element e of a row is bit e % 32 of its word e // 32, as the kernels that read the words take it."""
    return np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool).reshape(shape)


COUNTS = 64 * 64 // ELEMENTS_PER_COUNT  # of a row of [2, 64, 64]


@pytest.mark.parametrize(
    "shape, rate, site_key, first_row",
    [
        ([3, 2, 64, 64], 0.1, 2**40 + 3, 5),
        ([2, 8, 32], 2**-16, 0, 0),
        # Rows of two programs, the second of which has fewer words.
        ([1, 256, 192], 0.9, 2**32 - 1, 11),
        # Rows whose counts go over 2^32, and keys that no signed integer holds.
        ([2, 64, 64], 0.1, 2**64 - 1, 2**32 // COUNTS - 1),
        ([2, 64, 64], 0.1, 2**63 + 2**32, 2**40 + 1),
    ],
)
def test_masks_have_the_bits_of_the_other_backends(shape, rate, site_key, first_row):
    words = draw_words(shape, rate, site_key, first_row)
    np.testing.assert_array_equal(words, draw_words(shape, rate, site_key, first_row, draw_keep_bits))
    found = unpack(words, shape)
    site = tf.constant(site_key, tf.uint64), tf.constant(first_row, tf.int64)
    for by_arithmetic in False, True:
        expected = keep_mask(draw_decisions(rate, *site, shape, by_arithmetic), shape)
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, draw_mask(rate, *site, shape))
    assert abs(1 - found.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / found.size)
