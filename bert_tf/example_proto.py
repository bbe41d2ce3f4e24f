"""`tf.train.Example` messages without TensorFlow or a protobuf library.

The message is ``Example{features: Features{feature: map<name, Feature>}}``, a Feature being a list
of int64 or of float. Written: many messages at once, in the canonical form (names rising, lists
packed), which is what ``SerializeToString(deterministic=True)`` gives. Read: any order, packed or
not, unknown fields skipped, as the encoding's specification asks of a reader.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Keys of the wire format: field number << 3 | wire type; type 2 is a length and so many bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXAMPLE_FEATURES = _FEATURES_FEATURE = _ENTRY_NAME = 1 << 3 | _BYTES
_ENTRY_FEATURE = 2 << 3 | _BYTES
_FLOAT_LIST, _INT64_LIST = 2 << 3 | _BYTES, 3 << 3 | _BYTES
_LIST_PACKED = 1 << 3 | _BYTES
_PAYLOAD_BITS = 7
_MORE = 0x80


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected type."""


class ByteColumns(NamedTuple):
    """N byte strings of different lengths as a matrix with the unused places marked."""

    bytes: np.ndarray  # uint8 [N, W]
    used: np.ndarray  # bool [N, W]
    sizes: np.ndarray  # int64 [N]

    def flatten(self) -> np.ndarray:
        """All strings back to back, uint8 [sizes.sum()]."""
        return self.bytes[self.used]


def fixed_bytes(matrix: np.ndarray) -> ByteColumns:
    """N strings of the same length, uint8 [N, W]."""
    num, width = matrix.shape
    return ByteColumns(
        matrix, np.broadcast_to(np.True_, matrix.shape), np.full(num, width, np.int64)
    )


def joined(parts: Sequence[ByteColumns]) -> ByteColumns:
    """Row-wise concatenation."""
    return ByteColumns(
        np.concatenate([part.bytes for part in parts], axis=1),
        np.concatenate([part.used for part in parts], axis=1),
        np.sum([part.sizes for part in parts], axis=0, dtype=np.int64),
    )


