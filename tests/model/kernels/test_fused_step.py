"""The whole compiled step with the kernels, in float16: gradients and updates are those of scope "off" in float32."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.model.backends import GpuStep, Plain
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.model.randomness import ELEMENTS_PER_COUNT, threshold
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep
from tests.model.kernels.interpreted import launch
from tests.model.kernels.stand_in import NUM_RESULTS
from tests.model.kernels.test_dropout_bits import draw_words
from tests.training.test_packed_update import pack, short_batch
from tests.training.test_train_step import rows_of

MICRO_BATCH = 2
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)  # of 64 bits
TOLERANCE = 1e-2  # of a norm; scope "off" reaches 4e-2 in float16, beside itself in float32
# Calls in a micro-batch. The last layer computes the masked words' positions only: too few rows for kernels.
CALLS = {"draw_keep_bits": 3, "attend_forward": 1, "add_norm_forward": 2, "bias_gelu_forward": 1}
CALLS.update(add_norm_gradients=2, bias_gelu_gradients=1)
ONE_BLOCK, BLOCKS = {"attend_gradients": 1}, {"attend_query_gradient": 1, "attend_key_value_gradients": 1}
EACH_LENGTH = pytest.mark.parametrize("length, backward_calls", [(64, ONE_BLOCK), (192, BLOCKS)], ids=["64", "192"])
EACH_LAYOUT = pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])


def config_of(length):
    sizes = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
    return BertConfig(vocab_size=101, max_position_embeddings=length, **sizes)


def features_of(length, packed):
    """Two micro-batches, and how many of them an update has."""
    if not packed:
        return rows_of(short_batch(0, 4, length), 0, 2, MICRO_BATCH), None
    rows, num_micro_batches = pack(short_batch(0, 6, length), MICRO_BATCH)
    assert num_micro_batches == 2 and rows["instance_numbers"].max() > 1
    return rows_of(rows, 0, 2, MICRO_BATCH), num_micro_batches


def make_step(backend, length):
    model = PretrainingModel(config_of(length), backend, seed=1)
    # New weights make attention so even that queries and keys have no gradients to speak of.
    for variable in model.variables:
        if "self/query/kernel" in variable.name or "self/key/kernel" in variable.name:
            variable.assign(8 * variable)
    loss_scale = LossScale(enabled=backend.compute_dtype == tf.float16, initial=2.0**10)
    state = TrainState(model, make_optimizer("lamb", 1e-3, 1, 100, compiled=True), loss_scale)
    return TrainStep(state, PretrainingObjective(), Workers(), seed=5)


def gradients(backend, length, packed):
    step = make_step(backend, length)
    features, num_micro_batches = features_of(length, packed)
    sums = step.sum_gradients(step.agree(features, 0, num_micro_batches=num_micro_batches))
    scale = step._loss_scale.scale.numpy()
    arrays = [gradient.numpy() / scale for gradient in step._unpack(sums.gradients, tf.float32)]
    return {variable.name: array for variable, array in zip(step.variables, arrays)}


def trained(backend, length, packed):
    """The changes of the weights in 20 updates, and the losses."""
    step = make_step(backend, length)
    before = [variable.numpy() for variable in step.variables]
    features, num_micro_batches = features_of(length, packed)
    results = [step(features, number, num_micro_batches=num_micro_batches) for number in range(20)]
    assert all(result.is_finite.numpy() for result in results)
    changes = {variable.name: variable.numpy() - old for variable, old in zip(step.variables, before)}
    return changes, np.stack([result.metrics.numpy() for result in results])


@pytest.mark.slow
@pytest.mark.computes
@EACH_LENGTH
@EACH_LAYOUT
def test_gradients(stand_in, length, backward_calls, packed):
    found = gradients(GpuStep("float16", kernels="unchecked"), length, packed)
    assert stand_in.num_calls == {name: 2 * count for name, count in {**CALLS, **backward_calls}.items()}
    expected = gradients(Plain(), length, packed)
    assert_same(found, expected)


def assert_same(found, expected):
    """Up to float16's roundings: arrays by the variables' names, compared by their norms."""
    total = np.sqrt(sum(np.sum(np.square(array)) for array in expected.values()))
    for name, array in expected.items():
        if "self/key/bias" in name:  # this one's gradient is rounding and nothing else
            assert max(np.linalg.norm(found[name]), np.linalg.norm(array)) < 1e-3 * total
        else:
            assert np.linalg.norm(found[name] - array) < TOLERANCE * np.linalg.norm(array), name


def run_quickly(name, grid, addresses, types, constants):
    """Runs a kernel in fewer programs, which take more rows; the interpreter's time is that of the programs."""
    if name == "draw_keep_bits":
        return draw_with_numpy(grid[1], *addresses, constants["COUNTS"], constants["THRESHOLD"])
    if "STEPS" in constants:
        constants.update(ROWS=constants["ROWS"] * constants["STEPS"], STEPS=1)
    elif "ROWS" in constants:
        constants["ROWS"] *= 16
        grid = [-(-count // 16) if count == max(grid) else count for count in grid]
    return launch(name, grid, addresses, types, constants)


def draw_with_numpy(num_rows, key_address, first_row_address, words_address, num_counts, lowest):
    """The words of `draw_keep_bits`."""
    key = ctypes.c_uint64.from_address(key_address).value
    first = ctypes.c_int64.from_address(first_row_address).value * num_counts
    counts = np.arange(first, first + num_rows * num_counts, dtype=np.uint64).reshape(num_rows, num_counts)
    a, b, c, d = counts & LOW, counts >> HALF, 0 * counts, 0 * counts
    key_a, key_c = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        of_a, of_c = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (
            (of_c >> HALF) ^ b ^ np.uint64(key_a),
            of_c & LOW,
            (of_a >> HALF) ^ d ^ np.uint64(key_c),
            of_a & LOW,
        )
        key_a, key_c = (key_a + 0x9E3779B9) & 0xFFFFFFFF, (key_c + 0xBB67AE85) & 0xFFFFFFFF
    words = np.stack([word.astype(np.uint32) for word in (a, b, c, d)], axis=1)[:, :, np.newaxis]
    halves = np.concatenate([words << 16, words], axis=2).view(np.int32).reshape(num_rows, 8, num_counts)
    bits = np.packbits(halves >= lowest, axis=-1, bitorder="little")
    ctypes.memmove(words_address, bits.tobytes(), bits.size)


def test_what_runs_quickly_is_the_same():
    shape, rate, key, first_row = [2, 64, 96], 0.1, 2**63 + 5, 2**40
    expected = draw_words(shape, rate, key, first_row)
    site, found = [np.array(key, np.uint64), np.array(first_row, np.int64)], np.zeros_like(expected)
    addresses = [array.ctypes.data for array in (*site, found)]
    draw_with_numpy(shape[0], *addresses, 64 * 96 // ELEMENTS_PER_COUNT, threshold(rate) << 16)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.computes
@pytest.mark.parametrize("length", [64, pytest.param(192, marks=pytest.mark.long)])
@EACH_LAYOUT
def test_twenty_updates(stand_in, length, packed):
    stand_in.instead = dict.fromkeys(NUM_RESULTS, run_quickly)
    changes, losses = trained(GpuStep("float16", kernels="unchecked"), length, packed)
    expected_changes, expected_losses = trained(Plain(), length, packed)
    assert stand_in.num_calls["attend_forward"] == 20 * 2
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-3)
    assert_same(changes, expected_changes)
