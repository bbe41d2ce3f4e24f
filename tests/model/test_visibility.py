"""Which keys a query sees, by masks and by the numbers of packed instances."""

import numpy as np
import tensorflow as tf

from bert_tf.model.visibility import VisibleKeys

MASK = tf.constant([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], tf.int32)
NUMBERS = tf.constant([[1, 1, 2, 0], [1, 2, 3, 3]], tf.int64)


def test_unpacked_all_queries_see_the_same_keys():
    visible = VisibleKeys.of({"input_mask": MASK})
    mask = visible.mask()
    assert mask.shape == [3, 1, 1, 4] and mask.dtype == tf.float32
    np.testing.assert_array_equal(mask[:, 0, 0], MASK)
    assert visible.to_queries(tf.constant([[0], [1], [2]])) is visible


def test_packed_a_query_sees_the_keys_of_its_instance():
    visible = VisibleKeys.of({"input_mask": tf.zeros([2, 4]), "instance_numbers": NUMBERS})
    mask = visible.mask()
    assert mask.shape == [2, 1, 4, 4] and mask.dtype == tf.float32
    expected = [[[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]  # padding, of the number 0, sees padding
    expected += [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]]
    np.testing.assert_array_equal(mask[:, 0], expected)


def test_some_queries_of_packed_rows():
    positions = tf.constant([[3, 0, 2], [2, 2, 1]])
    visible = VisibleKeys.of({"instance_numbers": NUMBERS})
    some = visible.to_queries(positions)
    assert some.key_numbers_BxS is visible.key_numbers_BxS
    np.testing.assert_array_equal(some.query_numbers_BxQ, [[0, 1, 2], [3, 3, 2]])
    np.testing.assert_array_equal(some.mask(), tf.gather(visible.mask(), positions, axis=2, batch_dims=1)[:, :1])
