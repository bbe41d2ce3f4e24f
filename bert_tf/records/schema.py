"""The features of a pre-training record, and `tf.train.Example` messages of them without TensorFlow.

The message is ``Example{features: Features{feature: map<name, Feature>}}``, where a Feature is a list of int64 or of
float. Messages are encoded with NumPy, many at once (a protobuf library takes some 70 us per instance), in the
canonical form (names sorted, lists packed) of ``SerializeToString(deterministic=True)``. They are decoded one at a time
by the protobuf library, so messages of any writer can be read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

LONGEST_SEQUENCE = np.iinfo(np.uint16).max
NUM_MARKERS = 3  # [CLS] A [SEP] B [SEP]; of a single segment, [CLS] A [SEP], one fewer
# Instances: an array [N, size] for each of `RecordSchema.fields`, of floats or of integers that are not negative.
# input_mask is 1 for tokens, masked_lm_weights for predictions, then 0; next_sentence_labels is 1 for a random B.
Features = dict[str, np.ndarray]
V2_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}


class RecordSchema(NamedTuple):
    """The two sizes that determine every feature's shape, and which feature names the file uses."""

    sequence_length: int
    num_predictions: int
    has_v2_names: bool = False  # the names used by the TF2 model garden and NVIDIA's TF2 recipe; read, never written

    @property
    def fields(self) -> tuple[tuple[str, str, int], ...]:
        """(name, "int64" or "float32", size) of every feature, sorted by name."""
        sequence, predictions, _ = self
        return (
            ("input_ids", "int64", sequence),
            ("input_mask", "int64", sequence),
            ("masked_lm_ids", "int64", predictions),
            ("masked_lm_positions", "int64", predictions),
            ("masked_lm_weights", "float32", predictions),
            ("next_sentence_labels", "int64", 1),
            ("segment_ids", "int64", sequence),
        )

    def __str__(self) -> str:
        names = f", {', '.join(V2_NAMES.values())}" if self.has_v2_names else ""
        return f"max_seq_length={self.sequence_length}, max_predictions_per_seq={self.num_predictions}{names}"

    def stored_name(self, name: str) -> str:
        """The feature's name in the file."""
        return V2_NAMES.get(name, name) if self.has_v2_names else name


# Keys of the wire format: field number << 3 | wire type. Type 2 is a length followed by that many bytes.
_BYTES = 2
_EXAMPLE_FEATURES = _FEATURES_FEATURE = _ENTRY_NAME = 1 << 3 | _BYTES
_ENTRY_FEATURE = 2 << 3 | _BYTES
_FLOAT_LIST, _INT64_LIST = 2 << 3 | _BYTES, 3 << 3 | _BYTES
_LIST_PACKED = 1 << 3 | _BYTES
_PAYLOAD_BITS = 7
# Larger than the ids of any vocabulary.
LARGEST_INTEGER = (1 << 20) - 1
_MORE = 0x80  # set in a byte of a varint that another byte follows


def _varint(value: int) -> bytes:
    """7 bits per byte, low bits first; a byte's high bit says that another byte follows."""
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & (_MORE - 1) | _MORE)
        value >>= _PAYLOAD_BITS
    encoded.append(value)
    return bytes(encoded)


def _begin(key: int, contents: bytes, num_bytes: int) -> bytes:
    """The start of a field: key, length, and the first `contents`; the caller appends the other `num_bytes`."""
    return bytes([key]) + _varint(len(contents) + num_bytes) + contents


@functools.cache
def _begin_message(num_bytes: int) -> bytes:
    """What precedes the entries, which have `num_bytes` in all, in a message."""
    return _begin(_EXAMPLE_FEATURES, b"", num_bytes)


@functools.cache
def _begin_entry(name: str, kind: int, num_bytes: int) -> bytes:
    """What precedes a packed list of `num_bytes` in an entry of the map."""
    packed = _begin(_LIST_PACKED, b"", num_bytes)
    feature = _begin(_ENTRY_FEATURE, _begin(kind, packed, num_bytes), num_bytes)
    return _begin(_FEATURES_FEATURE, _begin(_ENTRY_NAME, name.encode(), 0) + feature, num_bytes)


def _pack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encodes each row of [N, K] as the bytes of a packed list.

    Returns: all bytes, uint8; the number of bytes of each row, int64 [N].
    """
    num, count = values.shape
    if values.dtype.kind == "f":
        return values.astype("<f4").reshape(-1).view(np.uint8), np.full(num, 4 * count)
    largest = int(values.max(initial=0))
    if values.min(initial=0) < 0 or largest > LARGEST_INTEGER:
        raise ValueError(f"integers from 0 to {LARGEST_INTEGER} are written, not {values.min()} to {largest}")
    # What remains to be encoded of each integer at each byte of its varint, [N, K, bytes].
    remaining = np.stack([values >> bits for bits in range(0, max(largest.bit_length(), 1), _PAYLOAD_BITS)], axis=-1)
    encoded = (remaining & (_MORE - 1) | (remaining >= _MORE) * _MORE).astype(np.uint8)
    is_used = remaining > 0
    is_used[:, :, 0] = True
    return encoded[is_used], is_used.sum(axis=(1, 2))


def _slices(data: bytes, sizes: np.ndarray) -> list[bytes]:
    bounds = [0, *np.cumsum(sizes).tolist()]
    return [data[first:end] for first, end in zip(bounds, bounds[1:])]


def encode_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """Encodes N canonical messages.

    Args:
      features: name -> [N, K] array (K >= 1) of integers or floats.
    Raises: ValueError for an integer that is negative or over `LARGEST_INTEGER`.
    """
    pieces: list[list[bytes]] = []  # each list holds one part of every message
    for name in sorted(features):
        values = features[name]
        kind = _FLOAT_LIST if values.dtype.kind == "f" else _INT64_LIST
        packed, sizes = _pack(values)
        pieces.append([_begin_entry(name, kind, size) for size in sizes.tolist()])
        pieces.append(_slices(packed.tobytes(), sizes))
    contents = list(map(b"".join, zip(*pieces)))
    return [_begin_message(len(content)) + content for content in contents]


# tf.train.Example without bytes lists, which none of our features uses.
_EXAMPLE_PROTO = """
name: "example.proto" package: "bert_tf" syntax: "proto3"
message_type {
  name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
message_type {
  name: "Feature"
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: "Int64List" oneof_index: 0 }
  oneof_decl { name: "kind" }
}
message_type {
  name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: "Features" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: "FeatureEntry" }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: "Feature" }
  }
}
"""


@functools.cache
def _example_class() -> type[Message]:
    # A separate pool, because TensorFlow registers its own tf.train.Example in the default pool.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(_EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bert_tf.Example"))


class ExampleReader:
    """The features of one serialised message, converted on access: ``reader[name]``.

    Attributes:
      names: a schema without sizes, which tells the names of the message's features.

    Raises: DecodeError if it is malformed.
    """

    def __init__(self, data: bytes):
        self._features = _example_class().FromString(data).features.feature
        self.names = RecordSchema(0, 0, has_v2_names=V2_NAMES["input_ids"] in self._features)

    def __getitem__(self, name: str) -> np.ndarray:
        """The values, int64 or float32, [K]; empty for a list of bytes, and if the message lacks the feature."""
        feature = self._features[self.names.stored_name(name)]
        if feature.WhichOneof("kind") == "float_list":
            return np.fromiter(feature.float_list.value, np.float32)
        return np.fromiter(feature.int64_list.value, np.int64)
