"""Blocks of bzip2 files, from any block on, are what the standard library gives."""

from __future__ import annotations

import bz2
import io
import random

import pytest

from bert_tf.prepare.corpora import bzip2

RNG = random.Random(0)
# Random, so that level 1 makes a block of each 100 kB and marks stand at any bit.
TEXT = bytes(RNG.choices(b"abcdefgh", k=450_000))
PACKED = bz2.compress(TEXT, 1)


def read(content: bytes, bit: int = 0):
    """Place and text of each block, and the error that ended them."""
    blocks: list[tuple[int, int, bytes]] = []
    try:
        for block in bzip2.read_blocks(io.BytesIO(content), bit):
            blocks.append((block.bit, block.end, block.text()))  # noqa: PERF401 - kept up to the error
    except (OSError, EOFError) as error:
        return blocks, error
    return blocks, None


def text_of(blocks) -> bytes:
    return b"".join(text for _, _, text in blocks)


def test_reading_begins_at_any_block():
    blocks, error = read(PACKED)
    assert text_of(blocks) == TEXT and error is None and len(blocks) == 5
    assert len({bit % 8 for bit, _, _ in blocks}) > 1
    for number, (bit, _, _) in enumerate(blocks):
        assert read(PACKED, bit) == (blocks[number:], None)


@pytest.mark.parametrize("read_bytes", [10, 1 << 18])
def test_streams_after_each_other_empty_ones_and_garbage(monkeypatch, read_bytes):
    monkeypatch.setattr(bzip2, "_READ_BYTES", read_bytes)
    for _ in range(20 if read_bytes > 10 else 3):
        parts = [RNG.choice([b"", b"x", TEXT[: RNG.randrange(3000)]]) for _ in range(RNG.randint(1, 5))]
        packed = b"".join(bz2.compress(part, RNG.randint(1, 9)) for part in parts)
        for end in (b"", b"garbage", bytes(30)):
            blocks, error = read(packed + end)
            assert text_of(blocks) == b"".join(parts) and error is None


def test_cut_files_give_the_blocks_before_the_cut():
    ends = [end // 8 for _, end, _ in read(PACKED)[0]]
    packed = PACKED + bz2.compress(b"more")
    for length in (0, 3, 20, ends[1] - 9, ends[1] + 20, len(PACKED) - 1, len(PACKED) + 2, len(packed) - 1):
        blocks, error = read(packed[:length])
        assert isinstance(error, EOFError)
        assert len(blocks) == sum(end < length for end in ends) + (length > len(PACKED) + 2)
        with pytest.raises(EOFError), bz2.BZ2File(io.BytesIO(packed[:length])) as file:
            file.read()


def test_damaged_files_give_the_blocks_before_the_damage():
    start = read(PACKED)[0][2][0] // 8
    for place, num_bytes in ((start + 3, 1), (start + 9000, 1), (start + 20_000, 60_000)):
        damaged = bytearray(PACKED)
        damaged[place : place + num_bytes] = bytes(byte ^ 16 for byte in damaged[place : place + num_bytes])
        blocks, error = read(bytes(damaged))
        # With its mark a block loses the one before it.
        assert len(blocks) == (1 if place == start + 3 else 2) and TEXT.startswith(text_of(blocks))
        assert isinstance(error, OSError)
    assert isinstance(read(b"BZh9 no bzip2 file")[1], OSError) and isinstance(read(b"text")[1], OSError)


@pytest.mark.parametrize("mark", [bzip2._BLOCK_MARK, bzip2._END_MARK])
def test_bits_that_look_like_a_mark_end_no_block(monkeypatch, mark):
    """Marks put between those that are found; what follows them stays what it is."""
    blocks, _ = read(PACKED)
    false_mark, read_more, bits = blocks[2][0] + 1001, bzip2._Scanner._read_more, bzip2._bits

    def read_more_with_it(scanner):
        has_more = read_more(scanner)
        scanner._marks = sorted({*scanner._marks, false_mark})
        return has_more

    def bits_with_it(content, bit, count):
        is_false = count == bzip2._MARK_BITS and bit % 8 == false_mark % 8 and bits(content, bit, 96) == bits_there
        return mark if is_false else bits(content, bit, count)

    bits_there = bits(PACKED, false_mark, 96)
    monkeypatch.setattr(bzip2, "_bits", bits_with_it)
    monkeypatch.setattr(bzip2._Scanner, "_read_more", read_more_with_it)
    assert read(PACKED) == (blocks, None)
