"""A shard of records and its index: written a block at a time, read at random, whichever program wrote it.

A shard is a TFRecord file of `tf.train.Example` messages, as read and written by Google's and NVIDIA's code.

``<shard>.index`` contains: magic number, number of records n, offsets of the records (n + 1 uint64, the last is the
file's size), real tokens of each (n uint16), and a checksum; all little-endian. It is rebuilt if it is missing or does
not fit its shard. The index of 10^9 records takes 10 GB. So only the requested part is read, and only `bertPrep.py
--action verify` checks the checksum; a wrong offset is noticed when its record is read.

Shape letters: N instances, S sequence, P masked positions.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Callable

import numpy as np
from google.protobuf.message import DecodeError

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.records.raw_file import CHECKSUM_BYTES, RawFile, checksum
from bert_tf.records.schema import LARGEST_INTEGER, ExampleReader, Features, RecordSchema, encode_examples
from bert_tf.records.tfrecord import FRAMING_BYTES, REMEDY, Record, TFRecordFile, frame

INDEX_SUFFIX = ".index"

# The largest value in each feature but masked_lm_positions, where it depends on the sequence length.
_LARGEST = {
    **dict.fromkeys(("input_ids", "masked_lm_ids"), LARGEST_INTEGER),
    **dict.fromkeys(("input_mask", "segment_ids", "next_sentence_labels"), 1),
    "masked_lm_weights": np.finfo(np.float32).max,
}
_INDEX_HEADER = struct.Struct("<8sQ")
_INDEX_MAGIC = b"BERTidx1"


class RecordIndex:
    """The offsets and lengths of a shard's records, read piece by piece.

    Args:
      read: returns bytes of the index, by (offset, size).
      num_bytes: the index's size.
      is_stored: whether the index is a file beside its shard, or only in memory.

    Attributes:
      num_records: number of records in the shard.
      data_bytes: size of the shard.

    Raises: ValueError if it is not a complete index.
    """

    def __init__(self, read: Callable[[int, int], bytes], num_bytes: int, is_stored: bool = True):
        self._read, self._num_bytes, self.is_stored = read, num_bytes, is_stored
        magic, self.num_records = _INDEX_HEADER.unpack(read(0, _INDEX_HEADER.size))
        self._lengths_start = _INDEX_HEADER.size + 8 * (self.num_records + 1)
        if magic != _INDEX_MAGIC or num_bytes != self._lengths_start + 2 * self.num_records + CHECKSUM_BYTES:
            raise ValueError("not a complete index")
        self.data_bytes = int(self.offsets(self.num_records, 0)[0])

    def offsets(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """uint64 [count + 1]: offsets of the records from `first` on, and the offset after the last one."""
        count = self.num_records - first if count is None else count
        return np.frombuffer(self._read(_INDEX_HEADER.size + 8 * first, 8 * (count + 1)), "<u8")

    def lengths(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """uint16 [count]: number of real tokens of the records from `first` on."""
        count = self.num_records - first if count is None else count
        return np.frombuffer(self._read(self._lengths_start + 2 * first, 2 * count), "<u2")

    def has_right_checksum(self) -> bool:
        content = self._read(0, self._num_bytes)
        return checksum(content[:-CHECKSUM_BYTES]) == content[-CHECKSUM_BYTES:]


def index_path(path: Path) -> Path:
    return path.with_name(path.name + INDEX_SUFFIX)


def _encoded(offsets: np.ndarray, lengths: np.ndarray) -> bytes:
    header = _INDEX_HEADER.pack(_INDEX_MAGIC, len(lengths))
    body = header + offsets.astype("<u8").tobytes() + lengths.astype("<u2").tobytes()
    return body + checksum(body)


def write_index(path: Path, offsets: np.ndarray, lengths: np.ndarray) -> None:
    """Writes the index of the shard `path`. Args: offsets uint64 [N + 1], lengths uint16 [N]. Raises: OSError."""
    with atomic_file(index_path(path)) as file:
        file.write(_encoded(offsets, lengths))


def open_index(path: Path) -> RecordIndex | None:
    """The stored index of the shard `path`; None if it is missing or incomplete."""
    with contextlib.suppress(OSError, ValueError):
        file = RawFile(index_path(path))
        return RecordIndex(file.read, file.size)
    return None


def load_index(path: Path) -> RecordIndex:
    """The index of a shard; if none fits, it is made in one pass over the shard.

    A new index is stored beside the shard if the folder is writable. An index fits if it was made for a
    shard of this size; if it belongs to another shard of the same size, reading the records detects it.

    Raises: UserError if the shard is missing, truncated, not a TFRecord, or has numbers that no instance can have.
    """
    file = TFRecordFile(path)
    index = open_index(path)
    if index is not None and index.data_bytes == file.size:
        return index
    offsets, lengths = _scan(file)
    # A read-only folder or a full disk must not end the run: it only costs this pass at each start.
    with contextlib.suppress(OSError):
        write_index(path, offsets, lengths)
        # From the file, because all shards' indexes together can be larger than the memory.
        if stored := open_index(path):
            return stored
    content = _encoded(offsets, lengths)
    return RecordIndex(lambda offset, size: content[offset : offset + size], len(content), is_stored=False)


def _scan(file: TFRecordFile) -> tuple[np.ndarray, np.ndarray]:
    """Offsets (uint64 [N + 1]) and lengths (uint16 [N]), from one pass over the file."""
    offsets, lengths = array.array("Q", [0]), array.array("H")
    for record in file.verified_records():
        lengths.append(_checked_length(file, record))
        offsets.append(record.end)
    return np.asarray(offsets), np.asarray(lengths)


def _checked_length(file: TFRecordFile, record: Record) -> int:
    """The number of real tokens of a record.

    Raises: UserError if a feature has a value that no instance can have, whichever program wrote it.
    """
    example = read_example(file, record)
    values = {name: example[name] for name in (*_LARGEST, "masked_lm_positions")}
    for name, limit in {**_LARGEST, "masked_lm_positions": len(values["input_mask"]) - 1}.items():
        if invalid := values[name][~((values[name] >= 0) & (values[name] <= limit))].tolist():  # NaN fails both
            fault = f"has {invalid[0]} in {example.names.stored_name(name)}, where numbers are from 0 to {limit}"
            raise file.fault(record.number, record.offset, fault, "make the file again, or without this record")
    return int(values["input_mask"].sum())


def read_example(file: TFRecordFile, record: Record) -> ExampleReader:
    """The features of a record. Raises: UserError if it is no tf.train.Example."""
    try:
        return ExampleReader(record.message)
    except DecodeError as error:
        raise file.fault(record.number, record.offset, f"is no tf.train.Example: {error}") from error


class RecordFile(TFRecordFile):
    """Random access to a shard's messages, every checksum verified.

    Raises: UserError as `load_index` does.
    """

    def __init__(self, path: Path, index: RecordIndex | None = None):
        """`index`: this file's index, from `load_index`; None loads it here."""
        self.index = index or load_index(path)
        super().__init__(path)

    @property
    def num_records(self) -> int:
        return self.index.num_records

    def read(self, first: int, count: int = 1) -> list[bytes]:
        """The serialised tf.train.Examples [first, first + count), counted from 0.

        Raises: UserError, which names file, record and byte, if one is damaged.
        """
        return self.messages(first, self.index.offsets(first, count))


