"""Finds duplicate and near-duplicate documents among millions, in bounded memory.

Every document becomes a sketch of a few dozen bytes (MinHash; Broder 1997): a window of 16 bytes
starts at each word, and for each of `NUM_HASHES` hash functions the smallest value over all windows
is kept. The probability that two documents agree in such a value is their Jaccard similarity, the
fraction of windows that both have. Only documents that agree in a whole band of values are compared,
which leaves few pairs (locality-sensitive hashing). It works for any language: in scripts without
spaces every character starts a window.
"""

from __future__ import annotations

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
# In UTF-8 bytes from here on begin a character of three bytes or more, as those of scripts without spaces.
_FIRST_LONG_BYTE = 0xE0
_SPACE = ord(" ")
# Pads windows at a document's end, so that they do not reach into the next document.
_FILLER = bytes(_WINDOW_BYTES)
_BLANK_LINES = re.compile(rb"\n\n+")
_WHITE_SPACE = b" \t\r\n"
_NORMAL = bytes(_SPACE if byte in _WHITE_SPACE else byte for byte in range(256)).lower()
_DOCUMENTS_AT_ONCE = 1 << 16


class Sketches(NamedTuple):
    """Sketches of D documents, in the order of the text."""

    values: np.ndarray  # uint16 [D, NUM_HASHES], the low bits of the smallest hashes
    contents: np.ndarray  # uint64 [D], a hash of the text regardless of case and white space
    numbers: np.ndarray  # int32 [D], each document's number in its file, from 0

    @property
    def num_documents(self) -> int:
        return len(self.contents)


class _Block(NamedTuple):
    """A piece of a file, which ends before a line end or, within a long line, at a space."""

    text: bytes
    following: bytes  # enough for the windows that start in `text`
    is_word_start: bool


def _blocks(path: Path) -> Iterator[_Block]:
    text, is_word_start = b"", True
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            text += block
            last = len(text) - 2 * _WINDOW_BYTES
            end = max(text.rfind(b"\n", 0, last), 0)
            # Consecutive line ends must not be split between blocks.
            while end and text[end - 1 : end] == b"\n":
                end -= 1
            end = end or max(text.rfind(b" ", 0, last), 0) or max(last, 0)
            if end:
                yield _Block(text[:end], text[end : end + 2 * _WINDOW_BYTES], is_word_start)
                is_word_start = text[end - 1] in _WHITE_SPACE
                text = text[end:]
    if text:
        yield _Block(text, b"", is_word_start)


def _without_blank_lines(text: bytes) -> bytes:
    return _BLANK_LINES.sub(b"\n" + _FILLER, text.replace(b"\0", b" ")).translate(_NORMAL)


def _hash(windows: np.ndarray) -> np.ndarray:
    """A 64-bit hash of each row of two uint64, by multiplications and shifts as in MurmurHash3."""
    first, second = windows[:, 0], windows[:, 1]
    hashes = first * np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(32)
    hashes = (hashes + second) * np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(29)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    return hashes ^ hashes >> np.uint64(32)


class _Windows(NamedTuple):
    hashes: np.ndarray  # uint64 [W], of the windows that start in a block
    documents: np.ndarray  # int64 [W], number of documents of the block that end before each
    num_ended: int


def _hash_windows(block: _Block) -> _Windows:
    normal = _without_blank_lines(block.text)
    padded = normal + _without_blank_lines(block.following)[:_WINDOW_BYTES] + _FILLER
    characters = np.frombuffer(padded, np.uint8)
    own = characters[: len(normal)]
    is_filler = own == 0
    is_space = (own == _SPACE) | is_filler
    after_space = np.concatenate([[block.is_word_start], is_space[:-1]])
    starts = np.flatnonzero(~is_space & after_space | (own >= _FIRST_LONG_BYTE))
    windows = np.lib.stride_tricks.sliding_window_view(characters, _WINDOW_BYTES)[starts]
    ends = np.cumsum(is_filler & np.concatenate([[True], ~is_filler[:-1]]))
    return _Windows(_hash(windows.view("<u8")), ends[starts], int(ends[-1]))


