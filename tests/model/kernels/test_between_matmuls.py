"""The kernels between the matmuls, interpreted, against float64.

Shape letters: R rows, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests.model.kernels.interpreted import BFLOAT16, relative_error, run, unwritten

R, ROWS, STEPS, EPSILON = 32, 4, 4, 1e-3
PROGRAMS = R // (ROWS * STEPS)
# Of the norm. The interpreter rounds to bfloat16 towards zero. No backend gives the kernels float32, which shows errors
# in the formulas that are smaller than the other types' roundings, such as the other form of GELU, 4e-4.
TOLERANCE = {np.float16: 1e-3, BFLOAT16: 8e-3, np.float32: 2e-6}


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: type, factor: float = 1.0) -> np.ndarray:
    return (factor * rng.standard_normal(shape)).astype(dtype)


# --- Residual and LayerNorm ----------------------------------------------------------------------

# Hidden size, rate of the dropout, type: sizes that are powers of two and sizes that are not, with words in the rest.
NORMS = [(768, 0.1, np.float16), (96, 0.0, np.float16), (160, 0.25, BFLOAT16), (512, 0.1, BFLOAT16)]
NORMS += [(96, 0.1, np.float32), (1024, 0.0, np.float32)]


def computed_norm(H, rate, dtype):
    """All arrays by name: what the kernels are given, and what they make of it."""
    rng = np.random.default_rng(1)
    made = {name: normal(rng, [R, H], dtype) for name in ("x", "residual", "d_result")}
    made["residual"] = (made["residual"] + dtype(3)).astype(dtype)  # a mean that is not 0
    made.update({name: normal(rng, [H], np.float32) for name in ("bias", "gamma", "beta")})
    made["keep"] = rng.random([R, H]) >= rate
    made["keep_words"] = np.packbits(made["keep"], axis=-1, bitorder="little").view(np.int32)
    sizes = dict(H=H, COLUMNS=1 << (H - 1).bit_length(), ROWS=ROWS, KEEP_SCALE=1 / (1 - rate))
    inputs = [made[name] for name in ("x", "bias", "residual", "gamma", "beta", "keep_words")]
    results = [unwritten([R, H], dtype), unwritten([R, H], dtype), *(unwritten([R], np.float32) for _ in range(2))]
    run("add_norm_forward", (R // ROWS, 1, 1), inputs, results, **sizes, EPSILON=EPSILON)
    made.update(zip(("result", "argument", "means", "inverses"), results))
    inputs = [made[name] for name in ("d_result", "argument", "means", "inverses", "gamma", "keep_words")]
    results = [unwritten([R, H], dtype), unwritten([R, H], dtype), unwritten([PROGRAMS, 3, H], np.float32)]
    run("add_norm_gradients", (PROGRAMS, 1, 1), inputs, results, **sizes, STEPS=STEPS)
    made.update(zip(("d_x", "d_residual", "sums"), results))
    return made


def expected_norm(made, H, rate):
    """By TensorFlow; the sums of gradients are those of each program's rows."""
    names = ("x", "residual", "bias", "gamma", "beta")
    x, residual, *per_row = inputs = [tf.constant(np.broadcast_to(made[name], [R, H]), tf.float64) for name in names]
    bias, gamma, beta = per_row
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        argument = residual + (x + bias) * (made["keep"] / (1 - rate))
        mean, variance = tf.nn.moments(argument, 1, keepdims=True)
        inverse = tf.math.rsqrt(variance + EPSILON)
        result = (argument - mean) * inverse * gamma + beta
    gradients = tape.gradient(result, inputs, made["d_result"].astype(np.float64))
    d_x, d_residual, _, *by_row = map(np.array, gradients)
    # Those of the bias are of what the matmuls read.
    sums = [each.reshape([PROGRAMS, -1, H]).sum(1) for each in (*by_row, made["d_x"].astype(np.float64))]
    found = dict(result=result, argument=argument, means=mean[:, 0], inverses=inverse[:, 0])
    return {**found, "d_x": d_x, "d_residual": d_residual, **dict(zip(("d_gamma", "d_beta", "d_bias"), sums))}


@pytest.mark.parametrize("H, rate, dtype", NORMS)
def test_norm_and_gradients(H, rate, dtype):
    made = computed_norm(H, rate, dtype)
    expected = expected_norm(made, H, rate)
    for name in "result", "argument", "d_x", "d_residual":
        assert relative_error(made[name], expected[name]) < TOLERANCE[dtype], name
    # The statistics are those before rounding.
    for name in "means", "inverses":
        np.testing.assert_allclose(made[name], expected[name], rtol=1e-5, atol=1e-6)
    assert not made["d_x"][~made["keep"]].any() and made["keep"].all() == (rate == 0), "what is dropped"
    sums = made["sums"]
    assert relative_error(sums[:, 0], expected["d_gamma"]) < TOLERANCE[dtype], "the argument is rounded"
    np.testing.assert_allclose(sums[:, 1], expected["d_beta"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sums[:, 2], expected["d_bias"], rtol=1e-5, atol=1e-5)


# --- GELU ----------------------------------------------------------------------------------------

WIDTH = 256


def computed_gelu(exact, dtype):
    """Inputs are up to 20: there the functions are straight."""
    rng = np.random.default_rng(1)
    x, d_result = normal(rng, [R, WIDTH], dtype, 4), normal(rng, [R, WIDTH], dtype)
    bias = normal(rng, [WIDTH], np.float32)
    x[0, :2] = dtype(20), dtype(-20)
    sizes = dict(WIDTH=WIDTH, COLUMNS=128, ROWS=ROWS, EXACT=exact)
    results = [unwritten([R, WIDTH], dtype)]
    (result,) = run("bias_gelu_forward", (WIDTH // 128 * R // ROWS, 1, 1), [x, bias], results, **sizes)
    results = [unwritten([R, WIDTH], dtype), unwritten([PROGRAMS, WIDTH], np.float32)]
    run("bias_gelu_gradients", (WIDTH // 128, PROGRAMS, 1), [d_result, x, bias], results, **sizes, STEPS=STEPS)
    return tf.constant(x.astype(np.float64) + bias), d_result.astype(np.float64), result, *results


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # 1 / infinity is the right share
def test_gelu_and_its_gradient(exact, dtype):
    argument, d_result, result, d_x, sums = computed_gelu(exact, dtype)
    with tf.GradientTape() as tape:
        tape.watch(argument)
        expected = tf.nn.gelu(argument, approximate=not exact)
    assert relative_error(result, expected) < TOLERANCE[dtype]
    assert relative_error(d_x, tape.gradient(expected, argument, d_result)) < TOLERANCE[dtype]
    # The sums are those of the rounded gradients, which the matmuls read.
    expected = d_x.astype(np.float64).reshape(PROGRAMS, -1, WIDTH).sum(1)
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)
