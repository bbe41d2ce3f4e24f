"""Figures of the updates between two log lines."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.ranks.workers import Workers
from bert_tf.run import statistics
from bert_tf.run.statistics import UpdateResult, UpdateStatistics, compare_ranks


def test_saving_is_not_counted_in_the_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(statistics.time, "monotonic", lambda: now[0])
    figures = UpdateStatistics()
    one = tf.constant(1.0)
    result = UpdateResult(False, 3.0, 0.0, tf.zeros([1]), one, tf.constant(True), one, one, one, tf.zeros([1, 3]))
    with figures.timed("saving"):
        now[0] += 90.0
    for _ in range(4):
        with figures.timed("input"):
            now[0] += 1.0
        with figures.timed("compute"):
            now[0] += 4.0
        figures.add(result)
    read = figures.read(global_batch_size=8)
    assert read["throughput_train"] == pytest.approx(8 / 5.0) and read["update_secs"] == pytest.approx(5.0)
    shares = [read[f"{name}_share"] for name in ("input", "compute", "all_reduce", "host")]
    np.testing.assert_allclose(shares, [0.2, 0.8, 0.0, 0.0], atol=1e-9)


def test_reducing_and_waiting_are_not_a_ranks_own_time(monkeypatch):
    """The second update after a line stands for the others."""
    now = [0.0]
    monkeypatch.setattr(statistics.time, "monotonic", lambda: now[0])
    figures, one = UpdateStatistics(), tf.constant(1.0)
    for own_secs, waited_secs in ((60.0, 9.0), (3.0, 1.5), (0.1, 0.0)):
        with figures.timed("input"):
            now[0] += 0.25
        with figures.timed("compute"):
            now[0] += 4.75
        figures.add(UpdateResult(False, own_secs, waited_secs, tf.zeros([1]), one, one > 0, one, one, one, one))
    read = figures.read(global_batch_size=8)
    assert read["update_secs"] == pytest.approx(5.0) and read["own_secs"] == pytest.approx(3.0 + 0.25)
    assert read["all_reduce_share"] == pytest.approx(0.3) and read["compute_share"] == pytest.approx(0.65)


class ThreeRanks(Workers):
    size, hosts = 3, ("a", "b", "c")

    def gather(self, vector):
        return np.stack([vector, vector + 3.0, vector + 1.0])


def test_the_slowest_rank_and_its_host():
    assert compare_ranks(2.0, Workers()) == {}
    assert compare_ranks(2.0, ThreeRanks()) == {
        "rank_secs_min": 2.0,
        "rank_secs_median": 3.0,
        "rank_secs_max": 5.0,
        "slowest_rank": 1,
        "slowest_host": "b",
    }
