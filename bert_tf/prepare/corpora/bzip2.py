"""Splits bzip2 files into their blocks, starting at any block; each can be decompressed by itself.

A file is one or more streams of blocks; each block holds up to 900 kB of text, compressed separately, with a checksum.
Blocks begin with a 48-bit mark that may start at any bit of the file. Finding the marks takes a hundredth of the time
of decompression, so that one process can hand out blocks to many. Libraries that decompress in parallel (indexed_bzip2,
rapidgzip) do it with threads of one process, lose intact blocks before the damage in a file, and cannot start in the
middle of a file: docs/LOG.md.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

LARGEST_TEXT_BYTES = 900_000
_BLOCK_MARK, _END_MARK = 0x314159265359, 0x177245385090
_MARK_BITS, _CHECKSUM_BITS = 48, 32
# In about one of a thousand Wikipedia dumps, other bits look like a mark. A real mark that begins a block is followed
# by its checksum, a bit that has long been 0, and a position in the block's text as a 24-bit number; the mark that
# ends a stream is followed by the next stream.
_START_BITS = 25
_STREAM = b"BZh"
_HEADER = re.compile(_STREAM + rb"[1-9]")
_READ_BYTES = 1 << 18
# A block's 900 kB take only a little more than that if they cannot be compressed.
_LARGEST_BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """The bits at which a block begins and ends in the file, and the bytes that hold it and the mark behind it."""

    bit: int
    end: int
    content: bytes

    def text(self) -> bytes:
        """Raises: OSError where the block is damaged."""
        shift = self.bit % 8
        numbers = np.frombuffer(self.content + b"\0", np.uint8)
        moved = numbers[:-1] << shift | numbers[1:] >> (8 - shift) if shift else numbers
        # With half of the next mark: the decompressor returns the text only once it has verified the checksum.
        stream = b"BZh9" + moved[: (self.end - self.bit + _MARK_BITS // 2) // 8].tobytes()
        text = bz2.BZ2Decompressor().decompress(stream)
        if not text:
            raise _not_bzip2()
        return text


def _not_bzip2() -> OSError:
    return OSError("Invalid data stream")


def _cut_off() -> EOFError:
    return EOFError("Compressed file ended before the end-of-stream marker was reached")


def _bits(content: bytes, bit: int, count: int) -> int:
    """`count` bits as a number; fewer where `content` ends."""
    end = bit + count
    piece = content[bit // 8 : (end + 7) // 8]
    return int.from_bytes(piece, "big") >> (-end % 8) & ((1 << count) - 1)


def _is_real(content: bytes, bit: int) -> bool:
    """Whether a mark is followed by what has to follow it; checked only as far as `content` reaches."""
    behind = bit + _MARK_BITS + _CHECKSUM_BITS
    if _bits(content, bit, _MARK_BITS) == _END_MARK:
        byte = -(-behind // 8)
        return _STREAM.startswith(content[byte : byte + len(_STREAM)])
    return 8 * len(content) < behind + _START_BITS or _bits(content, behind, _START_BITS) < LARGEST_TEXT_BYTES


def _marks(content: bytes, start: int) -> list[int]:
    """The bits at which marks begin, from byte `start` on, in order."""
    found = []
    for mark in (_BLOCK_MARK, _END_MARK):
        for shift in range(8):
            # The five whole bytes within the mark if it begins this many bits after the start of a byte.
            whole = (mark << (8 - shift)).to_bytes(7, "big")[1:6]
            place = content.find(whole, start + 1)
            while place >= 0:
                bit = 8 * (place - 1) + shift
                if _bits(content, bit, _MARK_BITS) == mark:
                    found.append(bit)
                place = content.find(whole, place + 1)
    return sorted(found)


class _Scanner:
    """Finds the blocks of a file from a bit on, where a block or the file begins."""

    def __init__(self, file: BinaryIO, bit: int):
        self._file, self._bit = file, bit
        # The file's bytes from `_offset` on, and the marks in them.
        self._offset, self._held = bit // 8, b""
        self._marks: list[int] = []
        file.seek(self._offset)

    def _read_more(self) -> bool:
        content = self._file.read(_READ_BYTES)
        searched = max(0, len(self._held) - 7)
        self._held += content
        new = (8 * self._offset + bit for bit in _marks(self._held, searched))
        self._marks += [bit for bit in new if bit not in self._marks]
        return bool(content)

    def _has(self, end: int) -> bool:
        """Reads up to bit `end`; returns whether the file goes that far."""
        while 8 * (self._offset + len(self._held)) < end:
            if not self._read_more():
                return False
        return True

    def blocks(self) -> Iterator[Block]:
        """The blocks up to the end."""
        is_header, is_first = self._bit == 0, True
        while True:
            place = self._bit - 8 * self._offset
            if is_header:
                is_cut = not self._has(self._bit + 32) and _STREAM.startswith(self._held[place // 8 :])
                if not _HEADER.match(self._held, place // 8):
                    # Bytes after a complete stream that are not another stream are ignored, as in the standard library.
                    if is_first or (is_cut and len(self._held) > place // 8):
                        raise _cut_off() if is_cut else _not_bzip2()
                    return
                self._bit += 32
            elif not self._has(self._bit + _MARK_BITS + _CHECKSUM_BITS):
                raise _cut_off()
            elif (mark := _bits(self._held, place, _MARK_BITS)) == _END_MARK:
                self._bit = -(-(self._bit + _MARK_BITS + _CHECKSUM_BITS) // 8) * 8
            elif mark == _BLOCK_MARK:
                block = self._block()
                yield block
                self._bit = block.end
            else:
                raise _not_bzip2()
            is_header, is_first = not is_header and mark == _END_MARK, False

    def _block(self) -> Block:
        """The block at `_bit`, up to the next real mark."""
        end = self._next_mark(self._bit)
        if end is None:
            raise _not_bzip2() if self._is_too_large() else _cut_off()
        while not self._is_real(end) and (later := self._next_mark(end)):
            end = later
        self._marks = [mark for mark in self._marks if mark >= end]
        content = self._held[self._bit // 8 - self._offset : (end + _MARK_BITS + 7) // 8 - self._offset]
        self._held, self._offset = self._held[end // 8 - self._offset :], end // 8
        return Block(self._bit, end, content)

    def _is_too_large(self) -> bool:
        return 8 * (self._offset + len(self._held)) > self._bit + 8 * _LARGEST_BLOCK_BYTES

    def _next_mark(self, bit: int) -> int | None:
        while not (later := [mark for mark in self._marks if mark > bit]):
            if self._is_too_large() or not self._read_more():
                return None
        return later[0]

    def _is_real(self, mark: int) -> bool:
        self._has(mark + _MARK_BITS + _CHECKSUM_BITS + 8 * len(_STREAM) + 7)
        return _is_real(self._held, mark - 8 * self._offset)


def read_blocks(file: BinaryIO, bit: int = 0) -> Iterator[Block]:
    """The blocks in order, starting with the one that begins at `bit`; a few hundred kB are in memory at a time.

    Raises:
      EOFError: the file is truncated.
      OSError: it is not a bzip2 file, or a mark is damaged. Damage inside a block is found by `Block.text`.
    """
    return _Scanner(file, bit).blocks()
