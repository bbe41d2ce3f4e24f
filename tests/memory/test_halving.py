"""Out of memory in the first updates: half the micro-batch on all ranks, the same update."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.memory.halving import TRIAL_UPDATES, HalvingStep, halve
from bert_tf.ranks.workers import Workers
from bert_tf.settings.training import BatchSplit
from tests.training.test_train_step import begin, global_batch, make_step, rows_of, train


def test_halves_divide_the_rows():
    assert halve(BatchSplit(24, 2)) == BatchSplit(12, 4)
    assert halve(BatchSplit(6, 1, num_ranks=2, rank=1)) == BatchSplit(3, 2, num_ranks=2, rank=1)
    assert halve(BatchSplit(7, 1)) == BatchSplit(1, 7)


def limit_memory(monkeypatch, step, largest):
    """As on a device on which micro-batches of more than `largest` rows do not fit."""
    accumulate = step._accumulate

    def limited(features, *arguments):
        if features["input_ids"].shape[1] > largest:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return accumulate(features, *arguments)

    monkeypatch.setattr(step, "_accumulate", limited)


def pretend(monkeypatch, step):
    """Has the step's stages, but for the ranks' agreement, compute nothing."""
    monkeypatch.setattr(step, "sum_gradients", lambda update: ([], tf.zeros([4])))
    monkeypatch.setattr(step, "apply", lambda update, sums: update)


def test_the_update_is_what_it_would_have_been(monkeypatch):
    _, expected = train(4, 2)
    said = []
    step, model, *_ = begin()
    limit_memory(monkeypatch, step, 2)
    step = HalvingStep(step, Workers(), BatchSplit(8), said.append)
    for number in range(2):
        assert bool(step(rows_of(global_batch(seed=number), 0, 1, 8), number).is_finite)
    for variable, value in zip(model.variables, expected):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert ["4 micro-batches of 2 instead of 2 of 4" in line for line in said] == [False, True]


def test_a_shortage_on_one_rank_halves_it_on_all(monkeypatch):
    """The other rank's answers come from its mail: this one has room enough, and halves all the same."""
    said = []

    class Other(Workers):
        size, num_asked = 2, 0

        def gather(self, vector):
            if len(vector) > 1:
                return np.stack([vector, vector])
            self.num_asked += 1
            return np.array([vector, [self.num_asked == 1]])

    workers = Other()
    own, *_ = make_step(workers)
    pretend(monkeypatch, own)
    step = HalvingStep(own, workers, BatchSplit(4, num_ranks=2), said.append)
    for number in range(TRIAL_UPDATES):
        assert step(rows_of(global_batch(), 0, 1, 4), number).shape == (2, 2)
    assert len(said) == 1 and step.split == BatchSplit(2, 2, num_ranks=2)
    assert workers.num_asked == 1 + TRIAL_UPDATES
    step(rows_of(global_batch(), 0, 1, 4), TRIAL_UPDATES)
    assert workers.num_asked == 1 + TRIAL_UPDATES, "ranks compare notes in the first updates only"


def test_not_even_one_row_fits(monkeypatch):
    step, *_ = make_step(Workers())
    limit_memory(monkeypatch, step, 0)
    step = HalvingStep(step, Workers(), BatchSplit(2, 4), lambda _: None)
    with pytest.raises(UserError, match="out of memory with a micro-batch of 1 .*--recompute"):
        step(rows_of(global_batch(), 0, 4, 2), 0)


def test_after_the_first_updates_a_shortage_is_an_error(monkeypatch):
    own, *_ = make_step(Workers())
    step = HalvingStep(own, Workers(), BatchSplit(8), lambda _: None)
    with monkeypatch.context() as patched:
        pretend(patched, own)
        for number in range(TRIAL_UPDATES):
            step(rows_of(global_batch(), 0, 1, 8), number)
    limit_memory(monkeypatch, own, 0)
    with pytest.raises(UserError, match="out of memory with a micro-batch of 8"):
        step(rows_of(global_batch(), 0, 1, 8), TRIAL_UPDATES)
