"""Packing: the instances of an update laid into fewer rows (Krell et al., arXiv 2107.02027).

Short texts leave much of a row to padding, which is computed like anything else. Here up to three
instances of one update share a row; each sees itself only, its positions begin at 0, and it has its
own [CLS]. So the update is that of the same instances in rows of their own, and cheaper.

Which instances share a row is a function of the update's lengths, in the order of its instances,
and of nothing else: every rank finds it by itself, whatever the split into ranks and micro-batches.

Departure from the paper: it packs the data once, before training, and so changes which instances
meet in an update. Its greedy best fit, an instance at a time from the longest down, fills 88 % of
the rows on lengths as Wikipedia has them, where a row may hold three; looking for the best *two*
companions at once fills 97 % (docs/LOG.md).

Shape letters: N instances, R rows, K instances of a row, S sequence, P masked positions of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.batches.masking import NUM_MARKERS

MAX_INSTANCES_PER_ROW = 3
EMPTY = -1


def best_fit(lengths_N: np.ndarray, row_length: int) -> np.ndarray:
    """Which instances share a row: int64 [R, K] of instance numbers, `EMPTY` where there is none.

    The longest instance left begins a row, and the one or two that fill it best join it. This is
    done for lengths, with all instances of a length at once: its time depends on how many different
    lengths there are, and hardly on how many instances.

    Args:
      lengths_N: integers in [1, row_length].
    """
    left = np.bincount(lengths_N, minlength=row_length + 1)
    left[0] = 2 * len(lengths_N)  # "none" is a companion of length 0, of which there are enough
    kinds: list[tuple[int, ...]] = []
    counts: list[int] = []
    for longest in range(row_length, 0, -1):
        while left[longest]:
            left[longest] -= 1
            kind = (longest, *_best_two(left, row_length - longest))
            left[longest] += 1
            uses = {length: kind.count(length) for length in kind}
            count = min(int(left[length]) // number for length, number in uses.items())
            for length, number in uses.items():
                left[length] -= count * number
            kinds.append(kind)
            counts.append(count)
    lengths_RxK = np.repeat(np.array(kinds, np.int64).reshape(-1, MAX_INSTANCES_PER_ROW), counts, axis=0)
    # Both sides sorted by length, equal lengths in order: the n-th instance goes to the n-th place.
    rows_RxK = np.full(lengths_RxK.shape, EMPTY, np.int64)
    places = np.argsort(lengths_RxK, axis=None, kind="stable")[-len(lengths_N) :]
    rows_RxK.ravel()[places] = np.argsort(lengths_N, kind="stable")
    # Neighbours in the order are neighbours on the disk.
    return rows_RxK[np.argsort(rows_RxK[:, 0])]


def _best_two(left: np.ndarray, space: int) -> tuple[int, int]:
    """The two lengths with the largest sum of at most `space`; of those, the two most alike."""
    there = np.flatnonzero(left[: space + 1])
    first = there[there <= space // 2]
    partner = np.searchsorted(there, space - first, side="right") - 1
    # An instance is no companion of its own; left[0] is never 1, so there is a smaller one.
    partner -= (there[partner] == first) & (left[first] == 1)
    second = there[partner]
    best = len(first) - 1 - int(np.argmax((first + second)[::-1]))
    return int(second[best]), int(first[best])


def predictions_per_row(max_predictions_per_seq: int, row_length: int, masked_lm_prob: float | None) -> int:
    """Masked positions that a packed row must have room for, so that none is ever lost.

    An instance of length l has min(P, max(1, round(prob * l)), l - 3) of them (`masking`), so three in
    a row hardly have more than one of full length: for the recipe's 128/20 and 512/80 P is enough.
    Where P cuts off much of the share, short instances together have more. `masked_lm_prob` is None
    where nobody knows the rule; then each instance may have P.
    """
    lengths = np.arange(row_length + 1)
    in_one = np.minimum(lengths, max_predictions_per_seq)
    if masked_lm_prob is not None:
        wanted = np.maximum(np.rint(lengths * masked_lm_prob).astype(np.int64), 1)
        in_one = np.minimum(np.minimum(in_one, wanted), np.maximum(lengths - NUM_MARKERS, 0))
    total = in_one
    for _ in range(MAX_INSTANCES_PER_ROW - 1):
        total = np.array([(total[: length + 1] + in_one[length::-1]).max() for length in lengths])
    return max(max_predictions_per_seq, int(total[-1]))


class Places(NamedTuple):
    """Where each of N instances lies; they come row by row, and in a row from left to right."""

    row_N: np.ndarray
    slot_N: np.ndarray  # 0 for the first instance of a row

    @classmethod
    def of(cls, rows_RxK: np.ndarray) -> Places:
        return cls(*np.nonzero(rows_RxK != EMPTY))

    def spread(self, is_used_NxX: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Puts what each instance uses behind what the instances to its left use.

        Returns:
          For each used element, in order, its row and its column; and for each instance the column
          where its first one lies.

        Raises:
          UserError: a row has more than `width` elements.
        """
        size_N = np.count_nonzero(is_used_NxX, axis=1)
        begin_N = np.cumsum(size_N) - size_N
        first_of_row_N = np.maximum.accumulate(np.where(self.slot_N == 0, np.arange(len(size_N)), 0))
        start_N = begin_N - begin_N[first_of_row_N]
        if np.any(start_N + size_N > width):
            raise UserError(
                f"packed instances have {int((start_N + size_N).max())} masked tokens in a row with room "
                f"for {width}: these records hold more of them than masked_lm_prob in their manifest.json "
                "allows; prepare them again, or train without --packing"
            )
        column = np.arange(int(size_N.sum())) - np.repeat(begin_N - start_N, size_N)
        return np.repeat(self.row_N, size_N), column, start_N


