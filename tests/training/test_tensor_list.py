"""Many tensors leave a function as one."""

import tensorflow as tf

from tests.training.test_train_step import begin, global_batch, rows_of


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
