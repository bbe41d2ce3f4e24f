import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.randomness import DropoutKey, draw_decisions, keep_mask, keep_scale, truncated_normal, update_key

pytestmark = pytest.mark.computes


def masks(first_row, shape, *, rate=0.3, mode="eager"):
    """Bits by TensorFlow's op; in mode "xla" by arithmetic. That these are the same: test_backends."""

    def draw(key, row):
        return keep_mask(draw_decisions(rate, *DropoutKey(key, row).at(3), shape, mode == "xla"), shape)

    function = tf.function(draw, jit_compile=True) if mode == "xla" else draw
    return function(tf.constant(update_key(5, 7)), tf.constant(first_row, tf.int64)).numpy()


@pytest.mark.parametrize("mode", ["eager", "xla"])
def test_rows_drawn_alone_equal_rows_of_the_whole(mode):
    whole = masks(0, [8, 3, 7])
    for first, count in ((0, 1), (2, 3), (7, 1)):
        np.testing.assert_array_equal(whole[first : first + count], masks(first, [count, 3, 7], mode=mode))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_rate_and_scale(rate):
    kept = masks(0, [64, 64, 64], rate=rate)
    assert abs((~kept).mean() - rate) <= 5 * np.sqrt(rate * (1 - rate) / kept.size)
    assert keep_scale(rate) == pytest.approx(1 / (1 - rate), rel=2e-5)


def test_decisions_are_sixteen_bits_of_philox():
    key, rate, shape = np.uint64(update_key(5, 7)), 0.3, [3, 5, 8]
    kept = keep_mask(draw_decisions(rate, tf.constant(key), tf.constant(2, tf.int64), shape, True), shape).numpy()
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[15, 4], key=[key], counter=tf.constant([10, 0], tf.uint64), alg=1, dtype=tf.uint32
    ).numpy()
    halves = words.view(np.int16).reshape(3, 5, 8)  # little-endian: the lower half comes first
    np.testing.assert_array_equal(kept.reshape(3, 8, 5), halves.transpose(0, 2, 1) >= round(rate * 65536) - 32768)


def test_initial_weights_depend_on_seed_and_name_alone():
    first = truncated_normal(1, "a", [50, 40], 0.02).numpy()
    np.testing.assert_array_equal(first, truncated_normal(1, "a", [50, 40], 0.02))
    assert not np.array_equal(first, truncated_normal(1, "b", [50, 40], 0.02))
    assert not np.array_equal(first, truncated_normal(2, "a", [50, 40], 0.02))
    assert np.abs(first).max() <= 0.04
    # A normal cut at two deviations has 0.88 of its deviation.
    assert first.std() == pytest.approx(0.88 * 0.02, rel=0.05)
