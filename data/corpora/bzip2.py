"""Unpacks bzip2 files by several threads, beginning at any block.

A file is one or more streams of blocks, each up to 900 kB of text with a checksum, compressed on its own. Blocks begin
with a mark of 48 bits at any bit of the file. Each block is put into a stream of its own, which the standard
library unpacks without holding Python's lock. Libraries that do the same (indexed_bzip2, rapidgzip) take the same
processor time, lose blocks before the damage of a file, and cannot begin inside one: docs/LOG.md.
"""

from __future__ import annotations

import bz2
import concurrent.futures
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from data.running.workers import in_order

_BLOCK_MARK, _END_MARK = 0x314159265359, 0x177245385090
_MARK_BITS, _CHECKSUM_BITS = 48, 32
_HEADER = re.compile(rb"BZh[1-9]")
_READ_BYTES = 1 << 18
# A block's 900 kB take little more than that when they cannot be compressed.
_LARGEST_BLOCK_BYTES = 1 << 20
# A thread takes 5 MB, and XML is not parsed any faster than so many unpack it.
_MOST_THREADS = 16


class Block(NamedTuple):
    """A block's text, and where it begins and ends in the file, in bits."""

    bit: int
    end: int
    text: bytes


class _Packed(NamedTuple):
    """A block's place, and the bytes that hold it and the mark at its end; or why there is none at `bit`."""

    bit: int
    end: int
    content: bytes
    fault: Exception | None = None


def _bits(content: bytes, bit: int, count: int) -> int:
    """`count` bits as a number; fewer where `content` ends."""
    end = bit + count
    piece = content[bit // 8 : (end + 7) // 8]
    return int.from_bytes(piece, "big") >> (-end % 8) & ((1 << count) - 1)


def _marks(content: bytes, start: int) -> list[int]:
    """The bits at which marks stand, from byte `start` on, in order."""
    found = []
    for mark in (_BLOCK_MARK, _END_MARK):
        for shift in range(8):
            # The five bytes that the mark fills when it begins so many bits after a byte does.
            whole = (mark << (8 - shift)).to_bytes(7, "big")[1:6]
            place = content.find(whole, start + 1)
            while place >= 0:
                bit = 8 * (place - 1) + shift
                if _bits(content, bit, _MARK_BITS) == mark:
                    found.append(bit)
                place = content.find(whole, place + 1)
    return sorted(found)


class _Scanner:
    """Finds the blocks of a file from a bit on, where a block or the file begins; passes over `false_mark`."""

    def __init__(self, file: BinaryIO, bit: int, false_mark: int):
        self._file, self._bit, self._false_mark = file, bit, false_mark
        # The file's bytes from `_offset` on, and the marks in them.
        self._offset, self._held = bit // 8, b""
        self._marks: list[int] = []
        file.seek(self._offset)

    def _read_more(self) -> bool:
        content = self._file.read(_READ_BYTES)
        searched = max(0, len(self._held) - 7)
        self._held += content
        new = (8 * self._offset + bit for bit in _marks(self._held, searched))
        self._marks += [bit for bit in new if bit != self._false_mark and bit not in self._marks]
        return bool(content)

    def _has(self, num_bits: int) -> bool:
        while 8 * (self._offset + len(self._held)) < self._bit + num_bits:
            if not self._read_more():
                return False
        return True

    def _fault(self, is_cut: bool) -> _Packed:
        cut = EOFError("Compressed file ended before the end-of-stream marker was reached")
        return _Packed(self._bit, self._bit, b"", cut if is_cut else OSError("Invalid data stream"))

    def blocks(self) -> Iterator[_Packed]:
        """The blocks up to the end, or the fault."""
        is_header, is_first = self._bit == 0, True
        while True:
            place = self._bit - 8 * self._offset
            if is_header:
                is_cut = not self._has(32) and b"BZh".startswith(self._held[place // 8 :])
                if not _HEADER.match(self._held, place // 8):
                    # What follows a whole stream and is none is passed over, as the standard library does.
                    if is_first or (is_cut and len(self._held) > place // 8):
                        yield self._fault(is_cut)
                    return
                self._bit += 32
            elif not self._has(_MARK_BITS + _CHECKSUM_BITS):
                yield self._fault(True)
                return
            elif (mark := _bits(self._held, place, _MARK_BITS)) == _END_MARK:
                self._bit = -(-(self._bit + _MARK_BITS + _CHECKSUM_BITS) // 8) * 8
            else:
                block = self._block() if mark == _BLOCK_MARK else self._fault(False)
                yield block
                if block.fault:
                    return
                self._bit = block.end
            is_header, is_first = not is_header and mark == _END_MARK, False

    def _block(self) -> _Packed:
        """The block at `_bit`, up to the next mark."""
        while not (later := [mark for mark in self._marks if mark > self._bit]):
            is_too_large = 8 * (self._offset + len(self._held)) > self._bit + 8 * _LARGEST_BLOCK_BYTES
            if is_too_large or not self._read_more():
                return self._fault(not is_too_large and self._false_mark < 0)
        self._marks, end = later, later[0]
        content = self._held[self._bit // 8 - self._offset : (end + _MARK_BITS + 7) // 8 - self._offset]
        self._held, self._offset = self._held[end // 8 - self._offset :], end // 8
        return _Packed(self._bit, end, content)


def _unpacked(packed: _Packed) -> Block | _Packed:
    """The block's text; `packed` with its fault where it has one."""
    if packed.fault:
        return packed
    shift = packed.bit % 8
    numbers = np.frombuffer(packed.content + b"\0", np.uint8)
    moved = numbers[:-1] << shift | numbers[1:] >> (8 - shift) if shift else numbers
    # With half of the mark behind the block: its text comes once it is whole and its checksum is right.
    stream = b"BZh9" + moved[: (packed.end - packed.bit + _MARK_BITS // 2) // 8].tobytes()
    try:
        text = bz2.BZ2Decompressor().decompress(stream)
    except (OSError, ValueError) as error:
        return packed._replace(fault=OSError(str(error)))
    return Block(packed.bit, packed.end, text) if text else packed._replace(fault=OSError("Invalid data stream"))


def _in_threads(packed: Iterable[_Packed], num_threads: int) -> Iterator[Block | _Packed]:
    if num_threads == 1:
        yield from map(_unpacked, packed)
        return
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        get_result = concurrent.futures.Future.result
        yield from in_order(
            packed, lambda block: pool.submit(_unpacked, block), get_result, lambda: num_threads + 1, lambda _: 0, 1
        )


def read_blocks(file: BinaryIO, bit: int = 0, num_threads: int = 1, false_mark: int = -1) -> Iterator[Block]:
    """The blocks in order, from the one that begins at `bit` on, each with its right checksum.

    A few more than `num_threads` blocks are in memory.

    Raises:
      EOFError: the file is cut off.
      OSError: it is no bzip2 file, or damaged.
    """
    for block in _in_threads(_Scanner(file, bit, false_mark).blocks(), min(num_threads, _MOST_THREADS)):
        if isinstance(block, Block):
            yield block
            continue
        assert block.fault
        if block.end == block.bit or (false_mark >= 0 and block.bit == bit):
            raise block.fault
        # The bits at its end may look like a mark by chance: once in a thousand dumps of Wikipedia.
        yield from read_blocks(file, block.bit, num_threads, false_mark=block.end)
        return