def lay_out(
    features: Mapping[str, np.ndarray], places: Places, num_rows: int, num_predictions: int
) -> dict[str, np.ndarray]:
    """Features of N instances [N, ...] -> features of packed rows [num_rows, ...].

    Beside those that unpacked rows have too: `position_ids` [S], which begin at 0 with each instance;
    `instance_numbers` [S], the slot counted from 1, 0 for padding, in place of `input_mask`;
    `cls_positions` [K]; labels and weights of the next-sentence prediction [K], the latter 0 for a
    place without an instance.
    """
    length = features["input_ids"].shape[1]
    is_token, is_masked = features["input_mask"] != 0, features["masked_lm_weights"] != 0
    row, column, start_N = places.spread(is_token, length)
    *masked, _ = places.spread(is_masked, num_predictions)
    size_N = np.count_nonzero(is_token, axis=1)
    positions = features["masked_lm_positions"] + start_N[:, np.newaxis]
    laid_out = {}
    for name, width, at, values in (
        ("input_ids", length, (row, column), features["input_ids"][is_token]),
        ("segment_ids", length, (row, column), features["segment_ids"][is_token]),
        ("position_ids", length, (row, column), column - np.repeat(start_N, size_N)),
        ("instance_numbers", length, (row, column), np.repeat(places.slot_N + 1, size_N)),
        ("masked_lm_positions", num_predictions, tuple(masked), positions[is_masked]),
        ("masked_lm_ids", num_predictions, tuple(masked), features["masked_lm_ids"][is_masked]),
        ("masked_lm_weights", num_predictions, tuple(masked), features["masked_lm_weights"][is_masked]),
        ("cls_positions", MAX_INSTANCES_PER_ROW, places, start_N),
        ("next_sentence_labels", MAX_INSTANCES_PER_ROW, places, features["next_sentence_labels"][:, 0]),
        ("example_weights", MAX_INSTANCES_PER_ROW, places, np.ones(len(start_N), np.float32)),
    ):
        laid_out[name] = np.zeros([num_rows, width], np.float32 if values.dtype.kind == "f" else np.int32)
        laid_out[name][at] = values
    return laid_out
