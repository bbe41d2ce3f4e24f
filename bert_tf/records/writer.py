"""Writes instances to a shard and its index, a block at a time.

A shard is a TFRecord file of `tf.train.Example` messages, as read and written by Google's and NVIDIA's
code. `example_proto` encodes a block's messages with NumPy (a protobuf library takes some 70 us per
instance), `tfrecord` frames them.

Shape letters: N instances, S sequence, P masked positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

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
    num = instances.num_instances
    messages = encode_examples({name: values.reshape(num, -1) for name, values in instances._asdict().items()})
    return frame(messages), np.fromiter(map(len, messages), np.int64, num) + FRAMING_BYTES


def write_records(path: Path, blocks: Iterable[InstanceArrays]) -> str:
    """Writes a shard and its index, which appear when they are complete; returns the shard's sha256.

    Args:
      blocks: instances, all of the same schema.
    Raises: OSError, which names the shard, if it cannot be written; ValueError as `encode_records` does.
    """
    digest = hashlib.sha256()
    sizes, lengths = [np.zeros(1, np.uint32)], [np.zeros(0, np.uint16)]
    with atomic_file(path) as file:
        for block in blocks:
            for first in range(0, block.num_instances, _BLOCK_INSTANCES):
                part = block.rows(slice(first, first + _BLOCK_INSTANCES))
                records, record_sizes = encode_records(part)
                file.write(records)
                digest.update(records)
                sizes.append(record_sizes.astype(np.uint32))
                lengths.append(part.input_mask.sum(axis=1, dtype=np.uint16))
    write_index(path, np.cumsum(np.concatenate(sizes), dtype=np.uint64), np.concatenate(lengths))
    return digest.hexdigest()