def varints(values: np.ndarray) -> ByteColumns:
    """Each row's integers [N, K] as varints: 7 bits a byte, low first, the high bit says "more".

    Raises: ValueError for a negative integer.
    """
    num, count = values.shape
    largest = int(values.max(initial=0))
    if values.min(initial=0) < 0:
        raise ValueError(f"{int(values.min())} is negative; only integers from 0 on are written")
    width = max(1, -(-largest.bit_length() // _PAYLOAD_BITS))
    if width == 1:
        return fixed_bytes(values.astype(np.uint8))
    rest = values.astype(np.int32 if largest < 1 << 31 else np.int64)
    encoded = np.empty([num, count, width], np.uint8)
    used = np.empty([num, count, width], bool)
    used[:, :, 0] = True
    for place in range(width):
        encoded[:, :, place] = rest & (_MORE - 1)
        rest = rest >> _PAYLOAD_BITS
        if place + 1 < width:
            more = np.not_equal(rest, 0, out=used[:, :, place + 1])
            encoded[:, :, place] |= more.view(np.uint8) << _PAYLOAD_BITS
    used = used.reshape(num, count * width)
    return ByteColumns(
        encoded.reshape(num, count * width), used, np.count_nonzero(used, axis=1).astype(np.int64)
    )


def _constant(data: bytes, num: int) -> ByteColumns:
    row = np.frombuffer(data, np.uint8)
    return fixed_bytes(np.broadcast_to(row, [num, len(row)]))


class _Message:
    """Byte strings that grow at the front: a length can be written once its contents are known."""

    def __init__(self, contents: ByteColumns):
        self.parts = [contents]
        self.sizes = contents.sizes

    def put_before(self, part: ByteColumns) -> None:
        self.parts.insert(0, part)
        self.sizes = self.sizes + part.sizes

    def enclose(self, key: int) -> None:
        """Makes it the field `key` of an outer message: key, length, contents."""
        self.put_before(varints(self.sizes[:, np.newaxis]))
        self.put_before(_constant(bytes([key]), len(self.sizes)))


def _map_entry(name: str, values: np.ndarray) -> _Message:
    """One feature as an entry of the map: its name and its list."""
    num = len(values)
    if values.dtype.kind == "f":
        rows = np.ascontiguousarray(values, "<f4")
        message, kind = _Message(fixed_bytes(rows.view(np.uint8).reshape(num, -1))), _FLOAT_LIST
    else:
        message, kind = _Message(varints(values)), _INT64_LIST
    for key in (_LIST_PACKED, kind, _ENTRY_FEATURE):
        message.enclose(key)
    encoded = name.encode()
    message.put_before(_constant(bytes([_ENTRY_NAME, len(encoded)]) + encoded, num))
    message.enclose(_FEATURES_FEATURE)
    return message


def encode_examples(features: Mapping[str, np.ndarray]) -> ByteColumns:
    """N canonical messages.

    Args:
      features: by name (of at most 127 bytes), [N, K] arrays of integers from 0 on or of floats;
        every K at least 1.
    Raises: ValueError for a negative integer.
    """
    entries = [_map_entry(name, features[name]) for name in sorted(features)]
    message = _Message(ByteColumns(
        *joined([part for entry in entries for part in entry.parts])
    ))
    message.enclose(_EXAMPLE_FEATURES)
    return joined(message.parts)


def _read_varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """(value, place after it)."""
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return value, place
        shift += _PAYLOAD_BITS
    raise MalformedMessage(f"an integer is cut off or too long before byte {place}")


def _fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(key, first byte, end) of every field of the message in data[place:end]."""
    while place < end:
        key, place = _read_varint(data, place, end)
        kind = key & 7
        first = place
        if kind == _BYTES:
            length, first = _read_varint(data, place, end)
            place = first + length
        elif kind == _VARINT:
            _, place = _read_varint(data, place, end)
        elif kind == _FIXED32:
            place += 4
        elif kind == _FIXED64:
            place += 8
        else:
            raise MalformedMessage(f"unknown wire type {kind} before byte {place}")
        if place > end:
            raise MalformedMessage(f"a field ends at byte {place}, its message at byte {end}")
        yield key, first, place


def _decode_varints(data: bytes) -> np.ndarray:
    """Packed varints as int64, wrapped to 64 bits."""
    encoded = np.frombuffer(data, np.uint8)
    is_last = encoded < _MORE
    if is_last.all():
        return encoded.astype(np.int64)
    if not is_last[-1]:
        raise MalformedMessage("a packed list is cut off")
    starts = np.flatnonzero(np.concatenate([[True], is_last[:-1]]))
    sizes = np.diff(np.append(starts, len(encoded)))
    places = np.arange(len(encoded)) - np.repeat(starts, sizes)
    bits = (encoded & (_MORE - 1)).astype(np.uint64) << (places * _PAYLOAD_BITS).astype(np.uint64)
    return np.add.reduceat(bits, starts).view(np.int64)


class ExampleReader:
    """The features of one serialised message, decoded when asked for: ``reader[name]``.

    Raises: MalformedMessage; KeyError for a name that is not there.
    """

    def __init__(self, data: bytes):
        self._data = data
        self._spans: dict[str, tuple[int, int]] = {}
        for key, first, end in _fields(data, 0, len(data)):
            if key == _EXAMPLE_FEATURES:
                for inner_key, inner_first, inner_end in _fields(data, first, end):
                    if inner_key == _FEATURES_FEATURE:
                        self._add_entry(inner_first, inner_end)

    @property
    def names(self) -> list[str]:
        return list(self._spans)

    def __getitem__(self, name: str) -> np.ndarray:
        """The values, int64 or float32, [K]; bytes lists are not read: none of ours has any."""
        first, end = self._spans[name]
        lists = [np.zeros(0, np.int64)]
        for key, list_first, list_end in _fields(self._data, first, end):
            if key in (_INT64_LIST, _FLOAT_LIST):
                # A oneof: the last one counts.
                lists = [np.zeros(0, np.int64 if key == _INT64_LIST else np.float32)]
                for _, value_first, value_end in _fields(self._data, list_first, list_end):
                    values = self._data[value_first:value_end]
                    # One value without packing has the same bytes as a packed list of one.
                    lists.append(
                        _decode_varints(values) if key == _INT64_LIST
                        else np.frombuffer(values, "<f4")
                    )
        return np.concatenate(lists)

    def _add_entry(self, first: int, end: int) -> None:
        name, span = "", (end, end)
        for key, field_first, field_end in _fields(self._data, first, end):
            if key == _ENTRY_NAME:
                name = self._data[field_first:field_end].decode("utf-8", "replace")
            elif key == _ENTRY_FEATURE:
                span = (field_first, field_end)
        self._spans[name] = span
