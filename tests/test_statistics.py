"""Figures of the updates between two log lines."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.run import statistics
from bert_tf.run.statistics import UpdateResult, UpdateStatistics


def test_saving_is_not_counted_in_the_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(statistics.time, "monotonic", lambda: now[0])
    figures = UpdateStatistics()
    one = tf.constant(1.0)
    result = UpdateResult(
        False, 0.0, tf.zeros([1]), one, tf.constant(True), one, one, one, tf.zeros([1, 3]), tf.zeros([], tf.float64)
    )
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
