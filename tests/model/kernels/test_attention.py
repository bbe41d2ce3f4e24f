"""The attention's kernels, interpreted, against float64.

Shape letters: B batch, S sequence, H hidden = N heads times D head size, R = B*S rows.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.kernels.fused_attention import _ranges
from tests.model.kernels.interpreted import BFLOAT16, relative_error, run, unwritten

B = 3
# Of the norm. The interpreter rounds to bfloat16 towards zero. No backend gives the kernels float32, which shows errors
# that are smaller than the other types' roundings.
TOLERANCE = {np.float16: 1.5e-3, BFLOAT16: 1.2e-2, np.float32: 5e-6}
LOG2_E = 1 / np.log(2)


@dataclasses.dataclass(frozen=True)
class Case:
    """block: queries, and keys, of a block; one block has the kernel of all gradients."""

    S: int
    N: int
    D: int
    block: int
    rate: float = 0.1
    packed: bool = False
    dtype: type = np.float16
    sharpness: float = 1.0

    @property
    def keep_scale(self) -> float:
        return 1 / (1 - self.rate)


CASES = [
    Case(32, 2, 64, 32, packed=True),
    Case(32, 1, 128, 32, rate=0, dtype=BFLOAT16),
    Case(64, 2, 64, 64, dtype=BFLOAT16, packed=True),
    Case(64, 3, 32, 64, dtype=np.float32, packed=True),
    Case(128, 2, 128, 128, rate=0),
    Case(128, 2, 64, 128, sharpness=8),
    Case(192, 2, 32, 64, packed=True, dtype=BFLOAT16),
    Case(192, 2, 64, 64, dtype=np.float32),
    Case(256, 1, 128, 64, rate=0),
    Case(256, 1, 64, 128, sharpness=8),
]
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=str)


def make_numbers(case: Case):
    """Of queries and keys [B, S]: rows without padding, of few tokens and of padding alone; packed, of instances of
    many lengths, of one and of few tokens and padding, which has the number 0."""
    if case.packed:
        ends = [(case.S // 3, case.S // 2, case.S - 5), (case.S,), (9,)]
        positions = np.arange(case.S)
        numbers = [1 + np.searchsorted(each, positions, "right") for each in ends]
        keys = np.stack([np.where(each > len(end), 0, each) for each, end in zip(numbers, ends)]).astype(np.int32)
        return keys, keys
    keys = (np.arange(case.S) < [[case.S], [case.S // 4 + 3], [0]]).astype(np.int32)
    return np.ones_like(keys), keys


@functools.cache
def computed(case: Case):
    """All arrays by name: what the kernels are given, and what they make of it."""
    rng = np.random.default_rng(1)
    H = case.N * case.D
    data = ("query", "key", "value", "d_context")
    made = {name: rng.standard_normal([B * case.S, H]).astype(case.dtype) for name in data}
    made["query"] *= case.dtype(case.sharpness)
    for name in ("query_bias", "value_bias"):
        made[name] = rng.standard_normal(H).astype(np.float32)
    made["query_numbers"], made["key_numbers"] = make_numbers(case)
    ranges = make_ranges(case, made["query_numbers"], made["key_numbers"])
    made["key_ranges"], made["query_ranges"] = ranges
    made["keep"] = rng.random([B, case.N, case.S, case.S]) >= case.rate
    made["keep_words"] = np.packbits(made["keep"], axis=-1, bitorder="little").view(np.int32)
    sizes = dict(S=case.S, N=case.N, D=case.D, KEEP_SCALE=case.keep_scale, PACKED=case.packed)
    call = functools.partial(call_kernel, made, case, sizes)
    names = ("query", "key", "value", "query_bias", "value_bias", "query_numbers", "key_numbers", "keep_words")
    call("attend_forward", with_ranges(names, "key_ranges"), ("context", "scaled_query", "log_sums"))
    names = ("scaled_query", "key", "value", "value_bias", "query_numbers", "key_numbers", "keep_words", "context")
    names += ("log_sums", "d_context")
    if case.block == case.S:
        call("attend_gradients", names, ("d_query", "d_key", "d_value", "sums"))
        return made
    results = ("d_query", "bias_dots", "means", "query_sums")
    call("attend_query_gradient", with_ranges(names, "key_ranges"), results)
    names = ("scaled_query", "key", "value", "query_numbers", "key_numbers", "keep_words", "log_sums", "d_context")
    results = ("d_key", "d_value", "key_value_sums")
    call("attend_key_value_gradients", (*with_ranges(names, "query_ranges"), "bias_dots", "means"), results)
    return made


def make_ranges(case: Case, query_numbers, key_numbers):
    """Of blocks of keys that each block of queries may see, and vice versa, by a loop over all pairs of blocks."""
    num_blocks = case.S // case.block
    queries, keys = (each.reshape(B, num_blocks, case.block) for each in (query_numbers, key_numbers))

    def seen(owns, others):
        ranges = np.zeros([B, num_blocks, 2], np.int32)
        for at in np.ndindex(B, num_blocks):
            may = [i for i, other in enumerate(others[at[0]]) if overlaps(owns[at], other)]
            ranges[at] = (min(may), max(may) + 1) if may else (0, 0)
        return ranges

    return seen(queries, keys), seen(keys, queries)


def overlaps(one, other):
    return one.min() <= other.max() and other.min() <= one.max()


def with_ranges(names, ranges):
    at = names.index("key_numbers") + 1
    return (*names[:at], ranges, *names[at:])


def call_kernel(made, case, sizes, function, inputs, results):
    """Calls a kernel with arrays of `made`, and puts its results there."""
    H, by_query, num_blocks = case.N * case.D, ("log_sums", "bias_dots", "means"), case.S // case.block
    shapes = {**dict.fromkeys(by_query, [B, case.N, case.S]), "sums": [B, 3, H]}
    shapes.update(query_sums=[B * num_blocks, H], key_value_sums=[B * num_blocks, 2, H])
    constants = dict(sizes)
    if function != "attend_key_value_gradients":
        constants["SCALE"] = case.D**-0.5
    if function != "attend_gradients":
        constants["BLOCK"] = case.block
    types = {name: np.float32 if name in shapes else case.dtype for name in results}
    found = [unwritten(shapes.get(name, [B * case.S, H]), dtype) for name, dtype in types.items()]
    run(function, (num_blocks, case.N, B), [made[name] for name in inputs], found, **constants)
    made.update(zip(results, found))


def by_head(case, rows):
    """[R, H] -> float64 [B, N, S, D]."""
    return rows.astype(np.float64).reshape(B, case.S, case.N, case.D).transpose(0, 2, 1, 3)


@functools.cache
def expected(case: Case):
    """By TensorFlow in float64, from the query as the forward kernel has rounded it."""
    made = computed(case)
    biased = made["query"].astype(np.float64) + made["query_bias"]
    query, key, d_context = (by_head(case, made[name]) for name in ("scaled_query", "key", "d_context"))
    value = by_head(case, made["value"].astype(np.float64) + made["value_bias"])
    seen = made["query_numbers"][:, None, :, None] == made["key_numbers"][:, None, None, :]
    inputs = [tf.constant(each) for each in (query / LOG2_E, key, value)]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        scores = tf.matmul(*inputs[:2], transpose_b=True)
        exponentials = tf.where(seen, tf.exp(scores), 0.0)
        totals = tf.reduce_sum(exponentials, -1, keepdims=True)
        probabilities = exponentials / tf.where(totals == 0, 1.0, totals)
        context = tf.matmul(probabilities * (made["keep"] * case.keep_scale), inputs[2])
    d_query, d_key, d_value = tape.gradient(context, inputs, d_context)
    results = {"context": context, "d_query": d_query * case.D**-0.5, "d_key": d_key, "d_value": d_value}
    return {
        **{name: np.transpose(each, (0, 2, 1, 3)).reshape(B * case.S, -1) for name, each in results.items()},
        "scaled_query": biased * case.D**-0.5 * LOG2_E,
        "totals": totals[..., 0].numpy(),
    }


@EACH_CASE
def test_results_and_gradients(case):
    made, exact = computed(case), expected(case)
    for name in "scaled_query", "context", "d_query", "d_key", "d_value":
        assert relative_error(made[name], exact[name]) < TOLERANCE[case.dtype], name
    totals, found = exact["totals"], made["log_sums"]
    np.testing.assert_allclose(found[totals > 0], np.log(totals[totals > 0]) * LOG2_E, rtol=1e-5, atol=1e-4)
    assert np.isfinite(found).all()

    # A query that sees no key gives zeros.
    rows = B * case.S
    sees = (made["query_numbers"][:, :, None] == made["key_numbers"][:, None, :]).any(-1).reshape(rows)
    assert sees.all() == case.packed, "packed, padding sees padding"
    for name in "context", "d_query":
        assert not made[name][~sees].any() and made[name][sees].any(-1).all(), name
    hidden = (made["key_numbers"] == 0).reshape(rows)
    for name in "d_key", "d_value":
        assert case.packed or not made[name][hidden].any(), name


@EACH_CASE
def test_the_sums_of_the_gradients(case):
    """They are those of the rounded gradients, which the matmuls read."""
    made, H = computed(case), case.N * case.D
    gradients = (made[name].astype(np.float64) for name in ("d_query", "d_key", "d_value"))
    query, key, value = (each.reshape(-1, case.block, H).sum(1) for each in gradients)
    if case.block == case.S:
        pairs = [(made["sums"], np.stack([query, key, value], axis=1))]
    else:
        pairs = [(made["query_sums"], query), (made["key_value_sums"], np.stack([key, value], axis=1))]
    for found, sums in pairs:
        np.testing.assert_allclose(found, sums, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("number", [1, 2])
def test_blocks_outside_the_range_are_not_read(number):
    """Two packed instances, each of two blocks; the keys of the other one are NaN."""
    case = Case(256, 1, 32, 64, rate=0, packed=True)
    H, half = case.D, case.S // 2
    numbers = np.repeat([[1, 2]], half, axis=1).astype(np.int32)
    own = numbers[0] == number
    ranges = np.array([[[0, 2], [0, 2], [2, 4], [2, 4]]], np.int32)
    rng = np.random.default_rng(1)
    query, key, value = (rng.standard_normal([case.S, H]).astype(np.float16) for _ in range(3))
    key[~own] = value[~own] = np.nan
    results = [unwritten([case.S, H], np.float16), unwritten([case.S, H], np.float16)]
    results.append(unwritten([1, 1, case.S], np.float32))
    bias, words = np.zeros(H, np.float32), np.zeros(1, np.int32)
    sizes = dict(S=case.S, N=1, D=case.D, BLOCK=64, SCALE=1.0, KEEP_SCALE=1.0, PACKED=True)
    inputs = [query, key, value, bias, bias, numbers, numbers, ranges, words]
    run("attend_forward", (case.S // 64, 1, 1), inputs, results, **sizes)
    assert np.isfinite(results[0][own]).all() and np.isfinite(results[2][..., own]).all()


@EACH_CASE
def test_ranges(case):
    numbers = make_numbers(case)
    for found, expected in zip(_ranges(*map(tf.constant, numbers), case.block), make_ranges(case, *numbers)):
        np.testing.assert_array_equal(found, expected)
