"""The index beside a shard: where its records begin and how many real tokens each has.

Beside ``<shard>`` lies ``<shard>.index``: magic number, number of records n, offsets of the records
(n + 1 uint64, the last is the file's size), real tokens of each (n uint16), and a checksum; all
little-endian. It is made again where it is missing or does not fit.
"""

from __future__ import annotations

import array
import contextlib
import functools
import struct
from pathlib import Path
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.records import example_proto
from bert_tf.records.schema import LONGEST_SEQUENCE
from bert_tf.records.tfrecord import RecordFrames

INDEX_SUFFIX = ".index"

_INDEX_HEADER = struct.Struct("<8sQ")
_INDEX_CHECKSUM = struct.Struct("<I")
_INDEX_MAGIC = b"BERTidx1"
# Records looked at when an index seems older than its shard.
_SPOT_CHECKS = 16


class RecordIndex(NamedTuple):
    """Where a shard's records lie and how long they are."""

    offsets: np.ndarray  # uint64 [N + 1] first byte of each record's framing; last: the file's size
    lengths: np.ndarray  # uint16 [N] real tokens

    @property
    def num_records(self) -> int:
        return len(self.lengths)


def index_path(path: Path) -> Path:
    return path.with_name(path.name + INDEX_SUFFIX)


def write_index(path: Path, index: RecordIndex) -> None:
    parts = (
        _INDEX_HEADER.pack(_INDEX_MAGIC, index.num_records),
        index.offsets.astype("<u8", copy=False).tobytes(),
        index.lengths.astype("<u2", copy=False).tobytes(),
    )
    target = index_path(path)
    with atomic_file(target) as file:
        file.writelines(parts)
        file.write(_INDEX_CHECKSUM.pack(functools.reduce(google_crc32c.extend, parts, 0)))


def read_index(path: Path) -> RecordIndex | None:
    """The stored index, or None where there is none or it is damaged."""
    try:
        stored = index_path(path).read_bytes()
    except OSError:
        return None
    if len(stored) < _INDEX_HEADER.size + 8 + _INDEX_CHECKSUM.size:
        return None
    body = stored[: -_INDEX_CHECKSUM.size]
    magic, num_records = _INDEX_HEADER.unpack_from(body)
    if (
        magic != _INDEX_MAGIC
        or len(body) != _INDEX_HEADER.size + 8 * (num_records + 1) + 2 * num_records
        or google_crc32c.value(body) != _INDEX_CHECKSUM.unpack(stored[-_INDEX_CHECKSUM.size :])[0]
    ):
        return None
    offsets = np.frombuffer(body, "<u8", num_records + 1, _INDEX_HEADER.size)
    lengths = np.frombuffer(body, "<u2", num_records, _INDEX_HEADER.size + offsets.nbytes)
    return RecordIndex(offsets.astype(np.uint64), lengths.astype(np.uint16))


def load_index(path: str | Path) -> RecordIndex:
    """The index of a shard, made in one pass over the shard where there is none that fits.

    A new index is stored beside the shard where the folder allows it. An index older than its shard
    (copying may have that effect) counts if it agrees with a few records.

    Raises: UserError where the shard is missing, truncated, compressed, or not a TFRecord.
    """
    path = Path(path)
    with ExampleFrames(path) as frames:
        index = read_index(path)
        if index is not None and frames.fit(index):
            return index
        index = frames.scan()
    # A folder that may only be read, or is full, costs a pass at every start, not the run.
    with contextlib.suppress(OSError):
        write_index(path, index)
    return index


class ExampleFrames(RecordFrames):
    """A shard's records as what they should hold; every fault is a UserError with its place."""

    def features(self, number: int, offset: int, end: int) -> example_proto.ExampleReader:
        try:
            return example_proto.ExampleReader(self.message(number, offset, end))
        except example_proto.MalformedMessage as error:
            raise self.fault(number, offset, f"is no tf.train.Example: {error}") from error

    def num_tokens(self, number: int, offset: int, end: int) -> int:
        features = self.features(number, offset, end)
        try:
            return int(features["input_mask"].sum())
        except KeyError:
            raise self.fault(number, offset, f"has no input_mask, but {', '.join(features.names)}") from None
        except example_proto.MalformedMessage as error:
            raise self.fault(number, offset, f"is no tf.train.Example: {error}") from error

    def fit(self, index: RecordIndex) -> bool:
        """Whether a stored index belongs to this file."""
        if int(index.offsets[-1]) != self.size:
            return False
        with contextlib.suppress(OSError):
            if index_path(self.path).stat().st_mtime_ns >= self.modified_ns:
                return True
        numbers = np.linspace(0, index.num_records - 1, min(_SPOT_CHECKS, index.num_records))
        for number in numbers.astype(np.int64).tolist():
            offset, end = map(int, index.offsets[number : number + 2])
            try:
                if self.end(number, offset) != end:
                    return False
                if self.num_tokens(number, offset, end) != int(index.lengths[number]):
                    return False
            except UserError:
                return False
        return True

    def scan(self) -> RecordIndex:
        """The index by one pass over the file."""
        offsets, lengths = array.array("Q", [0]), array.array("H")
        for number, offset, end in self.walk():
            tokens = self.num_tokens(number, offset, end)
            if tokens > LONGEST_SEQUENCE:
                raise self.fault(number, offset, f"has {tokens} tokens; at most {LONGEST_SEQUENCE}")
            lengths.append(tokens)
            offsets.append(end)
        return RecordIndex(np.asarray(offsets), np.asarray(lengths))
