"""The whole compiled step with the kernels, in float16: gradients are those of scope "off" in float32, on a CPU.

On a machine with a GPU the kernels are the compiled ones, else a stand-in interprets them.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.backends import GpuStep, Plain
from bert_tf.ranks.workers import Workers
from tests.small_models import small_config
from tests.training import test_train_step
from tests.training.test_packed_update import pack, short_batch
from tests.training.test_train_step import rows_of

MICRO_BATCH = 2
TOLERANCE = 1e-2  # of a norm; scope "off" reaches 4e-2 in float16, beside itself in float32
# Calls in a micro-batch. The last layer computes the masked words' positions only: too few rows for kernels.
CALLS = {"draw_keep_bits": 3, "attend_forward": 1, "add_norm_forward": 2, "bias_gelu_forward": 1}
CALLS.update(add_norm_gradients=2, bias_gelu_gradients=1)
HAS_GPU = bool(tf.config.list_physical_devices("GPU"))
ONE_BLOCK, BLOCKS = {"attend_gradients": 1}, {"attend_query_gradient": 1, "attend_key_value_gradients": 1}


def features_of(length, packed):
    """Two micro-batches, and how many of them an update has."""
    if not packed:
        return rows_of(short_batch(0, 4, length), 0, 2, MICRO_BATCH), None
    rows, num_micro_batches = pack(short_batch(0, 6, length), MICRO_BATCH)
    assert num_micro_batches == 2 and rows["instance_numbers"].max() > 1
    return rows_of(rows, 0, 2, MICRO_BATCH), num_micro_batches


def make_step(backend, length):
    config = small_config(hidden_size=64, positions=length, num_attention_heads=2)
    precision = "fp16" if backend.compute_dtype == tf.float16 else "fp32"
    step, model, _, scale = test_train_step.make_step(Workers(), config=config, precision=precision, backend=backend)
    # New weights make attention so even that queries and keys have no gradients to speak of.
    for variable in model.variables:
        if "self/query/kernel" in variable.name or "self/key/kernel" in variable.name:
            variable.assign(8 * variable)
    if scale.enabled:
        scale.scale.assign(2.0**10)
    return step


def gradients(backend, length, packed, num_updates):
    """Of the first updates; the weights stay as they are."""
    step, found = make_step(backend, length), []
    features, num_micro_batches = features_of(length, packed)
    for number in range(num_updates):
        sums = step.sum_gradients(step.agree_on_update(features, number, num_micro_batches=num_micro_batches))
        scale = step._loss_scale.scale.numpy()
        arrays = [gradient.numpy() / scale for gradient in step._unpack(sums.gradients, tf.float32)]
        found.append({variable.name: array for variable, array in zip(step.variables, arrays)})
    return found


@pytest.fixture
def num_calls(request):
    """How often the stand-in called each kernel; None on a GPU."""
    return None if HAS_GPU else request.getfixturevalue("stand_in").num_calls


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.computes
@pytest.mark.parametrize(
    "length, packed, num_updates, backward_calls",
    [(64, False, 2, ONE_BLOCK), (192, True, 1, BLOCKS)],  # the interpreter takes long for an update of 192
)
def test_gradients(num_calls, length, packed, num_updates, backward_calls):
    backend = GpuStep("float16", kernels="unchecked")
    found = gradients(backend, length, packed, num_updates)
    assert backend.remarks[0] == "in kernels of our own: attention, LayerNorm, GELU"
    calls = {name: 2 * num_updates * count for name, count in {**CALLS, **backward_calls}.items()}
    assert num_calls in (None, calls)
    with tf.device("/CPU:0"):
        expected = gradients(Plain(), length, packed, num_updates)
    norms = list(map(assert_same, found, expected))
    assert num_updates == 1 or abs(norms[0] - norms[1]) > 1e-6, "each update has its own dropout"


def assert_same(found, expected):
    """Up to float16's roundings: arrays by the variables' names, compared by their norms. Returns that of all."""
    total = np.sqrt(sum(np.sum(np.square(array)) for array in expected.values()))
    for name, array in expected.items():
        if "self/key/bias" in name:  # this one's gradient is rounding and nothing else
            assert max(np.linalg.norm(found[name]), np.linalg.norm(array)) < 1e-3 * total
        else:
            assert np.linalg.norm(found[name] - array) < TOLERANCE * np.linalg.norm(array), name
    return total
