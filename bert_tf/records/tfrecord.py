"""TFRecord's framing: messages to records and back, every checksum verified.

A record is

    uint64 length | uint32 checksum of the length | message | uint32 checksum of the message

little-endian, with CRC-32C, rotated and offset.
"""

from __future__ import annotations

import array
import functools
import itertools
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import google_crc32c
import numpy as np

from bert_tf.base.errors import UserError

_HEADER = struct.Struct("<QI")  # length of the message and its checksum
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_FRAMING_BYTES = _HEADER.size + _CHECKSUM.size
_GZIP_MAGIC = b"\x1f\x8b"
# Taken out of memory at once behind a walk through a file.
_WALK_BYTES = 1 << 25
WAY_OUT = (
    "copy the file again from its source, or delete it with its .index and run "
    "bertPrep.py --action create_tfrecord_files again, which makes what is missing"
)

_Checksums = TypeVar("_Checksums", int, np.ndarray)
_Self = TypeVar("_Self", bound="RecordFrames")


def _mask(crc: _Checksums) -> _Checksums:
    """TFRecord's checksum of a CRC-32C: rotated right by 15 bits, plus a constant; uint32."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_checksum(data: bytes) -> int:
    return _mask(google_crc32c.value(data))


@functools.cache
def _header(num_bytes: int) -> bytes:
    """What precedes a message of `num_bytes`: there are few different sizes."""
    return _HEADER.pack(num_bytes, masked_checksum(_LENGTH.pack(num_bytes)))


def _framing(messages: Sequence[bytes]) -> tuple[Iterator[bytes], list[bytes]]:
    """What precedes each message, and what follows it."""
    crcs = np.fromiter(map(google_crc32c.value, messages), np.uint32, len(messages))
    return map(_header, map(len, messages)), _mask(crcs).astype("<u4").view(f"V{_CHECKSUM.size}").tolist()


def frame(messages: Sequence[bytes]) -> tuple[bytes, np.ndarray]:
    """The records one after another, and how many bytes each has, int64 [N]."""
    headers, checksums = _framing(messages)
    records = zip(headers, messages, checksums)
    sizes = np.fromiter(map(len, messages), np.int64, len(messages))
    return b"".join(itertools.chain.from_iterable(records)), sizes + _FRAMING_BYTES


class DamagedRecord(UserError):
    """A record that is not whole; the arguments: its file, and what is wrong with it in short."""

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.args[1]}; {WAY_OUT}"


class RecordFrames:
    """A memory map of a shard, walked frame by frame; every fault is a UserError with its place."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with open(path, "rb") as file:
                status = os.fstat(file.fileno())
                self.size, self.modified_ns = status.st_size, status.st_mtime_ns
                # An empty file cannot be mapped.
                self.map: mmap.mmap | bytes = b""
                if self.size:
                    self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UserError(
                f"record file {path} cannot be read ({error.strerror}); check the path, or prepare "
                "the data with bertPrep.py"
            ) from error
        if self.map[:2] == _GZIP_MAGIC:
            self.close()
            raise UserError(f"record file {path} is compressed; unpack it with gunzip first")

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if isinstance(self.map, mmap.mmap):
            self.map.close()

    def fault(self, number: int, offset: int, what: str) -> UserError:
        return DamagedRecord(self.path, f"record {number} at byte {offset} {what}")

    def end(self, number: int, offset: int) -> int:
        """Where the record that starts at `offset` ends."""
        if offset + _HEADER.size > self.size:
            raise self.fault(number, offset, f"is cut off: the file ends at byte {self.size}")
        length, checksum = _HEADER.unpack_from(self.map, offset)
        if masked_checksum(self.map[offset : offset + 8]) != checksum:
            raise self.fault(number, offset, "has a damaged length (or this is no TFRecord file)")
        end = offset + _FRAMING_BYTES + length
        if end > self.size:
            raise self.fault(number, offset, f"is cut off: it ends at byte {end}, the file at byte {self.size}")
        return end

    def walk(self) -> Iterator[tuple[int, int, int]]:
        """(number, offset, end) of every record; little of a large file stays mapped in memory."""
        number = offset = forgotten = 0
        while offset < self.size:
            end = self.end(number, offset)
            yield number, offset, end
            number, offset = number + 1, end
            if offset - forgotten >= 2 * _WALK_BYTES and isinstance(self.map, mmap.mmap):
                self.map.madvise(mmap.MADV_DONTNEED, forgotten, _WALK_BYTES)
                forgotten += _WALK_BYTES

    def message(self, number: int, offset: int, end: int) -> bytes:
        """The message of a record, its checksum verified."""
        data = self.map[offset + _HEADER.size : end - _CHECKSUM.size]
        if masked_checksum(data) != _CHECKSUM.unpack_from(self.map, end - _CHECKSUM.size)[0]:
            raise self.fault(number, offset, "is damaged: its checksum does not match its bytes")
        return data

    def block(self, offsets: Sequence[int]) -> list[bytes] | None:
        """The messages of neighbouring records between their `offsets` [N + 1]; None where not all of them are whole.

        Every checksum is verified, in less time than `end` and `message` take: what lies around the messages must be
        what frames them.
        """
        data, before, after = self.map, _HEADER.size, _CHECKSUM.size
        messages = [data[begin + before : end - after] for begin, end in zip(offsets, offsets[1:])]
        first, last = offsets[0], offsets[-1]
        found = [
            data[first : first + before],
            *(data[end - after : end + before] for end in offsets[1:-1]),
            data[last - after : last],
        ]
        framing = itertools.chain.from_iterable(zip(*_framing(messages)))
        return messages if b"".join(found) == b"".join(framing) else None


def verify_records(path: str | Path) -> np.ndarray:
    """The first byte of each record, last the file's size, uint64 [N + 1]; every checksum is verified.

    Raises: UserError, DamagedRecord.
    """
    offsets = array.array("Q", [0])
    with RecordFrames(Path(path)) as frames:
        for number, offset, end in frames.walk():
            frames.message(number, offset, end)
            offsets.append(end)
    return np.asarray(offsets)
