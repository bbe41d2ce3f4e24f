"""Figures of the updates between two log lines."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.batches.batches import Batch
from bert_tf.model.losses import Objective
from bert_tf.ranks.workers import Workers
from bert_tf.run import statistics
from bert_tf.run.statistics import UpdateResult, UpdateStatistics

BATCH = Batch({"input_ids": np.zeros([2, 2, 1])})


class ThreeRanks(Workers):
    size, hosts = 3, ("a", "b", "c")

    def gather(self, vector):
        return np.stack([vector, vector + 3.0, vector + 1.0])


def read(monkeypatch, updates, workers, input_secs, compute_secs):
    """The figures of updates, whose own seconds and seconds of waiting are given, after a save of 90 seconds."""
    now = [0.0]
    monkeypatch.setattr(statistics.time, "monotonic", lambda: now[0])
    figures, one = UpdateStatistics(Objective(), workers), tf.constant(1.0)
    of_updates = [("input", input_secs), ("compute", compute_secs)] * len(updates)
    for activity, secs in [("saving", 90.0), ("evaluation", 9.0), *of_updates]:
        with figures.timed(activity):
            now[0] += secs
    for own_secs, waited_secs in updates:
        figures.add(UpdateResult(False, own_secs, waited_secs, tf.zeros([1]), one, one > 0, one, one, one, one), BATCH)
    return figures.read(global_batch_size=8)[0]


def test_saving_and_evaluations_are_not_counted_in_the_rate(monkeypatch):
    figures = read(monkeypatch, [(3.0, 0.0)] * 4, Workers(), 1.0, 4.0)
    assert figures["throughput_train"] == pytest.approx(8 / 5.0) and figures["update_secs"] == pytest.approx(5.0)
    shares = [figures[f"{name}_share"] for name in ("input", "compute", "all_reduce", "host")]
    np.testing.assert_allclose(shares, [0.2, 0.8, 0.0, 0.0], atol=1e-9)
    assert not any("rank" in name for name in figures)


def test_reducing_and_waiting_are_not_a_ranks_own_time(monkeypatch):
    """The second update after a line stands for the others. The slowest rank is named with its host."""
    figures = read(monkeypatch, [(60.0, 9.0), (3.0, 1.5), (0.1, 0.0)], ThreeRanks(), 0.25, 4.75)
    assert figures["update_secs"] == pytest.approx(5.0)
    assert figures["all_reduce_share"] == pytest.approx(0.3) and figures["compute_share"] == pytest.approx(0.65)
    ranks = {name: value for name, value in figures.items() if name.startswith(("rank_", "slowest_"))}
    secs = {"rank_secs_min": 3.25, "rank_secs_median": 4.25, "rank_secs_max": 6.25}
    assert ranks == {**secs, "slowest_rank": 1, "slowest_host": "b"}
