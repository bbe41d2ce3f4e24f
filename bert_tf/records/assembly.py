"""Joins segments of tokens into rows ``[CLS] A [SEP] B [SEP]``, hundreds at once.

Shape letters: N instances, S sequence, T tokens.
"""

from __future__ import annotations

import numpy as np

from bert_tf.records.pairs import Pairs


def assemble(
    tokens: np.ndarray, pairs: Pairs, max_seq_length: int, *, pad: int, cls: int, sep: int
) -> dict[str, np.ndarray]:
    """Joins truncated pairs of the `tokens` [T] into rows and pads them; does not mask.

    Args:
      pad, cls, sep: ids of the special tokens.
    Returns: input_ids, input_mask (1 for real tokens, then 0) and segment_ids, integers [N, S].
    """
    rows, positions = np.arange(len(pairs.a_start)), np.arange(max_seq_length, dtype=np.int32)
    a_size, lengths = pairs.a_end - pairs.a_start, pairs.lengths
    is_real = positions < lengths.astype(np.int32)[:, np.newaxis]
    is_past_a = positions > a_size.astype(np.int32)[:, np.newaxis]
    # Windows are shifted so that A begins at place 1, and B after the [SEP] that follows A.
    input_ids = _windows(tokens, pairs.a_start - 1, max_seq_length)
    np.copyto(input_ids, _windows(tokens, pairs.b_start - a_size - 2, max_seq_length), where=is_past_a)
    np.copyto(input_ids, pad, where=~is_real)
    input_ids[:, 0] = cls
    input_ids[rows, a_size + 1] = input_ids[rows, lengths - 1] = sep
    segment_ids = (is_real & is_past_a).view(np.uint8)
    segment_ids[rows, a_size + 1] = 0
    return {"input_ids": input_ids, "input_mask": is_real.view(np.uint8), "segment_ids": segment_ids}


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """`length` tokens from each of `starts` on; arbitrary tokens before the text begins and after it ends.

    A and B are copied with the tokens around them, which are overwritten later: far faster than token by token.
    """
    if len(tokens) < length:
        tokens = np.resize(tokens, length)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    copied = windows[np.clip(starts, 0, len(windows) - 1)]
    past = np.flatnonzero((starts < 0) | (starts >= len(windows)))
    copied[past] = tokens.take(starts[past, np.newaxis] + np.arange(length), mode="clip")
    return copied
