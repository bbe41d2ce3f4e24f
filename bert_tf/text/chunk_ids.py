"""Chunks of text to ids in compiled code, `chunk_ids.cpp`.

The compiled code cuts the text and remembers chunks; it asks for the kind of each character and for the
ids of each chunk when they first occur, so that all rules stay in Python. Without it (`base.compiled`), ids are the
same and take several times as long.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert_tf.text.vocabulary import TokenizedLines

SOURCE = Path(__file__).with_suffix(".cpp")
# What a character does: it is part of a chunk, stands between chunks, is a chunk of its own, or ends a line.
PART, SPACE, ALONE, LINE_END = range(1, 5)
_NEW_CHARACTER = 1  # the answer where a character is new; 2: a chunk is; 0: the text has ended
# In words of 4 bytes: an entry of English text has 5.
_ENTRY_SIZE, _LONGEST_ENTRY = 8, 96


class _Scan(ctypes.Structure):
    """`Scan` in chunk_ids.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("text", "ids", "line_ends", "kinds", "slots", "entries")),
        *((name, ctypes.c_int64) for name in ("size", "num_slots", "entries_size")),
        *((name, ctypes.c_int64) for name in ("start", "stop", "num_ids", "num_lines", "new_character")),
    ]


class ChunkTable:
    """The ids of up to `max_chunks` known chunks, in up to 40 bytes for each; a full table is emptied."""

    def __init__(self, scan_chunks: Callable, compute_ids: Callable, kind_of: Callable, max_chunks: int):
        """`compute_ids(chunk)` gives at most as many ids as the chunk has bytes; `kind_of`: see `tokenize_lines`."""
        self._scan_chunks, self._compute_ids, self._kind_of = scan_chunks, compute_ids, kind_of
        # Zeros take no memory until they are written to.
        self._kinds = np.zeros((2, sys.maxunicode + 1), np.uint8)
        self._slots = np.zeros(1 << max_chunks.bit_length(), np.uint32)
        self._entries = np.zeros(max(_ENTRY_SIZE * max_chunks, _LONGEST_ENTRY), np.uint32)
        self._entries[0] = 2

    def tokenize_lines(self, lines: bytes, cuts_at_punctuation: bool) -> TokenizedLines:
        """See `TokenIds.tokenize_lines`; a character does ``kind_of(character, cuts_at_punctuation)``."""
        lines.decode("utf-8", "surrogatepass")  # the compiled code relies on it
        kinds, ids = self._kinds[int(cuts_at_punctuation)], np.empty(len(lines), np.int32)
        line_ends = np.empty(lines.count(b"\n"), np.int64)
        arrays = (np.frombuffer(lines, np.uint8), ids, line_ends, kinds, self._slots, self._entries)
        scan = _Scan(*(array.ctypes.data for array in arrays), len(lines), len(self._slots), len(self._entries))
        num_new_ids = -1
        while answer := self._scan_chunks(ctypes.byref(scan), num_new_ids):
            if answer == _NEW_CHARACTER:
                kinds[scan.new_character] = self._kind_of(chr(scan.new_character), cuts_at_punctuation)
                num_new_ids = -1
            else:
                found = self._compute_ids(lines[scan.start : scan.stop])
                num_new_ids = len(found)
                assert num_new_ids <= scan.stop - scan.start
                ids[scan.num_ids : scan.num_ids + num_new_ids] = found
        return TokenizedLines(ids[: scan.num_ids].copy(), np.diff(line_ends, prepend=0))
