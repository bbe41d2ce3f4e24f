"""A packed update is the update of the same instances, whatever its split and whatever is compiled."""

import dataclasses

import numpy as np
import pytest

from bert_tf.batches.packing import Slots, best_fit, lay_out
from tests.training import test_train_step
from tests.training.test_train_step import CONFIG, PAIRS, WORDS, assert_same_training, assert_same_weights, global_batch

LENGTH, PREDICTIONS = 16, 8
WITHOUT_DROPOUT = dataclasses.replace(CONFIG, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def short_batch(seed, size=8, length=LENGTH):
    """Instances of 4 to `length` tokens; some have no masked token."""
    batch = global_batch(size, length, seed=seed)
    rng = np.random.default_rng(100 + seed)
    lengths = rng.integers(4, length + 1, [size, 1])
    batch["input_mask"] = (np.arange(length) < lengths).astype(np.int32)
    for name in ("input_ids", "segment_ids"):
        batch[name] = batch[name] * batch["input_mask"]
    batch["masked_lm_positions"] = np.minimum(batch["masked_lm_positions"], lengths - 1).astype(np.int32)
    batch["masked_lm_weights"] = (np.arange(4) < rng.integers(0, 3, [size, 1])).astype(np.float32)
    return batch


def pack(batch, micro_batch_size, num_ranks=1):
    """The batch in packed rows [G, ...], by ranks as the input pipeline deals them out; micro-batches of a rank."""
    rows = best_fit(batch["input_mask"].sum(axis=1), batch["input_mask"].shape[1])
    num_micro_batches = -(-len(rows) // (micro_batch_size * num_ranks))
    own, per_rank = num_micro_batches * micro_batch_size, len(batch["input_ids"]) // num_ranks
    parts = []
    for rank in range(num_ranks):
        mine = rows[rank * own : (rank + 1) * own]
        places = Slots.from_rows(mine)
        instances = {name: values[mine[places]] for name, values in batch.items()}
        parts.append(lay_out(instances, places, per_rank, PREDICTIONS))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, num_micro_batches


def unpacked_batch(number, micro_batch_size):
    return short_batch(number), None


def packed_batch(number, micro_batch_size):
    return pack(short_batch(number), micro_batch_size)


def train(*split, make_batch=packed_batch, **options):
    return test_train_step.train(*split, make_batch=make_batch, **options)


def test_the_batches_really_are_packed_and_differ_in_their_micro_batches():
    assert {pack(short_batch(seed), 1)[1] for seed in range(2)} == {5, 6}
    assert pack(short_batch(0), 4)[1] == 2 and pack(short_batch(0), 8)[1] == 1


@pytest.mark.computes
@pytest.mark.parametrize(
    "split, scope, kind",
    [((8, 1), "off", PAIRS), ((1, 8), "off", PAIRS), ((2, 4), "step", PAIRS), ((4, 2), "off", WORDS)],
)
def test_the_updates_are_those_of_the_instances_unpacked(split, scope, kind):
    packed = train(*split, config=WITHOUT_DROPOUT, scope=scope, kind=kind)
    unpacked = train(1, 8, make_batch=unpacked_batch, config=WITHOUT_DROPOUT, kind=kind)
    assert_same_training(packed, unpacked, 3e-6)


@pytest.mark.computes
@pytest.mark.parametrize("split, scope", [((8, 1), "off"), ((2, 4), "blocks")])
def test_dropout_does_not_know_the_split(split, scope):
    assert_same_training(train(*split, scope=scope), train(1, 8), 3e-6)


def test_the_number_of_ranks_does_not_matter_with_dropout_on():
    """One update; real ranks make more in test_training."""
    batch, num_micro_batches = pack(short_batch(0), 1, num_ranks=2)
    _, found = test_train_step.train_ranks(2, 4, 1, batch, num_micro_batches)
    assert_same_weights(found, train(1, 8, num_updates=1)[1])
