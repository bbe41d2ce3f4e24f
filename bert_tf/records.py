"""The records of pre-training: one schema, a fast writer, an index beside each shard, a reader.

A shard is a TFRecord file of `tf.train.Example` messages, readable by and from Google's and
NVIDIA's code. `example_proto` writes the messages of a block of instances at a time in NumPy (a
protobuf library takes some 70 us an instance), `record_frames` frames them.

Beside ``<shard>`` lies ``<shard>.index``: magic number, number of records n, offsets of the records
(n + 1 uint64, the last is the file's size), real tokens of each (n uint16), and a checksum; all
little-endian. It is made again where it is missing or does not fit.

Shape letters: N instances, S sequence, P masked positions.
"""

from __future__ import annotations

import array
import contextlib
import functools
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import google_crc32c
import numpy as np

from bert_tf import example_proto
from bert_tf.errors import UserError
from bert_tf.files import atomic_file
from bert_tf.record_frames import WAY_OUT, RecordFrames, frame

INDEX_SUFFIX = ".index"
LONGEST_SEQUENCE = np.iinfo(np.uint16).max

_INDEX_HEADER = struct.Struct("<8sQ")
_INDEX_CHECKSUM = struct.Struct("<I")
_INDEX_MAGIC = b"BERTidx1"
_V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
# Instances turned into bytes at once: large enough for NumPy, small enough for a processor's cache.
_BLOCK_INSTANCES = 256
# Records looked at when an index seems older than its shard.
_SPOT_CHECKS = 16


class RecordSchema(NamedTuple):
    """The two sizes that fix every feature's shape, and which names the file has for them.

    Unmasked records, whose masks are drawn while they are read, have 0 predictions: no feature for
    them, and the original tokens in `input_ids`.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    has_v2_names: bool = False  # those of TF2's model garden and of NVIDIA's TF2 recipe; only read

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        """(name, "int64" or "float32", size) of every feature, in canonical (rising) order."""
        sequence, predictions, _ = self
        masks = (
            ("masked_lm_ids", "int64", predictions),
            ("masked_lm_positions", "int64", predictions),
            ("masked_lm_weights", "float32", predictions),
        )
        return (
            ("input_ids", "int64", sequence),
            ("input_mask", "int64", sequence),
            *(masks if predictions else ()),
            ("next_sentence_labels", "int64", 1),
            ("segment_ids", "int64", sequence),
        )

    def stored_name(self, name: str) -> str:
        """What the file calls a feature."""
        return _V2_NAMES.get(name, name) if self.has_v2_names else name


class InstanceArrays(NamedTuple):
    """Instances by feature: integers of any type, not negative; weights float32. Unmasked: P is 0."""

    input_ids: np.ndarray  # [N, S]
    input_mask: np.ndarray  # [N, S] 1 for real tokens, then 0
    segment_ids: np.ndarray  # [N, S]
    masked_lm_positions: np.ndarray  # [N, P]
    masked_lm_ids: np.ndarray  # [N, P]
    masked_lm_weights: np.ndarray  # [N, P] 1 for a prediction, 0 for a filler
    next_sentence_labels: np.ndarray  # [N] 1 = random, 0 = next

    @property
    def schema(self) -> RecordSchema:
        return RecordSchema(self.input_ids.shape[1], self.masked_lm_ids.shape[1])

    @property
    def num_instances(self) -> int:
        return len(self.input_ids)

    def rows(self, selection: slice | np.ndarray) -> InstanceArrays:
        """The selected instances."""
        return InstanceArrays(*(array[selection] for array in self))


class RecordIndex(NamedTuple):
    """Where a shard's records lie and how long they are."""

    offsets: np.ndarray  # uint64 [N + 1] first byte of each record's framing; last: the file's size
    lengths: np.ndarray  # uint16 [N] real tokens

    @property
    def num_records(self) -> int:
        return len(self.lengths)


def encode_records(instances: InstanceArrays) -> tuple[bytes, np.ndarray]:
    """The records of the instances one after another, and how many bytes each has, int64 [N].

    Raises: ValueError for arrays of the wrong shape or kind, and for integers that are negative or
      over `example_proto.LARGEST_INTEGER`.
    """
    schema, num = instances.schema, instances.num_instances
    features = {}
    for name, kind, size in schema.fields:
        values = np.asarray(getattr(instances, name)).reshape(num, -1)
        if values.shape != (num, size) or (values.dtype.kind == "f") != (kind == "float32"):
            raise ValueError(f"{name} is {values.dtype} {values.shape}; {schema} needs {kind} [{num}, {size}]")
        features[name] = values
    return frame(example_proto.encode_examples(features))


