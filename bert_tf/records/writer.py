"""Writes instances to a shard and its index, a block at a time.

A shard is a TFRecord file of `tf.train.Example` messages, as read and written by Google's and NVIDIA's
code. `example_proto` encodes a block's messages with NumPy (a protobuf library takes some 70 us per
instance), `tfrecord` frames them.

Shape letters: N instances, S sequence, P masked positions.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from types import TracebackType

import numpy as np

from bert_tf.base.files import atomic_file
from bert_tf.records.example_proto import encode_examples
from bert_tf.records.index import write_index
from bert_tf.records.schema import InstanceArrays
from bert_tf.records.tfrecord import FRAMING_BYTES, frame

# Instances encoded at once: enough for NumPy to be fast, few enough for the CPU cache.
_BLOCK_INSTANCES = 256


def encode_records(instances: InstanceArrays) -> tuple[bytes, np.ndarray]:
    """The instances' records, concatenated, and the size in bytes of each, int64 [N].

    Raises: ValueError for integers that are negative or over `example_proto.LARGEST_INTEGER`.
    """
    schema, num = instances.schema, instances.num_instances
    features = {}
    for name, kind, size in schema.fields:
        values = np.asarray(getattr(instances, name)).reshape(num, -1)
        assert values.shape == (num, size) and (values.dtype.kind == "f") == (kind == "float32"), name
        features[name] = values
    messages = encode_examples(features)
    return frame(messages), np.fromiter(map(len, messages), np.int64, num) + FRAMING_BYTES


class RecordWriter:
    """Writes one shard and its index, block by block; a context manager.

    The files get their names only when the context is left without an exception; `sha256` is then that of the shard.

    Raises: OSError, which names the shard, if the disk is full or the folder cannot be written.
    """

    def __init__(self, path: str | Path):
        self._path = Path(path)
        self._sizes: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._stack = contextlib.ExitStack()
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __enter__(self) -> RecordWriter:
        self._file = self._stack.enter_context(atomic_file(self._path))
        return self

    def write(self, instances: InstanceArrays) -> None:
        """Appends instances; all calls must use the same schema.

        Raises: ValueError as `encode_records` does.
        """
        for first in range(0, instances.num_instances, _BLOCK_INSTANCES):
            block = instances.rows(slice(first, first + _BLOCK_INSTANCES))
            records, sizes = encode_records(block)
            self._file.write(records)
            self._digest.update(records)
            self._sizes.append(sizes.astype(np.uint32))
            self._lengths.append(block.input_mask.sum(axis=1, dtype=np.uint16))

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, exception, traceback)
        if exception is None:
            ends = np.cumsum(np.concatenate([np.zeros(1, np.uint32), *self._sizes]), dtype=np.uint64)
            lengths = np.concatenate([np.zeros(0, np.uint16), *self._lengths])
            write_index(self._path, ends, lengths)
