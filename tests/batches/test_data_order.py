import numpy as np
import pytest

from bert_tf.batches.data_order import BLOCK_RECORDS, GlobalOrder

SHARDS = [130, 64, 1, 0, 200]


def positions(order, start, count):
    return [(run.file, run.first + offset) for run in order.ranges(start, count) for offset in range(run.num_records)]


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
        for run in order.ranges(epoch * total, total):
            assert run.first // BLOCK_RECORDS == (run.first + run.num_records - 1) // BLOCK_RECORDS
        for start in range(0, total, 41):
            assert positions(order, epoch * total + start, 30)[: total - start] == expected[start : start + 30]


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
