"""Joins segments of tokens to rows ``[CLS] A [SEP] B [SEP]``, hundreds at once.

Shape letters: N instances, S sequence, T tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bert_tf.records.pairs import Pairs
from bert_tf.records.schema import InstanceArrays


class MarkerIds(NamedTuple):
    """The ids of the special tokens in a row."""

    pad: int
    cls: int
    sep: int


class Assembler:
    """Joins truncated pairs of the tokens `token_ids` [T] to rows and pads them; does not mask."""

    def __init__(self, token_ids: np.ndarray, max_seq_length: int, ids: MarkerIds):
        self._ids = ids
        # Every S consecutive tokens as a row. A and B are copied with the tokens around them, which are
        # overwritten later: far faster than gathering single tokens.
        self._tokens = token_ids if len(token_ids) >= max_seq_length else np.resize(token_ids, max_seq_length)
        self._windows = np.lib.stride_tricks.sliding_window_view(self._tokens, max_seq_length)

    def _copy_windows(self, starts: np.ndarray) -> np.ndarray:
        """S tokens from each of `starts` on; arbitrary ones where the text has not begun yet or has ended."""
        num_windows, length = self._windows.shape
        found = self._windows[np.clip(starts, 0, num_windows - 1)]
        past = np.flatnonzero((starts < 0) | (starts >= num_windows))
        found[past] = self._tokens.take(starts[past, np.newaxis] + np.arange(length), mode="clip")
        return found

    def assemble(self, pairs: Pairs) -> InstanceArrays:
        num, length = len(pairs.a_start), self._windows.shape[1]
        a_size, lengths = pairs.a_end - pairs.a_start, pairs.lengths
        rows, places = np.arange(num), np.arange(length, dtype=np.int32)
        is_real = places < lengths.astype(np.int32)[:, np.newaxis]
        is_past_a = places > a_size.astype(np.int32)[:, np.newaxis]
        # Shifted so that A begins at place 1, and B after the [SEP] that follows A.
        input_ids = self._copy_windows(pairs.a_start - 1)
        np.copyto(input_ids, self._copy_windows(pairs.b_start - a_size - 2), where=is_past_a)
        np.copyto(input_ids, self._ids.pad, where=~is_real)
        input_ids[:, 0] = self._ids.cls
        input_ids[rows, a_size + 1] = input_ids[rows, lengths - 1] = self._ids.sep
        segment_ids = (is_real & is_past_a).view(np.uint8)
        segment_ids[rows, a_size + 1] = 0
        no_masks = np.zeros([num, 0], np.int32)
        return InstanceArrays(
            input_ids=input_ids,
            input_mask=is_real.view(np.uint8),
            segment_ids=segment_ids,
            masked_lm_positions=no_masks,
            masked_lm_ids=no_masks,
            masked_lm_weights=no_masks.astype(np.float32),
            next_sentence_labels=pairs.is_random_next,
        )
