"""Dropout masks as bits, in Triton: the masks of `bert_tf.model.randomness`."""

from __future__ import annotations

import triton
import triton.language as tl

# Philox 4x32-10; see `bert_tf.model.randomness`.
_MULTIPLIER_A, _MULTIPLIER_C = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_STEP_A, _STEP_C = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def keep(words, x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """x [ROWS, COLUMNS] where the bits of the words [ROWS, COLUMNS / 32] are set, else 0."""
    # Bit 8 a + 2 b + c. In a matmul's result a thread has all a and c of one b: so it shifts a word once, by 2 b, and
    # then looks at bits whose numbers are constants.
    shifted = words[:, :, None, None, None] >> (2 * tl.arange(0, 4))[None, None, None, :, None]
    numbers = (8 * tl.arange(0, 4))[None, None, :, None, None] + tl.arange(0, 2)[None, None, None, None, :]
    kept = (shifted & (1 << numbers)) != 0
    return tl.reshape(tl.where(kept, tl.reshape(x, [ROWS, COLUMNS // 32, 4, 4, 2]), 0.0), [ROWS, COLUMNS])


@triton.jit
def draw_keep_bits(key, first_row, keep_words, COUNTS: tl.constexpr, THRESHOLD: tl.constexpr, BLOCK: tl.constexpr):
    """`randomness.draw_decisions` as bits of words [B, 8, COUNTS / 32].

    Element i * COUNTS + q of a row is bit q % 32 of word i, q // 32.

    key: the site's key, a uint64 scalar; first_row: an int64 scalar.
    """
    numbers, batch = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    start = (tl.load(first_row) + batch) * COUNTS
    site_key = tl.load(key)
    key_a, key_c = site_key.to(tl.uint32), (site_key >> 32).to(tl.uint32)
    zeros = tl.zeros([BLOCK], tl.int32)
    words = [zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros]
    # The upper bits first. Bits whose numbers are constants are set by half as many instructions.
    for half in tl.range(2):
        words = [word << 16 for word in words]
        for bit in tl.static_range(16):
            counts = start + (numbers * 32 + (16 - 16 * half) + bit).to(tl.int64)
            a, b = counts.to(tl.uint32), (counts >> 32).to(tl.uint32)
            c = tl.zeros([BLOCK], tl.uint32)
            d = c
            k_a, k_c = key_a, key_c
            for _ in tl.static_range(10):
                a, b, c, d = (
                    tl.umulhi(c, _MULTIPLIER_C) ^ b ^ k_a,
                    c * _MULTIPLIER_C,
                    tl.umulhi(a, _MULTIPLIER_A) ^ d ^ k_c,
                    a * _MULTIPLIER_A,
                )
                k_a += _STEP_A
                k_c += _STEP_C
            words = (
                _add_bits(words[0], words[1], a, bit, THRESHOLD)
                + _add_bits(words[2], words[3], b, bit, THRESHOLD)
                + _add_bits(words[4], words[5], c, bit, THRESHOLD)
                + _add_bits(words[6], words[7], d, bit, THRESHOLD)
            )
    PLANE: tl.constexpr = COUNTS // 32
    target = keep_words + batch * (8 * PLANE) + numbers
    inside = numbers < PLANE
    for number in tl.static_range(8):
        tl.store(target + number * PLANE, words[number], inside)


@triton.jit
def _add_bits(low_word, high_word, random, bit: tl.constexpr, THRESHOLD: tl.constexpr):
    """Sets a bit of each word where the lower or the upper 16 random bits reach the threshold."""
    signed = random.to(tl.int32, bitcast=True)
    low_word = tl.where((signed << 16) >= THRESHOLD, low_word | (1 << bit), low_word)
    high_word = tl.where(signed >= THRESHOLD, high_word | (1 << bit), high_word)
    return low_word, high_word
