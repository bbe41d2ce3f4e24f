"""Many tensors leave a function as one."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.tensor_list import pack, unpack
from tests.training.test_train_step import begin, global_batch, rows_of

SHAPES = ([], [3], [2, 5])


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_tensors_come_back_as_they_were(dtype):
    tensors = [tf.cast(tf.random.normal(shape), dtype) for shape in SHAPES]
    found = tf.function(lambda handle: unpack(handle, dtype, SHAPES))(tf.function(lambda: pack(tensors))())
    for tensor, other in zip(tensors, found):
        np.testing.assert_array_equal(tensor, other)


def num_made():
    """How many of Python's tensors there were so far: each has a number."""
    return tf.constant(0)._id


def test_an_update_makes_few_tensors_whatever_the_number_of_variables():
    step, *_ = begin()
    features = rows_of(global_batch(), 0, 2, 4)
    step(features, 0)
    before = num_made()
    step(features, 1)
    assert num_made() - before < 16 < len(step.variables)