def describe(path: Path) -> RecordSchema:
    """The schema of a shard, from its first record.

    Raises: UserError if the shard cannot be read, is empty, or does not hold instances for pre-training.
    """
    file = TFRecordFile(path)
    if not file.size:
        raise UserError(f"record file {path} holds no record; {REMEDY}")
    example = read_example(file, file.read_at(0, 0))
    sizes = {name: len(example[name]) for name, _, _ in example.names.fields}
    schema = RecordSchema(sizes["input_ids"], sizes["masked_lm_positions"], example.names.has_v2_names)
    for name, _, size in schema.fields:
        if not sizes[name] or sizes[name] != size:
            raise UserError(
                f"record file {path}: its first record has {sizes[name]} values of {example.names.stored_name(name)}, "
                f"which does not fit {schema}; the file was made for something else than pre-training"
            )
    return schema


# Instances encoded at once: enough for NumPy to be fast, few enough for the CPU cache.
_BLOCK_INSTANCES = 256


def encode_records(features: Features) -> tuple[bytes, np.ndarray]:
    """The instances' records, concatenated, and the size in bytes of each, int64 [N].

    Raises: ValueError for integers that are negative or over `schema.LARGEST_INTEGER`.
    """
    messages = encode_examples(features)
    return frame(messages), np.fromiter(map(len, messages), np.int64, len(messages)) + FRAMING_BYTES


def write_records(path: Path, blocks: Iterable[Features]) -> str:
    """Writes a shard and its index, which appear when they are complete; returns the shard's sha256.

    Args:
      blocks: the features of instances, all of the same schema.
    Raises: OSError, which names the shard, if it cannot be written; ValueError as `encode_records` does.
    """
    digest = hashlib.sha256()
    sizes, lengths = [np.zeros(1, np.uint32)], [np.zeros(0, np.uint16)]
    with atomic_file(path) as file:
        for block in blocks:
            for first in range(0, len(block["input_ids"]), _BLOCK_INSTANCES):
                part = {name: values[first : first + _BLOCK_INSTANCES] for name, values in block.items()}
                records, record_sizes = encode_records(part)
                file.write(records)
                digest.update(records)
                sizes.append(record_sizes.astype(np.uint32))
                lengths.append(part["input_mask"].sum(axis=1, dtype=np.uint16))
    write_index(path, np.cumsum(np.concatenate(sizes), dtype=np.uint64), np.concatenate(lengths))
    return digest.hexdigest()
