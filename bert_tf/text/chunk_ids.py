"""Chunks of text to ids in compiled code, `chunk_ids.cpp`.

The compiled code splits the text and caches chunks. It asks for the kind of each character and for the ids of each
chunk when they first occur, so that the rules stay in Python, except for chunks that are a single ASCII word, which
it matches with the vocabulary itself. Without it (`base.compiled`), the ids are the same but take several times as
long.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bert_tf.text.basic_tokenizer import Casing, split_at_punctuation, split_words
from bert_tf.text.vocabulary import UNKNOWN_TOKEN, TokenizedLines

SOURCE = Path(__file__).with_suffix(".cpp")
# What a character does: it is part of a chunk, separates chunks, is a chunk by itself, or ends a line.
_PART, _SPACE, _ALONE, _LINE_END = range(1, 5)
_CAPITAL_SIGMA = "\u03a3".encode()
_NEW_CHARACTER = 1  # what scan_chunks returns at a new character; 2: at a new chunk; 0: at the end of the text
# In 4-byte words: room for each of the `max_chunks` entries (one of English text takes 5), and for the largest.
_ENTRY_SIZE, _LONGEST_ENTRY = 8, 96
_LONGEST_PIECE = 66  # bytes of the longest piece that the compiled code stores, including ##


class _Table(ctypes.Structure):
    """The struct `Table` in chunk_ids.cpp."""

    _fields_ = [("slots", ctypes.c_void_p), ("entries", ctypes.c_void_p)]
    _fields_ += [("num_slots", ctypes.c_int64), ("entries_size", ctypes.c_int64)]

    @classmethod
    def empty(cls, max_entries: int, entries_size: int) -> _Table:
        # Zeros take no memory until they are written to.
        slots = np.zeros(2 << max_entries.bit_length(), np.uint32)
        entries = np.zeros(entries_size, np.uint32)
        entries[0] = 2
        table = cls(slots.ctypes.data, entries.ctypes.data, len(slots), len(entries))
        table.arrays = slots, entries  # keeps them alive as long as the table
        return table


class _Scan(ctypes.Structure):
    """The struct `Scan` in chunk_ids.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("text", "ids", "line_ends", "kinds", "word_bytes")),
        *((name, ctypes.POINTER(_Table)) for name in ("pieces", "chunks")),
        *((name, ctypes.c_int64) for name in ("unknown", "size")),
        *((name, ctypes.c_int64) for name in ("start", "stop", "num_ids", "num_lines", "new_character")),
    ]


class ChunkTable:
    """The ids of up to `max_chunks` known chunks, in up to 40 bytes each; a full table is emptied."""

    def __init__(
        self,
        code: ctypes.CDLL,
        vocab: Mapping[str, int],
        casing: Casing,
        *,
        compute_ids: Callable[[bytes], Sequence[int]],
        max_chunks: int,
    ):
        """
        Args:
          code: the compiled chunk_ids.cpp.
          compute_ids: gives at most as many ids as the chunk has bytes.
        """
        self._code, self._casing, self._compute_ids = code, casing, compute_ids
        self._kinds = np.zeros((2, sys.maxunicode + 1), np.uint8)
        # What each of the 256 bytes becomes in a word; 0 if it cannot be in one that the compiled code handles itself.
        in_words = (casing.apply(char) if char.isalnum() else "\0" for char in map(chr, range(128)))
        self._word_bytes = np.frombuffer("".join(in_words).encode().ljust(256, b"\0"), np.uint8)
        self._unknown = vocab[UNKNOWN_TOKEN]
        self._chunks = _Table.empty(max_chunks // 2, max(_ENTRY_SIZE * max_chunks, _LONGEST_ENTRY))
        encoded = ((piece.encode(), token_id) for piece, token_id in vocab.items())
        pieces = {piece: token_id for piece, token_id in encoded if len(piece) <= _LONGEST_PIECE}
        content, ids = np.frombuffer(b"".join(pieces), np.uint8), np.array(list(pieces.values()), np.int32)
        ends = np.cumsum(list(map(len, pieces)), dtype=np.int64)
        self._pieces = _Table.empty(len(pieces), 2 + 3 * len(pieces) + len(content) // 4)
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (content, ends, ids))
        code.learn_pieces(ctypes.byref(self._pieces), *pointers, len(pieces))

    def _kind_of(self, char: str, cuts_at_punctuation: bool) -> int:
        """What the character does to a chunk, determined by applying the rules to it between two letters."""
        if char == "\n":
            return _LINE_END
        words = split_words(f"a{char}b")
        if len(words) == 1 and cuts_at_punctuation:
            words = split_at_punctuation(words[0], self._casing)
        if words[0] != "a" or words[-1] != "b":
            return _PART
        return {2: _SPACE, 3: _ALONE}.get(len(words), _PART)

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """See `Tokenizer.tokenize_lines`."""
        # Splitting also at punctuation gives fewer different chunks, and the same ids, with one exception:
        # `str.lower` looks past a full stop to see whether a capital sigma ends a word.
        cuts_at_punctuation = _CAPITAL_SIGMA not in lines
        lines.decode("utf-8", "surrogatepass")  # raises if invalid; the compiled code relies on valid text
        kinds, ids = self._kinds[int(cuts_at_punctuation)], np.empty(len(lines), np.int32)
        line_ends = np.empty(lines.count(b"\n"), np.int64)
        arrays = (np.frombuffer(lines, np.uint8), ids, line_ends, kinds, self._word_bytes)
        tables = ctypes.pointer(self._pieces), ctypes.pointer(self._chunks)
        scan = _Scan(*(array.ctypes.data for array in arrays), *tables, self._unknown, len(lines))
        num_new_ids = -1
        while answer := self._code.scan_chunks(ctypes.byref(scan), num_new_ids):
            if answer == _NEW_CHARACTER:
                kinds[scan.new_character] = self._kind_of(chr(scan.new_character), cuts_at_punctuation)
                num_new_ids = -1
            else:
                new_ids = self._compute_ids(lines[scan.start : scan.stop])
                num_new_ids = len(new_ids)
                assert num_new_ids <= scan.stop - scan.start
                ids[scan.num_ids : scan.num_ids + num_new_ids] = new_ids
        return TokenizedLines(ids[: scan.num_ids].copy(), np.diff(line_ends, prepend=0))
