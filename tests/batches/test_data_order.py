from collections import Counter

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.batches.data_order import BLOCK_RECORDS, GlobalOrder

SHARDS = [130, 64, 1, 0, 200]


def positions(order, start, count):
    return [(run.file, run.first + offset) for run in order.ranges(start, count) for offset in range(run.num_records)]


def test_every_instance_once_an_epoch():
    order = GlobalOrder([SHARDS], seed=1)
    everything = {(file, record) for file, count in enumerate(SHARDS) for record in range(count)}
    for epoch in range(3):
        epoch_positions = positions(order, epoch * sum(SHARDS), sum(SHARDS))
        assert Counter(epoch_positions) == Counter(everything)


def test_epochs_and_seeds_differ_and_repeat():
    order, again = GlobalOrder([SHARDS], seed=1), GlobalOrder([SHARDS], seed=1)
    first = positions(order, 0, sum(SHARDS))
    second = positions(order, sum(SHARDS), sum(SHARDS))
    assert first != second
    assert positions(again, sum(SHARDS), sum(SHARDS)) == second
    assert positions(again, 0, sum(SHARDS)) == first
    assert positions(GlobalOrder([SHARDS], seed=2), 0, sum(SHARDS)) != first


@pytest.mark.parametrize("piece", [1, 7, 64, 395, 1000])
def test_any_cut_gives_the_same_sequence(piece):
    order = GlobalOrder([SHARDS], seed=3)
    total = 1000
    whole = positions(order, 0, total)
    pieces = [row for start in range(0, total, piece) for row in positions(order, start, min(piece, total - start))]
    assert pieces == whole


def literal_order(shards, seed, epoch):
    """An epoch as lists of (file, record), with nothing saved."""
    blocks = []
    for file, count in enumerate(shards):
        records = [(file, record) for record in range(count)]
        blocks += [records[first : first + BLOCK_RECORDS] for first in range(0, count, BLOCK_RECORDS)]
    words = np.random.Philox(key=[seed, epoch]).random_raw(len(blocks))
    return [place for number in np.argsort(words, kind="stable") for place in blocks[number]]


@pytest.mark.parametrize("shards", [SHARDS, [1] * 300, [64, 128], [0, 63, 0, 65, 0], [777, 5, 1000, 64]])
def test_the_order_is_the_literal_one(shards):
    order, total = GlobalOrder([shards], seed=9), sum(shards)
    for epoch in (0, 3):
        expected = literal_order(shards, 9, epoch)
        assert positions(order, epoch * total, total) == expected
        for start in range(0, total, 41):
            assert positions(order, epoch * total + start, 30)[: total - start] == expected[start : start + 30]


def test_ranges_stay_within_blocks():
    for run in GlobalOrder([SHARDS], seed=3).ranges(0, 2 * sum(SHARDS)):
        assert 0 < run.num_records <= BLOCK_RECORDS
        assert run.first // BLOCK_RECORDS == (run.first + run.num_records - 1) // BLOCK_RECORDS
        assert run.first + run.num_records <= SHARDS[run.file]


def test_no_records_is_an_error():
    with pytest.raises(UserError, match="no instances"):
        GlobalOrder([[0, 0]], seed=1)


def test_epochs_pass_over_the_copies_in_turn():
    copies = [SHARDS, [129, 3, 0, 64, 7], [1, 0, 0, 0, 0]]
    sizes = list(map(sum, copies))
    order, start = GlobalOrder(copies, seed=9), 0
    for epoch in range(7):
        expected = literal_order(copies[epoch % 3], 9, epoch)
        assert positions(order, start, sizes[epoch % 3]) == expected
        assert {part.epoch for part in order.ranges(start, sizes[epoch % 3])} == {epoch}
        start += sizes[epoch % 3]
    whole = positions(order, 0, start)
    assert [row for at in range(0, start, 111) for row in positions(order, at, min(111, start - at))] == whole
    with pytest.raises(UserError, match="no instances"):
        GlobalOrder([[5], [0]], seed=1)