def sketch_file(path: str | Path, one_in: int = 1) -> Sketches:
    """Sketches the documents of a sharded text file, which has blank lines between documents.

    With `one_in` k, about every k-th document is kept, chosen by its first MinHash value, so that similar
    documents are mostly kept or left out together.
    """
    generator = np.random.default_rng(0)
    factors = generator.integers(0, 1 << 31, NUM_HASHES, np.uint32) * np.uint32(2) + np.uint32(1)
    offsets = generator.integers(0, 1 << 32, NUM_HASHES, np.uint32)
    # Values of finished documents; the last document of a block may continue in the next one.
    all_values, all_sums = [np.zeros([0, NUM_HASHES], np.uint16)], [np.zeros(0, np.uint64)]
    last_values, last_sum = np.zeros([0, NUM_HASHES], np.uint32), np.zeros(0, np.uint64)
    num_ended, last_document = 0, -1
    for block in _blocks(Path(path)):
        windows = _hash_windows(block)
        documents = windows.documents + num_ended
        num_ended += windows.num_ended
        if not len(documents):
            continue
        firsts = np.flatnonzero(np.diff(documents, prepend=-1))
        short = (windows.hashes >> np.uint64(32)).astype(np.uint32)
        values = np.stack(
            [np.minimum.reduceat((short ^ offset) * factor, firsts) for factor, offset in zip(factors, offsets)], axis=1
        )
        sums = np.add.reduceat(windows.hashes, firsts)
        if documents[0] == last_document:
            values[0] = np.minimum(values[0], last_values[0])
            sums[:1] += last_sum
        else:
            values, sums = np.concatenate([last_values, values]), np.concatenate([last_sum, sums])
        all_values.append(values[:-1].astype(np.uint16))
        all_sums.append(sums[:-1])
        last_values, last_sum, last_document = values[-1:], sums[-1:], documents[-1]
    values = np.concatenate([*all_values, last_values.astype(np.uint16)])
    sums = np.concatenate([*all_sums, last_sum])
    numbers = np.flatnonzero(values[:, 0] % one_in == 0).astype(np.int32)
    return Sketches(values[numbers], sums[numbers], numbers)


def read_document(path: str | Path, number: int, num_characters: int) -> str:
    """The beginning of a document of a sharded text file."""
    found, text = -1, ""
    was_blank = True
    with open(path, encoding="utf-8", errors="replace", newline="\n") as lines:
        for line in lines:
            is_blank = line == "\n"
            found += was_blank and not is_blank
            was_blank = is_blank
            if found == number and not is_blank:
                text += line.replace("\n", " ")
            if found > number or len(text) >= num_characters:
                break
    return text[:num_characters].strip()


class Matches(NamedTuple):
    """For each of D documents the most similar earlier one."""

    partner: np.ndarray  # int32 [D]; the document itself if no earlier one is similar
    similarity: np.ndarray  # float32 [D]; 1 for the same text, 0 if no earlier one is similar


def _candidates(values: np.ndarray, band: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(earlier, later) documents that agree in a whole band.

    Of all documents that agree, each is paired only with the one before it and with the first, so that a
    thousand similar documents do not give a million pairs.
    """
    keys = np.zeros(len(values), np.uint64)
    for column in range(band * _BAND_SIZE, (band + 1) * _BAND_SIZE):
        keys <<= np.uint64(16)
        keys |= values[:, column]
    order = np.argsort(keys, kind="stable").astype(np.int32)
    is_first = np.ones(len(values), bool)
    keys = keys[order]
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    del keys
    first = np.arange(len(values), dtype=np.int32)
    first[~is_first] = 0
    np.maximum.accumulate(first, out=first)
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
    order = np.argsort(sketches.contents, kind="stable").astype(np.int32)
    contents = sketches.contents[order]
    is_first = np.ones(num, bool)
    np.not_equal(contents[1:], contents[:-1], out=is_first[1:])
    first = np.maximum.accumulate(np.where(is_first, np.arange(num), 0))
    same = order[~is_first]
    partner[same], similarity[same] = order[first[~is_first]], 1
    return Matches(partner, similarity)
