import numpy as np
import pytest

from bert_tf.batches.packing import EMPTY, MAX_INSTANCES_PER_ROW, best_fit, predictions_per_row


def lengths_like_wikipedia(count, row_length=512):
    """A fifth as long as a row, many short ones, half of all positions used."""
    rng = np.random.default_rng(0)
    short = np.minimum(row_length, 5 + rng.gamma(1.2, 150, count)).astype(np.int64)
    return np.where(rng.random(count) < 0.23, row_length, short)


def filled(rows, lengths):
    """Tokens of each row."""
    return np.where(rows == EMPTY, 0, np.asarray(lengths)[rows]).sum(axis=1)


@pytest.mark.parametrize(
    "lengths, row_length",
    [
        ([7], 8),
        ([8, 8, 8], 8),
        ([1, 1, 1, 1], 8),
        ([3, 3, 3, 2, 2, 2, 8, 5, 5, 1], 8),
        (lengths_like_wikipedia(3000), 512),
        (np.random.default_rng(1).integers(1, 129, 5000), 128),
    ],
)
def test_every_instance_lies_in_one_row_and_no_row_is_too_full(lengths, row_length):
    rows = best_fit(np.array(lengths), row_length)
    assert rows.shape[1] == MAX_INSTANCES_PER_ROW
    np.testing.assert_array_equal(np.sort(rows[rows != EMPTY]), np.arange(len(lengths)))
    assert filled(rows, lengths).max() <= row_length
    assert np.all(rows[:, 0] != EMPTY) and np.all((rows[:, 1] != EMPTY) | (rows[:, 2] == EMPTY))


@pytest.mark.parametrize(
    "lengths, expected",
    [
        ([10, 6, 4], [(10,), (6, 4)]),
        ([6, 3, 1, 3, 2], [(6, 3, 1), (3, 2)]),  # 3 and 1 together, which 3 alone does not fill
        ([5, 4, 3, 2], [(5, 3, 2), (4,)]),  # not (5, 4): nothing would fill the 1 that is left
        ([4, 4, 4, 4], [(4, 4), (4, 4)]),
        ([2, 2, 2, 2, 2], [(2, 2, 2), (2, 2)]),
    ],
)
def test_the_two_that_fill_a_row_best(lengths, expected):
    rows = best_fit(np.array(lengths), 10)
    assert [tuple(lengths[number] for number in row if number != EMPTY) for row in rows] == expected


def test_rows_are_nearly_full():
    lengths = lengths_like_wikipedia(8192)
    assert filled(best_fit(lengths, 512), lengths).mean() > 0.96 * 512


def test_masked_positions_that_a_row_needs():
    assert predictions_per_row(20, 128, 0.15) == 20 and predictions_per_row(80, 512, 0.15) == 80
    assert predictions_per_row(20, 512, 0.15) == 60, "three instances of 134 tokens each have 20"
    assert predictions_per_row(80, 512, None) == 240, "each may have 80 as far as anybody knows"
    of_one = [min(10, max(1, round(0.15 * length)), max(length - 2, 0)) for length in range(91)]  # of a single segment
    by_hand = max(of_one[a] + of_one[b] + of_one[90 - a - b] for a in range(91) for b in range(91 - a))
    assert predictions_per_row(10, 90, 0.15) == by_hand > 10
