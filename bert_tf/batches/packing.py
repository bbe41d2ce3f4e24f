"""Packing: puts the instances of an update into fewer rows (Krell et al., arXiv 2107.02027).

With short texts much of a row is padding, which costs as much computation as tokens do. Here up to
three instances of one update share a row; each attends only to itself, its positions begin at 0, and
it has its own [CLS]. So the update is the same as with one instance per row, but cheaper.

Which instances share a row depends only on the lengths of the update's instances in global order: every
rank computes the same rows, whatever the split into ranks and micro-batches.

Departure from the paper: the paper packs the data once, before training, and so changes which instances
are in an update. Its greedy best fit, one instance at a time from the longest down, fills 88 % of
the rows on Wikipedia's lengths, with up to three in a row; choosing the best *two* companions
at once fills 97 % (docs/LOG.md).

Shape letters: N instances, R rows, K instances of a row, S sequence, P masked positions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError

MAX_INSTANCES_PER_ROW = 3
EMPTY = -1


def best_fit(lengths_N: np.ndarray, row_length: int) -> np.ndarray:
    """Which instances share a row: int64 [R, K] of instance numbers, `EMPTY` where a slot is free.

    The longest remaining instance starts a row, and the one or two others that best fill it join. All rows
    with the same combination of lengths are made at once, so the time depends on the number of different
    lengths and hardly on the number of instances.

    Args:
      lengths_N: integers in [1, row_length].
    """
    remaining = np.bincount(lengths_N, minlength=row_length + 1)  # instances by length
    remaining[0] = 2 * len(lengths_N)  # a free slot counts as a companion of length 0; they never run out
    combinations: list[tuple[int, ...]] = []
    counts: list[int] = []
    for longest in range(row_length, 0, -1):
        while remaining[longest]:
            remaining[longest] -= 1
            combination = (longest, *_best_two(remaining, row_length - longest))
            remaining[longest] += 1
            uses = {length: combination.count(length) for length in combination}
            count = min(int(remaining[length]) // number for length, number in uses.items())
            for length, number in uses.items():
                remaining[length] -= count * number
            combinations.append(combination)
            counts.append(count)
    lengths_RxK = np.repeat(np.array(combinations, np.int64).reshape(-1, MAX_INSTANCES_PER_ROW), counts, axis=0)
    # Both slots and instances are stably sorted by length: the n-th instance goes to the n-th slot.
    rows_RxK = np.full(lengths_RxK.shape, EMPTY, np.int64)
    used_slots = np.argsort(lengths_RxK, axis=None, kind="stable")[-len(lengths_N) :]
    rows_RxK.ravel()[used_slots] = np.argsort(lengths_N, kind="stable")
    # In global order, because neighbours in that order are neighbours on disk.
    return rows_RxK[np.argsort(rows_RxK[:, 0])]


def _best_two(remaining: np.ndarray, space: int) -> tuple[int, int]:
    """The two `remaining` lengths whose sum is the largest within `space`; of equal sums, the two closest lengths."""
    lengths = np.flatnonzero(remaining[: space + 1])
    first = lengths[lengths <= space // 2]
    partner = np.searchsorted(lengths, space - first, side="right") - 1
    # A single instance cannot fill both slots: take the next smaller length. One exists, as remaining[0] is never 1.
    partner -= (lengths[partner] == first) & (remaining[first] == 1)
    second = lengths[partner]
    best = len(first) - 1 - int(np.argmax((first + second)[::-1]))
    return int(second[best]), int(first[best])


def predictions_per_row(max_predictions_per_seq: int, row_length: int, masked_lm_prob: float | None) -> int:
    """The most masked positions that a packed row can have.

    An instance of length l has at most min(P, max(1, round(prob * l)), l - 2) of them (`masking`), so three
    in a row have hardly more than one that fills the row: P is enough for the recipe's 128/20 and 512/80.
    If P is well below prob * row_length, several short instances have more than P. If `masked_lm_prob` is
    None (unknown), each instance may have P.
    """
    lengths = np.arange(row_length + 1)
    per_instance = np.minimum(lengths, max_predictions_per_seq)
    if masked_lm_prob is not None:
        num_masked = np.maximum(np.rint(lengths * masked_lm_prob).astype(np.int64), 1)
        per_instance = np.minimum(np.minimum(per_instance, num_masked), np.maximum(lengths - 2, 0))
    total = per_instance
    for _ in range(MAX_INSTANCES_PER_ROW - 1):
        total = np.array([(total[: length + 1] + per_instance[length::-1]).max() for length in lengths])
    return max(max_predictions_per_seq, int(total[-1]))


class Slots(NamedTuple):
    """The row and slot of each of N instances, ordered by row and, within a row, from left to right."""

    row_N: np.ndarray
    slot_N: np.ndarray  # 0 for the first instance of a row

    @classmethod
    def from_rows(cls, rows_RxK: np.ndarray) -> Slots:
        return cls(*np.nonzero(rows_RxK != EMPTY))

    def spread(self, is_used_NxX: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Puts each instance's used elements directly after those of the instances to its left in the row.

        Returns:
          The row and the column of each used element, in order, and the first column of each instance, `column_N`.

        Raises:
          UserError: a row has more than `width` elements.
        """
        size_N = np.count_nonzero(is_used_NxX, axis=1)
        offset_N = np.cumsum(size_N) - size_N
        first_of_row_N = np.maximum.accumulate(np.where(self.slot_N == 0, np.arange(len(size_N)), 0))
        column_N = offset_N - offset_N[first_of_row_N]
        if np.any(column_N + size_N > width):
            raise UserError(
                f"packed instances take {int((column_N + size_N).max())} of a row's {width} positions for tokens, or "
                "for masked tokens: their records hold more than the .index beside them says (delete it; it is made "
                "again) or than masked_lm_prob in manifest.json allows (prepare them again); or train without --packing"
            )
        columns = np.arange(int(size_N.sum())) - np.repeat(offset_N - column_N, size_N)
        return np.repeat(self.row_N, size_N), columns, column_N


