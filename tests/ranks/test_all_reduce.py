"""Gradients between the ranks: one bucket at a time."""

import numpy as np
import tensorflow as tf

from bert_tf.ranks import workers
from bert_tf.ranks.workers import in_buckets


def ancestors(operation):
    found, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        before = {*current.control_inputs, *(tensor.op for tensor in current.inputs)} - found
        found |= before
        waiting += before
    return found


def test_a_bucket_is_copied_only_after_the_one_before_it_has_been_reduced(monkeypatch):
    monkeypatch.setattr(workers, "BUCKET_BYTES", 64)
    tensors = [tf.random.normal([8]) for _ in range(8)]

    @tf.function(autograph=False)
    def reduce(*given):
        return in_buckets(given, lambda number, flat: tf.multiply(flat, 2.0, name=f"reduced_{number}"))

    for tensor, reduced in zip(tensors, reduce(*tensors)):
        np.testing.assert_array_equal(reduced, 2 * tensor)
    graph = reduce.get_concrete_function(*tensors).graph
    reductions = [graph.get_operation_by_name(f"reduced_{number}") for number in range(4)]
    for previous, following in zip(reductions, reductions[1:]):
        (copy,) = (tensor.op for tensor in following.inputs if tensor.op.type == "ConcatV2")
        assert previous in ancestors(copy)
