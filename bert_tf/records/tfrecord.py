"""TFRecord's framing: messages to records and back, with every checksum verified.

A record is

    uint64 length | uint32 checksum of the length | message | uint32 checksum of the message

little-endian; the checksums are masked CRC-32C (`masked_checksum`).
"""

from __future__ import annotations

import functools
import gzip
import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file, naming_unreadable
from bert_tf.records.raw_file import RawFile

_HEADER = struct.Struct("<QI")  # length of the message and its checksum
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
FRAMING_BYTES = _HEADER.size + _CHECKSUM.size
_GZIP_MAGIC = b"\x1f\x8b"
UNPACKED_SUFFIX = ".unpacked"
REMEDY = (
    "delete its .index, which is made again; if that does not help, copy the file again from its source, or delete it "
    "and run bertPrep.py --action create_tfrecord_files again, which makes what is missing"
)

# TFRecord masks a CRC-32C: it is rotated right by 15 bits, and this constant is added.
_CHECKSUM_CONSTANT = 0xA282EAD8


def masked_checksum(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _CHECKSUM_CONSTANT) & 0xFFFFFFFF


@functools.cache
def _header(num_bytes: int) -> bytes:
    """What precedes a message of `num_bytes`. Cached, because sizes repeat."""
    return _HEADER.pack(num_bytes, masked_checksum(_LENGTH.pack(num_bytes)))


def frame(messages: Sequence[bytes]) -> bytes:
    """The records of the messages, concatenated; each is `FRAMING_BYTES` longer than its message."""
    crcs = np.fromiter(map(google_crc32c.value, messages), np.uint32, len(messages))
    # `masked_checksum` in 32-bit NumPy arithmetic: three times as fast as with Python integers.
    masked = (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_CHECKSUM_CONSTANT)
    checksums = masked.astype("<u4", copy=False).view(f"V{_CHECKSUM.size}").tolist()
    return b"".join(itertools.chain.from_iterable(zip(map(_header, map(len, messages)), messages, checksums)))


class Record(NamedTuple):
    """A record: its number, its offset in the file, its message, and the offset after it."""

    number: int
    offset: int
    message: bytes
    end: int


class TFRecordFile:
    """A record file, whose records are read by offset; GZIP files are unpacked first.

    Attributes:
      path: the path of the file as given, even if an unpacked copy is read.
      size: number of its bytes (unpacked).

    Raises: UserError if it cannot be read; methods that read raise one that names the record and byte.
    """

    def __init__(self, path: Path):
        self.path = path
        with naming_unreadable(f"record file {path}", "check the path, or prepare the data with bertPrep.py"):
            self._file = RawFile(path)
            if self._file.read(0, min(self._file.size, len(_GZIP_MAGIC))) == _GZIP_MAGIC:
                self._file = RawFile(_unpack(self._file))
        self.size = self._file.size

    def fault(self, number: int, offset: int, fault: str, remedy: str = REMEDY) -> UserError:
        return UserError(f"{self.path}: record {number} at byte {offset} {fault}; {remedy}")

    def read_at(self, offset: int, number: int) -> Record:
        """The record that starts at `offset`, both checksums verified; it is record `number` of the file."""
        length = 0
        if offset + FRAMING_BYTES <= self.size:
            header = self._file.read(offset, _HEADER.size)
            (length,) = _LENGTH.unpack_from(header)
            if header != _header(length):
                raise self.fault(number, offset, "has a damaged length (or this is no TFRecord file)")
        end = offset + FRAMING_BYTES + length
        if end > self.size:
            raise self.fault(number, offset, f"is cut off: the file ends at byte {self.size}")
        data = self._file.read(offset + _HEADER.size, length + _CHECKSUM.size)
        message, checksum = data[:length], data[length:]
        if checksum != _CHECKSUM.pack(masked_checksum(message)):
            raise self.fault(number, offset, "is damaged: its checksum does not match its bytes")
        return Record(number, offset, message, end)

    def verified_records(self) -> Iterator[Record]:
        """All records in order, both checksums verified."""
        number = offset = 0
        while offset < self.size:
            record = self.read_at(offset, number)
            yield record
            number, offset = number + 1, record.end

    def messages(self, first: int, offsets: np.ndarray) -> list[bytes]:
        """The messages of consecutive records from number `first` on, by their `offsets` [N + 1] in the index.

        Verifies every checksum, but faster than `read_at`: frames all messages again and compares.
        """
        begin, bounds = int(offsets[0]), (offsets - offsets[0]).tolist()
        data = self._file.read(begin, bounds[-1]) if bounds[-1] <= self.size - begin else b""
        messages = [data[start + _HEADER.size : end - _CHECKSUM.size] for start, end in zip(bounds, bounds[1:])]
        if frame(messages) != data:
            for number, (offset, stated_end) in enumerate(zip(offsets.tolist(), offsets[1:].tolist()), first):
                if self.read_at(offset, number).end != stated_end:
                    raise self.fault(number, offset, "does not end where the .index beside it says")
            raise self.fault(first, begin, "was changed while it was read")
        return messages


def _unpack(packed: RawFile) -> Path:
    """The unpacked copy beside a GZIP shard; made if it is missing, or if its modification time is not the shard's.

    A GZIP file can only be read sequentially, but training reads records in random order.
    """
    path = packed.path
    unpacked = path.with_name(path.name + UNPACKED_SUFFIX)
    if unpacked.exists() and unpacked.stat().st_mtime_ns == packed.modified_ns:
        return unpacked
    try:
        with gzip.open(path) as source, atomic_file(unpacked) as copy:
            shutil.copyfileobj(source, copy)
        os.utime(unpacked, ns=(packed.modified_ns, packed.modified_ns))
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(
            f"record file {path} begins like a GZIP file, but cannot be unpacked to {unpacked} ({error}); unpack the "
            "shards with gunzip into a folder with enough space, and name that folder"
        ) from error
    return unpacked
