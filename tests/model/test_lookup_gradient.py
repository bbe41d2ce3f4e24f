"""The sums of an embedding lookup's gradient have the same bits in whatever order a GPU adds what is scattered."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.lookup_gradient import CHUNK, add_in_fixed_order, sums_in_fixed_order

H = 8
RNG = np.random.default_rng(1)
# The ids that are looked up in a table, and its number of rows.
LOOKUPS = {
    "of all kinds, not divisible by the chunk": (RNG.integers(0, 400, 5 * CHUNK + 37), 400),
    "half of them padding": (RNG.integers(0, 300, 3000) * RNG.integers(0, 2, 3000), 300),
    "all equal": (np.full(3 * CHUNK + 1, 7), 9),
    "all different": (RNG.permutation(2 * CHUNK), 2 * CHUNK),
    "one chunk of each": (np.repeat([3, 0, 2], CHUNK), 4),
    "one, the last row of the table": (np.array([2]), 3),
}


def arrays(name):
    ids, num_ids = LOOKUPS[name]
    rng = np.random.default_rng(2)
    rows, total = (rng.normal(size=[count, H]).astype(np.float32) for count in (len(ids), num_ids))
    return total, ids, rows


def compiled(function, *inputs):
    return tf.function(function, jit_compile=True, autograph=False)(*map(tf.constant, inputs))


def add(total, ids, rows):
    return add_in_fixed_order(total, tf.IndexedSlices(rows, ids))


@functools.cache
def sums(name):
    """Both parts, as NumPy's arrays of ids and rows."""
    total, ids, rows = arrays(name)
    parts = compiled(lambda ids, rows: sums_in_fixed_order(ids, rows, len(total)), ids, rows)
    return [(part.ids_R.numpy(), part.rows_RxH.numpy()) for part in parts]


def scatter(total, ids, rows, order):
    """What a GPU's atomic operations make of it if they come in this order; ids outside of the table are left out."""
    total, order = total.copy(), order[ids[order] < len(total)]
    np.add.at(total, ids[order], rows[order])
    return total


def orders(count):
    rng = np.random.default_rng(3)
    return [np.arange(count), np.arange(count)[::-1], *(rng.permutation(count) for _ in range(4))]


@pytest.mark.gpu
@pytest.mark.computes
@pytest.mark.parametrize("name", LOOKUPS)
def test_the_sums_are_right(name):
    """Also with TF32, which rounds the factors of a matmul."""
    total, ids, rows = arrays(name)
    expected = total.astype(np.float64)
    np.add.at(expected, ids, rows.astype(np.float64))
    tf.config.experimental.enable_tensor_float_32_execution(True)
    found = compiled(add, total, ids, rows)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=5e-7 * np.sqrt(len(ids)))


@pytest.mark.parametrize("name", LOOKUPS)
def test_the_order_of_the_additions_changes_no_bit(name):
    """As it does if the rows themselves are scattered: a part has no more than one sum of an id."""
    total, ids, rows = arrays(name)
    first, second = sums(name)
    for part, _ in (first, second):
        in_table = part[part < len(total)]
        assert len(in_table) == len(set(in_table))

    def in_turn(number):
        part = scatter(total, *first, orders(len(first[0]))[number])
        return scatter(part, *second, orders(len(second[0]))[number]).tobytes()

    assert len({in_turn(number) for number in range(len(orders(1)))}) == 1
    if len(ids) > len(set(ids)):
        assert len({scatter(total, ids, rows, order).tobytes() for order in orders(len(ids))}) > 1


@pytest.mark.gpu
def test_a_device_gives_the_same_bits_each_time():
    rng = np.random.default_rng(4)
    ids = rng.integers(0, 1000, 20_000) * rng.integers(0, 2, 20_000)
    inputs = rng.normal(size=[1000, 64]).astype(np.float32), ids, rng.normal(size=[20_000, 64]).astype(np.float32)
    function = tf.function(add, jit_compile=True, autograph=False)
    assert len({function(*map(tf.constant, inputs)).numpy().tobytes() for _ in range(10)}) == 1


def test_the_matmuls_are_in_float32_whatever_tf32_is_set_to():
    tf.config.experimental.enable_tensor_float_32_execution(True)
    _, ids, rows = arrays("half of them padding")
    function = tf.function(lambda ids, rows: sums_in_fixed_order(ids, rows, 300), jit_compile=True, autograph=False)
    program = function.experimental_get_compiler_ir(tf.constant(ids), tf.constant(rows))(stage="hlo")
    dots = [line for line in program.splitlines() if " dot(" in line]
    assert len(dots) == 2 and all("operand_precision={highest,highest}" in line for line in dots)
