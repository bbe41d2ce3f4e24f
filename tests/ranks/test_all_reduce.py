"""Gradients between the ranks: one bucket at a time, and half precision that 1,024 ranks do not wear out."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.backends import make_backend
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks import workers
from bert_tf.ranks.workers import Workers, in_buckets
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep
from tests.training.test_train_step import CONFIG, global_batch, rows_of


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


class Many(Workers):
    """One of 1,024 ranks, whose gradients are up to 90 % larger or smaller than this one's, the mean being the same.

    As Horovod: scaled by 1/ranks in the type that travels, then summed in it, here in pairs.
    """

    size = 1024
    factors = 1 + np.linspace(-0.9, 0.9, 1024)

    def gather(self, vector):
        return np.repeat(np.asarray(vector)[np.newaxis], self.size, axis=0)

    def mean(self, tensors):
        return [tf.constant(self._mean(tensor.numpy())) for tensor in tensors]

    def _mean(self, own):
        if own.dtype == np.float32:
            return own
        sums = (own.astype(np.float32).ravel() * self.factors[:, np.newaxis]).astype(np.float16)
        sums = sums * np.float16(1 / self.size)
        while len(sums) > 1:
            sums = sums[0::2] + sums[1::2]
        assert sums.dtype == np.float16
        return sums[0].reshape(own.shape)


def first_moments(reduce_dtype, loss_scale):
    """Of one update, each 0.1 times its gradient."""
    tf.config.run_functions_eagerly(True)
    try:
        state = TrainState(
            PretrainingModel(CONFIG, make_backend("off"), seed=1),
            make_optimizer("lamb", 0.01, 1, 10, compiled=False),
            LossScale(initial=loss_scale),
        )
        step = TrainStep(state, PretrainingObjective(), Many(), 5, reduce_dtype)
        assert bool(step(rows_of(global_batch(), 0, 2, 4), 0).is_finite)
    finally:
        tf.config.run_functions_eagerly(False)
    return [slot.numpy().astype(np.float64) for slot in state.optimizer.slot_variables if "adam_m" in slot.name]


def test_half_precision_among_1024_ranks_is_near_single_precision():
    exact = first_moments("float32", 1.0)
    rms = 10 * np.sqrt(np.mean(np.concatenate([moment.ravel() for moment in exact]) ** 2))
    # As large as BERT-Large's gradients (norm 1, 336 million parameters) are with the first loss scale.
    loss_scale = 2.0 ** round(np.log2(2**15 * 5.5e-5 / rms))
    found = first_moments("float16", loss_scale)
    whole = [np.concatenate([moment.ravel() for moment in moments]) for moments in (found, exact)]
    error = np.linalg.norm(whole[0] - whole[1]) / np.linalg.norm(whole[1])
    assert error == pytest.approx(0, abs=5e-4)