class RecordWriter:
    """Writes one shard and its index, block by block; used as a context manager.

    The files appear under their names when the context is left without an exception, and not
    before.

    Raises: UserError where the disk is full or the folder cannot be written.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._sizes: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> RecordWriter:
        with self._user_errors():
            self._file = self._stack.enter_context(atomic_file(self._path))
        return self

    def write(self, instances: InstanceArrays) -> None:
        """Appends instances; all calls must use one schema.

        Raises: ValueError as `encode_records` does, or where a sequence has over 65535 tokens.
        """
        if instances.schema.max_seq_length > LONGEST_SEQUENCE:
            raise ValueError(f"{instances.schema}: at most {LONGEST_SEQUENCE} tokens fit the index")
        for first in range(0, instances.num_instances, _BLOCK_INSTANCES):
            block = instances.rows(slice(first, first + _BLOCK_INSTANCES))
            records, sizes = encode_records(block)
            with self._user_errors():
                self._file.write(records)
            self._sizes.append(sizes.astype(np.uint32))
            self._lengths.append(block.input_mask.sum(axis=1, dtype=np.uint16))

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._user_errors():
            self._stack.__exit__(kind, exception, traceback)
            if exception is None:
                ends = np.cumsum(np.concatenate([np.zeros(1, np.uint32), *self._sizes]), dtype=np.uint64)
                lengths = np.concatenate([np.zeros(0, np.uint16), *self._lengths])
                _write_index(self._path, RecordIndex(ends, lengths))

    @contextlib.contextmanager
    def _user_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"{self._path} cannot be written ({error.strerror}); nothing half-written is left: "
                "free space or choose a folder you may write to, and start again, which goes on "
                "with the shards that are missing"
            ) from error


def write_records(path: str | Path, instances: InstanceArrays) -> None:
    """Writes ``path`` and ``path.index`` at once.

    Raises: UserError and ValueError as `RecordWriter` does.
    """
    with RecordWriter(path) as writer:
        writer.write(instances)


def _index_path(path: Path) -> Path:
    return path.with_name(path.name + INDEX_SUFFIX)


def _write_index(path: Path, index: RecordIndex) -> None:
    parts = (
        _INDEX_HEADER.pack(_INDEX_MAGIC, index.num_records),
        index.offsets.astype("<u8", copy=False).tobytes(),
        index.lengths.astype("<u2", copy=False).tobytes(),
    )
    target = _index_path(path)
    with atomic_file(target) as file:
        file.writelines(parts)
        file.write(_INDEX_CHECKSUM.pack(functools.reduce(google_crc32c.extend, parts, 0)))


def read_index(path: Path) -> RecordIndex | None:
    """The stored index, or None where there is none or it is damaged."""
    try:
        stored = _index_path(path).read_bytes()
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
    with _Frames(path) as frames:
        index = read_index(path)
        if index is not None and frames.fit(index):
            return index
        index = frames.scan()
    # A folder that may only be read, or is full, costs a pass at every start, not the run.
    with contextlib.suppress(OSError):
        _write_index(path, index)
    return index


class _Frames(RecordFrames):
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
            if _index_path(self.path).stat().st_mtime_ns >= self.modified_ns:
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


class RecordFile:
    """Random access to a shard's messages through a memory map, every checksum verified."""

    def __init__(self, path: str | Path, index: RecordIndex | None = None):
        """`index`: what `load_index` gave for this file, loaded here where it is None.

        Raises: UserError as `load_index` does, or where the file is no longer what was indexed.
        """
        self.index = load_index(path) if index is None else index
        self._frames = _Frames(Path(path))
        self._offsets = self.index.offsets.data
        if self._frames.size != self._offsets[-1]:
            self._frames.close()
            raise UserError(
                f"{path} has {self._frames.size} bytes, but had {self._offsets[-1]} when it was indexed; "
                "do not change record files while they are read: start again"
            )

    @property
    def num_records(self) -> int:
        return self.index.num_records

    def forget(self) -> None:
        """Lets go of the memory that reading has taken: each record brings in what lies around it."""
        if isinstance(self._frames.map, mmap.mmap):
            self._frames.map.madvise(mmap.MADV_DONTNEED)

    def read(self, number: int) -> bytes:
        """The serialised tf.train.Example of record `number`, counted from 0.

        Raises: UserError naming file, record and byte where it is damaged; IndexError.
        """
        if not 0 <= number < self.num_records:
            raise IndexError(f"record {number} of {self.num_records}")
        offset, end = self._offsets[number], self._offsets[number + 1]
        if self._frames.end(number, offset) != end:
            raise self._frames.fault(number, offset, "does not end where its index says")
        return self._frames.message(number, offset, end)

    def read_block(self, first: int, count: int) -> list[bytes]:
        """The records [first, first + count). Raises as `read` does."""
        offsets = self._offsets[first : first + count + 1].tolist()
        messages = self._frames.block(offsets) if len(offsets) == count + 1 else None
        # One by one they tell which is damaged, and how.
        return [self.read(number) for number in range(first, first + count)] if messages is None else messages

    def close(self) -> None:
        self._frames.close()

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe(path: str | Path) -> RecordSchema:
    """The schema of a shard, by its first record; works for foreign files too.

    Raises: UserError where the shard cannot be read, is empty, or lacks a feature.
    """
    with _Frames(Path(path)) as frames:
        if not frames.size:
            raise UserError(f"record file {path} holds no record; {WAY_OUT}")
        features = frames.features(0, 0, frames.end(0, 0))
        is_masked = any(name.startswith("masked_lm_") for name in features.names)
        schema = RecordSchema(1, is_masked, "input_word_ids" in features.names)
        sizes = {}
        try:
            for name, _, _ in schema.fields:
                sizes[name] = len(features[schema.stored_name(name)])
        except KeyError as error:
            wanted = ", ".join(schema.stored_name(name) for name, _, _ in schema.fields)
            raise UserError(
                f"record file {path} has no feature {error.args[0]!r}, but {', '.join(features.names)}; "
                f"records for pre-training have {wanted}"
            ) from None
        except example_proto.MalformedMessage as error:
            raise frames.fault(0, 0, f"is no tf.train.Example: {error}") from error
    schema = schema._replace(
        max_seq_length=sizes["input_ids"], max_predictions_per_seq=sizes.get("masked_lm_positions", 0)
    )
    for name, _, needed in schema.fields:
        if sizes[name] != needed:
            raise UserError(
                f"record file {path}: {name} has {sizes[name]} values where {schema} needs {needed}; "
                "the file was made for something else than pre-training"
            )
    return schema
