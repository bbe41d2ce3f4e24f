"""`tf.train.Example` messages without TensorFlow or a protobuf library.

The message is ``Example{features: Features{feature: map<name, Feature>}}``, a Feature being a list
of int64 or of float. Written: many messages at once, in the canonical form (names rising, lists
packed), which is what ``SerializeToString(deterministic=True)`` gives. Read: any order, packed or
not, unknown fields skipped, as the encoding's specification asks of a reader.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

# Keys of the wire format: field number << 3 | wire type; type 2 is a length and so many bytes.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EXAMPLE_FEATURES = _FEATURES_FEATURE = _ENTRY_NAME = 1 << 3 | _BYTES
_ENTRY_FEATURE = 2 << 3 | _BYTES
_FLOAT_LIST, _INT64_LIST = 2 << 3 | _BYTES, 3 << 3 | _BYTES
_LIST_PACKED = 1 << 3 | _BYTES
_PAYLOAD_BITS = 7
_LONGEST_VARINT = 10
# Keeps the tables of varints small (24 MB for the largest); vocabularies are far smaller.
LARGEST_INTEGER = (1 << 20) - 1
_MORE = 0x80


class MalformedMessage(ValueError):
    """The bytes are not a message of the expected type."""


def _varint(value: int) -> bytes:
    """7 bits a byte, low first; the high bit says that more follow."""
    encoded = bytearray()
    while value >= _MORE:
        encoded.append(value & (_MORE - 1) | _MORE)
        value >>= _PAYLOAD_BITS
    encoded.append(value)
    return bytes(encoded)


def _begin(key: int, contents: bytes, num_bytes: int) -> bytes:
    """The start of a field: its key, its length, `contents`; `num_bytes` more are to follow."""
    return bytes([key]) + _varint(len(contents) + num_bytes) + contents


@functools.cache
def _begin_message(num_bytes: int) -> bytes:
    """A message up to its `num_bytes` of entries."""
    return _begin(_EXAMPLE_FEATURES, b"", num_bytes)


@functools.cache
def _begin_entry(name: str, kind: int, num_bytes: int) -> bytes:
    """An entry of the map up to its packed list of `num_bytes`."""
    packed = _begin(_LIST_PACKED, b"", num_bytes)
    feature = _begin(_ENTRY_FEATURE, _begin(kind, packed, num_bytes), num_bytes)
    return _begin(_FEATURES_FEATURE, _begin(_ENTRY_NAME, name.encode(), 0) + feature, num_bytes)


@functools.cache
def _varint_tables(num_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """For every integer of so many bits: its varint in 4 bytes, and which of them are used.

    Returns: uint32 whose bytes are the varint's, uint32 whose bytes are 1 where used.
    """
    rest = np.arange(1 << num_bits)[:, np.newaxis] >> _PAYLOAD_BITS * np.arange(4)
    encoded = (rest & (_MORE - 1) | (rest >= _MORE) * _MORE).astype(np.uint8)
    used = rest > 0
    used[:, 0] = True
    return encoded.view(np.uint32)[:, 0], used.view(np.uint32)[:, 0]


def _pack(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row of [N, K] as the bytes of a packed list.

    Returns: all bytes, uint8; how many belong to each row, int64 [N].
    """
    num, count = values.shape
    if values.dtype.kind == "f":
        return values.astype("<f4").reshape(-1).view(np.uint8), np.full(num, 4 * count)
    largest = int(values.max(initial=0))
    if values.min(initial=0) < 0 or largest > LARGEST_INTEGER:
        raise ValueError(f"integers from 0 to {LARGEST_INTEGER} are written, not {values.min()} to {largest}")
    if largest < _MORE:
        return values.astype(np.uint8).reshape(-1), np.full(num, count)
    encoded, used = _varint_tables(largest.bit_length())
    numbers = values.astype(np.intp)
    # All are in range; without "clip" NumPy checks once more. Gathering by number is faster
    # than by mask.
    is_used = used.take(numbers, mode="clip").view(bool)
    padded = encoded.take(numbers, mode="clip").view(np.uint8)
    places = np.flatnonzero(is_used)
    ends = np.searchsorted(places, np.arange(num + 1) * is_used.shape[1])
    return padded.take(places, mode="clip"), np.diff(ends)


def _slices(data: bytes, sizes: np.ndarray) -> list[bytes]:
    places = [0, *np.cumsum(sizes).tolist()]
    return [data[first:end] for first, end in zip(places, places[1:])]


def encode_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """N canonical messages.

    Args:
      features: by name, [N, K] arrays (K at least 1) of integers or of floats.
    Raises: ValueError for an integer that is negative or over `LARGEST_INTEGER`.
    """
    # Of each message some pieces; neighbouring entries of a size that all messages share are one piece.
    pieces: list[Iterable[bytes]] = []
    alike: list[np.ndarray] = []
    for name in sorted(features):
        values = features[name]
        kind = _FLOAT_LIST if values.dtype.kind == "f" else _INT64_LIST
        packed, sizes = _pack(values)
        different = np.flatnonzero(np.bincount(sizes)).tolist()
        begin = {size: _begin_entry(name, kind, size) for size in different}
        if len(different) == 1:
            alike += [
                np.frombuffer(begin[different[0]] * len(sizes), np.uint8).reshape(len(sizes), -1),
                packed.reshape(len(sizes), -1),
            ]
        else:
            pieces += [_rows(alike), map(begin.__getitem__, sizes.tolist()), _slices(packed.tobytes(), sizes)]
            alike = []
    pieces.append(_rows(alike))
    contents = list(map(b"".join, zip(*filter(None, pieces))))
    return [_begin_message(len(content)) + content for content in contents]


def _rows(columns: Sequence[np.ndarray]) -> list[bytes]:
    """Matrices of bytes side by side, as a piece a row."""
    if not columns:
        return []
    matrix = np.concatenate(columns, axis=1)
    return _slices(matrix.tobytes(), np.full(len(matrix), matrix.shape[1]))


def _read_varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """(value, place after it)."""
    value = shift = 0
    while place < end and shift < _LONGEST_VARINT * _PAYLOAD_BITS:
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
    starts = np.flatnonzero(np.concatenate([[True], is_last[:-1]]))
    sizes = np.diff(np.append(starts, len(encoded)))
    if not is_last[-1] or sizes.max() > _LONGEST_VARINT:
        raise MalformedMessage("an integer of a packed list is cut off or too long")
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
                    lists.append(_decode_varints(values) if key == _INT64_LIST else np.frombuffer(values, "<f4"))
        return np.concatenate(lists)

    def _add_entry(self, first: int, end: int) -> None:
        name, span = "", (end, end)
        for key, field_first, field_end in _fields(self._data, first, end):
            if key == _ENTRY_NAME:
                name = self._data[field_first:field_end].decode("utf-8", "replace")
            elif key == _ENTRY_FEATURE:
                span = (field_first, field_end)
        self._spans[name] = span
