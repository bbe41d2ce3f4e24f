"""What this machine's GPU computes, beside its CPU: a part of scripts/first_gpu.sh.

Without a GPU the CPU takes its place in one case of nearly each test, so that these are known to run.
"""

import functools
import signal

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.backends import make_backend
from bert_tf.model.randomness import DropoutKey, draw_decisions, draw_mask, keep_mask, truncated_normal, update_key
from bert_tf.ranks.workers import Workers
from bert_tf.settings.training import compute_dtype
from bert_tf.training.step import GradientSums
from bert_tf.training.tensor_list import pack, unpack
from tests import processes
from tests.training.test_packed_update import pack as pack_rows
from tests.training.test_packed_update import short_batch
from tests.training.test_train_step import global_batch, make_step, rows_of
from tests.training.test_training import KILLED, command, dataset, run_by, weights  # noqa: F401  # a fixture

pytestmark = pytest.mark.gpu

GPUS = tf.config.list_physical_devices("GPU")
CPU, DEVICE = "/CPU:0", "/GPU:0" if GPUS else "/CPU:0"
# Compute capability 8.0 has bfloat16 and TF32.
HAS_BF16 = bool(GPUS) and tf.config.experimental.get_device_details(GPUS[0])["compute_capability"] >= (8, 0)
needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU; without one a case shows that the test runs")
on_gpu = functools.partial(pytest.param, marks=needs_gpu)
EACH_SCOPE = pytest.mark.parametrize("scope", ["step", on_gpu("off"), on_gpu("blocks")])
TOLERANCES = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 1e-2, "bf16": 3e-2}


def step_on(place, scope, precision):
    """The step on a device, from weights that the CPU draws."""
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    with tf.device(place):
        backend = make_backend(scope, compute_dtype(precision), for_gpu=True)
        step, model, *_ = make_step(Workers(), scope, backend=backend)
    for variable in model.variables:
        with tf.device(CPU):
            drawn = truncated_normal(1, variable.name, variable.shape, 0.1)
        variable.assign(drawn + (1.0 if "gamma" in variable.name else 0.0))
    return step


@functools.cache
def gradients(place, scope="off", precision="fp32", packed=False):
    """Of one update of micro-batches with dropout, by variable; in packed rows positions are looked up, too."""
    step, rows, num_micro_batches = step_on(place, scope, precision), rows_of(global_batch(), 0, 2, 4), None
    if packed:
        batch, num_micro_batches = pack_rows(short_batch(3), 2)
        rows = rows_of(batch, 0, 4, 2)
    with tf.device(place):
        sums = step.sum_gradients(step.agree_on_update(rows, 0, num_micro_batches=num_micro_batches))
        shapes = [variable.shape for variable in step.variables]
        return [each.numpy() for each in unpack(sums.gradients, tf.float32, shapes)]


def joined(tensors):
    return np.concatenate([tensor.ravel() for tensor in tensors])


@EACH_SCOPE
@pytest.mark.parametrize(
    "precision, packed",
    [("fp32", False), on_gpu("fp32", True), *(on_gpu(name, False) for name in ("tf32", "fp16", "bf16"))],
)
def test_gradients_are_the_cpus_in_every_precision_and_scope(scope, precision, packed):
    if precision == "bf16" and not HAS_BF16:
        pytest.skip("no bfloat16 in this device")
    expected, found = joined(gradients(CPU, packed=packed)), joined(gradients(DEVICE, scope, precision, packed))
    assert np.linalg.norm(found - expected) < TOLERANCES[precision] * np.linalg.norm(expected)


@EACH_SCOPE
def test_lamb_makes_the_same_changes_of_the_same_gradients(scope):
    changes = []
    for place, one_scope in ((CPU, "off"), (DEVICE, scope)):
        step = step_on(place, one_scope, "fp32")
        before = joined(variable.numpy() for variable in step.variables)
        with tf.device(place):
            update = step.agree_on_update(rows_of(global_batch(), 0, 2, 4), 0)
            sums = pack([tf.constant(gradient) for gradient in gradients(CPU)])
            step.apply(update, GradientSums(sums, tf.zeros_like(update.metric_totals_M), 0.0, 0.0))
        changes.append(joined(variable.numpy() for variable in step.variables) - before)
    np.testing.assert_allclose(changes[1], changes[0], rtol=1e-4, atol=1e-6)


def test_dropout_has_the_bits_of_the_cpu_however_it_is_drawn():
    shape = [6, 3, 5, 64]

    def draw(by_arithmetic):
        key = DropoutKey(tf.constant(update_key(5, 7)), tf.constant(2**40 + 11, tf.int64)).at(3)
        return keep_mask(draw_decisions(0.1, *key, shape, by_arithmetic), shape), draw_mask(0.1, *key, shape)

    with tf.device(CPU):
        expected = draw(False)[0].numpy()
    assert 0.05 < 1 - expected.mean() < 0.15
    for compiled in None, True:
        with tf.device(DEVICE):
            for mask in tf.function(draw, jit_compile=compiled, autograph=False)(compiled is True):
                np.testing.assert_array_equal(mask, expected)


def test_weights_are_drawn_as_on_the_cpu():
    drawn = []
    for place in CPU, DEVICE:
        with tf.device(place):
            drawn.append(truncated_normal(1, "a", [50, 40], 0.02).numpy())
    np.testing.assert_allclose(*drawn, atol=1e-7)


@pytest.mark.slow
@needs_gpu  # of a CPU: test_training
@pytest.mark.parametrize("scope", ["step", "blocks"])
def test_a_killed_run_ends_with_the_same_bits(dataset, tmp_path, scope):  # noqa: F811
    settings = dict(precision="fp16", enable_xla="true", xla_scope=scope, eval_files=None)
    for name in "whole", "killed":
        started = command(dataset, tmp_path / name, **settings)
        if name == "killed":
            killed = processes.run(run_by(KILLED, tmp_path, started))
            assert killed.returncode == -signal.SIGKILL, killed.stderr
        done = processes.run(started)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from" in done.stdout
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