def lay_out(
    features: Mapping[str, np.ndarray], slots: Slots, num_rows: int, num_predictions: int
) -> dict[str, np.ndarray]:
    """Features of N instances [N, ...] -> features of packed rows [num_rows, ...].

    In addition to the features of unpacked rows: `position_ids` [S], from 0 for each instance;
    `instance_numbers` [S], the slot counted from 1, 0 for padding, in place of `input_mask`;
    `cls_positions` [K]; next-sentence labels and weights [K], weight 0 for a free slot.
    """
    length = features["input_ids"].shape[1]
    is_token, is_masked = features["input_mask"] != 0, features["masked_lm_weights"] != 0
    *token_index, column_N = slots.spread(is_token, length)
    *masked_index, _ = slots.spread(is_masked, num_predictions)
    size_N = np.count_nonzero(is_token, axis=1)
    positions = features["masked_lm_positions"] + column_N[:, np.newaxis]
    token_features = {
        "input_ids": features["input_ids"][is_token],
        "segment_ids": features["segment_ids"][is_token],
        "position_ids": token_index[1] - np.repeat(column_N, size_N),
        "instance_numbers": np.repeat(slots.slot_N + 1, size_N),
    }
    masked_features = {
        "masked_lm_positions": positions[is_masked],
        "masked_lm_ids": features["masked_lm_ids"][is_masked],
        "masked_lm_weights": features["masked_lm_weights"][is_masked],
    }
    instance_features = {
        "cls_positions": column_N,
        "next_sentence_labels": features["next_sentence_labels"][:, 0],
        "example_weights": np.ones(len(column_N), np.float32),
    }
    packed = {}
    for arrays, width, index in (
        (token_features, length, tuple(token_index)),
        (masked_features, num_predictions, tuple(masked_index)),
        (instance_features, MAX_INSTANCES_PER_ROW, slots),
    ):
        for name, values in arrays.items():
            packed[name] = np.zeros([num_rows, width], np.float32 if values.dtype.kind == "f" else np.int32)
            packed[name][index] = values
    return packed
