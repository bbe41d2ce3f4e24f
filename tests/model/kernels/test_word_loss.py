"""The kernels of the masked words' loss, interpreted, against float64.

Shape letters: R rows, V vocabulary, W its size with the columns that pad it.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.model.kernels.interpreted import BFLOAT16, relative_error, run, unwritten

R, ROWS, STEPS = 32, 4, 4
# Of the norm of the gradient, which is rounded to the type; the interpreter rounds to bfloat16 towards zero.
TOLERANCE = {np.float16: 1e-3, BFLOAT16: 8e-3, np.float32: 2e-6}


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("V, W, columns", [(101, 104, 64), (96, 96, 128)])
def test_loss_and_gradient(dtype, V, W, columns):
    rng = np.random.default_rng(1)
    logits, bias = (4 * rng.standard_normal([R, W])).astype(dtype), rng.standard_normal(W).astype(np.float32)
    labels, d_losses = rng.integers(0, V, R).astype(np.int32), rng.random(R).astype(np.float32)
    exact = logits[:, :V].astype(np.float64) + bias[:V]
    labels[:4], labels[4] = exact[:4].argmax(axis=1), V - 1
    log_sums = np.log(np.exp(exact).sum(axis=1))
    of_label = exact[np.arange(R), labels]

    sizes = {"V": V, "W": W, "COLUMNS": columns}
    results = [unwritten([R], np.float32) for _ in range(3)]
    losses, are_correct, found_sums = run("word_loss", (R, 1, 1), [logits, bias, labels], results, **sizes)
    np.testing.assert_allclose(losses, log_sums - of_label, atol=2e-5)
    np.testing.assert_allclose(found_sums, log_sums, rtol=1e-6)
    np.testing.assert_array_equal(are_correct, labels == exact.argmax(axis=1))
    assert are_correct[:4].all() and not are_correct.all()

    num_programs = R // (ROWS * STEPS)
    results = [unwritten([R, W], dtype), unwritten([num_programs, W], np.float32)]
    inputs, grid = [logits, bias, labels, found_sums, d_losses], (-(-W // columns), num_programs, 1)
    d_logits, sums = run("word_loss_gradient", grid, inputs, results, **sizes, ROWS=ROWS, STEPS=STEPS)
    expected = np.zeros([R, W])
    expected[:, :V] = (np.exp(exact - log_sums[:, np.newaxis]) - np.eye(V)[labels]) * d_losses[:, np.newaxis]
    assert relative_error(d_logits, expected) < TOLERANCE[dtype]
    assert relative_error(sums.sum(axis=0), expected.sum(axis=0)) < 2e-6
    assert not d_logits[:, V:].any() and not sums[:, V:].any()
