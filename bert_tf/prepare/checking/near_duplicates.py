"""Finds duplicate and near-duplicate documents among millions, in bounded memory.

Every document becomes a sketch of a few dozen bytes (MinHash; Broder 1997): a window of 16 bytes
starts at each word, and for each of `NUM_HASHES` hash functions the smallest value over all windows
is kept. The probability that two documents agree in such a value is their Jaccard similarity, the
fraction of windows that both have. Only documents that agree in a whole band of values are compared,
which leaves few pairs (locality-sensitive hashing). It works for any language: in scripts without
spaces every character starts a window.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

NUM_HASHES = 36
# Twelve bands: documents with 60 % of their windows in common agree in some band with probability 94 %, those
# with 20 % with probability 9 %; the comparison of all values then rejects the latter.
_BAND_SIZE = 3
# After changing every twentieth word of an article, it has 75 % in common with the original; every tenth, 56 %.
MIN_SIMILARITY = 0.55
_WINDOW_BYTES = 16
_BLOCK_BYTES = 1 << 20
# In UTF-8, bytes from this value on begin a character of three or more bytes, as in scripts without spaces.
_FIRST_LONG_BYTE = 0xE0
_SPACE = ord(" ")
# Between documents, and after the last one.
_FILLER = bytes(_WINDOW_BYTES)
_BLANK_LINES = re.compile(rb"\n\n+")
_NORMAL = bytes(_SPACE if byte in b" \t\r\n" else byte for byte in range(256)).lower()
_DOCUMENTS_AT_ONCE = 1 << 16


class Sketches(NamedTuple):
    """Sketches of D documents, in the order of the text."""

    values: np.ndarray  # uint16 [D, NUM_HASHES], the low bits of the smallest hashes
    contents: np.ndarray  # uint64 [D], a hash of the text regardless of case and white space
    numbers: np.ndarray  # int32 [D], each document's number in its file, from 0

    @property
    def num_documents(self) -> int:
        return len(self.contents)


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in blocks of whole documents."""
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            lines = [block, file.readline()]
            while line := file.readline():
                lines.append(line)
                if line == b"\n":
                    break
            yield b"".join(lines)


def _hash(windows: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row of two uint64, by multiplications and shifts as in MurmurHash3."""
    first, second = windows[:, 0], windows[:, 1]
    hashes = first * np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(32)
    hashes = (hashes + second) * np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ hashes >> np.uint64(32)


def _hash_windows(block: bytes) -> tuple[np.ndarray, np.ndarray]:
    """For each window its hash, uint64 [W], and its document's number in the block, int32 [W]."""
    # Blank lines become fillers, so that windows do not reach into the next document.
    text = _BLANK_LINES.sub(b"\n" + _FILLER, block.replace(b"\0", b" ")).translate(_NORMAL)
    characters = np.frombuffer(text + _FILLER, np.uint8)
    own = characters[: len(text)]
    is_filler = own == 0
    after_space = np.concatenate([[True], (own[:-1] == _SPACE) | is_filler[:-1]])
    starts = np.flatnonzero((own != _SPACE) & ~is_filler & after_space | (own >= _FIRST_LONG_BYTE))
    ends = np.cumsum(is_filler & ~np.concatenate([[False], is_filler[:-1]]), dtype=np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(characters, _WINDOW_BYTES)[starts]
    return _hash(windows.view("<u8")), ends[starts]


def sketch_file(path: str | Path, one_in: int = 1) -> Sketches:
    """Sketches the documents of a sharded text file, which has blank lines between documents.

    With `one_in` k, about every k-th document is kept, chosen by its first MinHash value, so that similar
    documents are mostly kept or left out together.
    """
    generator = np.random.default_rng(0)
    factors = generator.integers(0, 1 << 31, NUM_HASHES, np.uint32) * np.uint32(2) + np.uint32(1)
    offsets = generator.integers(0, 1 << 32, NUM_HASHES, np.uint32)
    all_values, all_sums = [np.zeros([0, NUM_HASHES], np.uint16)], [np.zeros(0, np.uint64)]
    for block in _blocks(Path(path)):
        hashes, documents = _hash_windows(block)
        firsts = np.flatnonzero(np.diff(documents, prepend=-1))
        all_sums.append(np.add.reduceat(hashes, firsts))
        hashes = (hashes >> np.uint64(32)).astype(np.uint32)
        smallest = [np.minimum.reduceat((hashes ^ off) * factor, firsts) for factor, off in zip(factors, offsets)]
        all_values.append(np.stack(smallest, axis=1).astype(np.uint16))
    values, sums = np.concatenate(all_values), np.concatenate(all_sums)
    numbers = np.flatnonzero(values[:, 0] % one_in == 0).astype(np.int32)
    return Sketches(values[numbers], sums[numbers], numbers)


def read_document(path: str | Path, number: int, num_characters: int) -> str:
    """The beginning of a document of a sharded text file."""
    documents = (text for block in _blocks(Path(path)) for text in _BLANK_LINES.split(block) if text.strip())
    text = next(itertools.islice(documents, number, None)).decode("utf-8", "replace")
    return text.replace("\n", " ")[:num_characters].strip()


class Matches(NamedTuple):
    """For each of D documents the most similar earlier one."""

    partner: np.ndarray  # int32 [D]; the document itself if no earlier one is similar
    similarity: np.ndarray  # float32 [D]; 1 for the same text, 0 if no earlier one is similar


def _group(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The documents ordered by key, int32 [D]; whether each is the first with its key; that first one's position."""
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    del keys
    first = np.arange(len(order), dtype=np.int32)
    first[~is_first] = 0
    return order, is_first, np.maximum.accumulate(first, out=first)


def _candidates(values: np.ndarray, band: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(earlier, later) documents that agree in a whole band.

    Of all documents that agree, each is paired only with the one before it and with the first, so that a
    thousand similar documents do not give a million pairs.
    """
    keys = np.zeros(len(values), np.uint64)
    for column in range(band * _BAND_SIZE, (band + 1) * _BAND_SIZE):
        keys <<= np.uint64(16)
        keys |= values[:, column]
    order, is_first, first = _group(keys)
    del keys
    for start in range(0, len(values), _DOCUMENTS_AT_ONCE):
        places = start + np.flatnonzero(~is_first[start : start + _DOCUMENTS_AT_ONCE])
        later = order[places]
        for earlier in (order[places - 1], order[first[places]]):
            yield earlier, later


def find_matches(sketches: Sketches) -> Matches:
    """The documents that equal an earlier one, or have at least `MIN_SIMILARITY` of their windows in common with it."""
    num = sketches.num_documents
    partner, similarity = np.arange(num, dtype=np.int32), np.zeros(num, np.float32)
    for band in range(NUM_HASHES // _BAND_SIZE):
        for earlier, later in _candidates(sketches.values, band):
            agreeing = (sketches.values[earlier] == sketches.values[later]).mean(1, dtype=np.float32)
            # Documents with the same sketch may still differ in their text, so similarity stays below 1 here.
            agreeing = np.minimum(agreeing, np.float32(1 - 1 / NUM_HASHES))
            better = np.flatnonzero((agreeing >= MIN_SIMILARITY) & (agreeing > similarity[later]))
            partner[later[better]], similarity[later[better]] = earlier[better], agreeing[better]
    order, is_first, first = _group(sketches.contents)
    same = order[~is_first]
    partner[same], similarity[same] = order[first[~is_first]], 1
    return Matches(partner, similarity)
