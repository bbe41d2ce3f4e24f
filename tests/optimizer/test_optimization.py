"""Optimisers against float64 references written here, and against tensorflow-addons' LAMB."""

import collections
import inspect
import json
import math
import random
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.bert_config import BertConfig
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.optimizer import groups
from bert_tf.optimizer.keras_optimizers import LARS, NVLAMB, AdamW, make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.optimizer.schedule import WarmupPolynomialDecay
from bert_tf.optimizer.update_rules import excluded_from_weight_decay, gradient_norms
from bert_tf.optimizer.update_rules import norm as tensor_norm
from bert_tf.optimizer_registry import OPTIMIZERS
from bert_tf.settings.declaration import find_setting
from bert_tf.settings.training import PretrainingConfig

BETA_1, BETA_2, EPSILON, DECAY = 0.9, 0.999, 1e-6, 0.01
PEAKS = {NVLAMB: 0.02, AdamW: 0.02, LARS: 20.0}  # learning rates
# Name -> shape. Two decay, two do not; "zeros" and the bias start at 0, so their first ratio is 1.
SHAPES = {"block/kernel": (6, 8), "block/bias": (8,), "block/LayerNorm/gamma": (8,), "zeros/kernel": (6, 8)}


def initial_values():
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 0.5, shape) for name, shape in SHAPES.items()}
    values["block/bias"][:] = 0
    values["zeros/kernel"][:] = 0
    return {name: value.astype(np.float32) for name, value in values.items()}


def gradient_sequence(num_updates=5):
    """Norms on both sides of 1, so that clipping acts on some updates and not on others."""
    rng = np.random.default_rng(1)
    return [
        {name: rng.normal(0, scale, shape).astype(np.float32) for name, shape in SHAPES.items()}
        for scale in (0.01, 3.0, 0.05, 0.5, 0.02)[:num_updates]
    ]


def make_variables():
    return [tf.Variable(value, name=name) for name, value in initial_values().items()]


def decays(name):
    return name in ("block/kernel", "zeros/kernel")


def clip(gradients):
    norm = np.sqrt(sum((gradient.astype(np.float64) ** 2).sum() for gradient in gradients.values()))
    return {name: gradient.astype(np.float64) / max(norm, 1.0) for name, gradient in gradients.items()}


def reference(make, gradients, adapt_excluded=True, bias_correction=True):
    """Float64 weights and moments by name after the updates; written from the papers' formulas."""
    w = {name: value.astype(np.float64) for name, value in initial_values().items()}
    slots = collections.defaultdict(float)
    for t, raw in enumerate(gradients, start=1):
        rate = PEAKS[make] * ((t - 1) / 2 if t <= 2 else (1 - (t - 1) / 10) ** 0.5)  # that of `make_schedule`
        for name, g in clip(raw).items():
            decay, m, v, a = DECAY if decays(name) else 0.0, f"{name}/adam_m", f"{name}/adam_v", f"{name}/momentum"
            norm = np.linalg.norm(w[name])
            if make is LARS:
                trust = 0.001 * norm / (np.linalg.norm(g) + decay * norm) if decays(name) and norm > 0 else 1.0
                slots[a] = 0.9 * slots[a] + rate * trust * (g + decay * w[name])
                w[name] = w[name] - slots[a]
                continue
            slots[m] = BETA_1 * slots[m] + (1 - BETA_1) * g
            slots[v] = BETA_2 * slots[v] + (1 - BETA_2) * g**2
            first, second = (1 - BETA_1**t, 1 - BETA_2**t) if bias_correction else (1, 1)
            if make is NVLAMB:
                u = slots[m] / first / (np.sqrt(slots[v] / second) + EPSILON)
            else:  # epsilon is added before the correction
                u = np.sqrt(second) / first * slots[m] / (np.sqrt(slots[v]) + EPSILON)
            u = u + decay * w[name]
            adapts = make is NVLAMB and (adapt_excluded or decays(name)) and norm > 0
            w[name] = w[name] - rate * (norm / np.linalg.norm(u) if adapts else 1.0) * u
    return w | slots


def run_updates(optimizer, gradients, variables=None, accumulation=4, loss_scale=1024.0, poisoned=()):
    """Applies `gradients` as the training step does: summed, scaled, clipped inside the kernel."""
    variables = variables or make_variables()
    optimizer.build(variables)

    @tf.function
    def update(scaled):
        unscale = 1.0 / (accumulation * loss_scale)
        norm = gradient_norms(scaled)[0] * unscale
        optimizer.apply_update(scaled, variables, unscale / tf.maximum(norm, 1.0), tf.math.is_finite(norm))

    for number, gradient in enumerate(gradients):
        scaled = [value * np.float32(accumulation * loss_scale) for value in gradient.values()]
        if number in poisoned:
            scaled[1] = np.full_like(scaled[1], np.nan)
        update([tf.constant(value) for value in scaled])
    return variables


@pytest.fixture
def compiled(request, monkeypatch):
    """Of an optimizer; "in groups": several variables in one program as on a GPU, else each by itself."""
    if request.param == "in groups":
        monkeypatch.setattr(groups, "_has_gpu", lambda: True)
    return bool(request.param)


def make_schedule(make=NVLAMB):
    return WarmupPolynomialDecay(PEAKS[make], 2, 10, 0.5)


@pytest.mark.parametrize("compiled", [True, False, "in groups"], indirect=True)
@pytest.mark.parametrize(
    "make, options",
    [
        (NVLAMB, {}),
        (NVLAMB, {"adapt_excluded": False}),
        (AdamW, {"bias_correction": False}),
        (AdamW, {"bias_correction": True}),
        (LARS, {}),
    ],
)
def test_weights_and_moments_equal_the_reference(make, options, compiled):
    """And slots have the names of Google's checkpoints."""
    optimizer, variables = make(make_schedule(make), compiled=compiled, **options), make_variables()
    run_updates(optimizer, gradient_sequence(), variables)
    assert_equal_to_the_reference(make, options, optimizer, variables)


@pytest.mark.parametrize("make", [NVLAMB, AdamW, LARS])
def test_kerass_apply_gradients_makes_the_same_updates(make):
    optimizer, variables = make(make_schedule(make)), make_variables()
    for gradients in gradient_sequence():
        optimizer.apply_gradients(zip([tf.constant(value) for value in gradients.values()], variables))
    assert_equal_to_the_reference(make, {"bias_correction": False} if make is AdamW else {}, optimizer, variables)


def assert_equal_to_the_reference(make, options, optimizer, variables):
    expected, found = reference(make, gradient_sequence(), **options), [*variables, *optimizer.slot_variables]
    assert {each.name.split(":")[0] for each in found} == set(expected) and int(optimizer.iterations) == 5
    for each in found:
        name = each.name.split(":")[0]
        atol = 1e-7 if name in SHAPES else 1e-10 if name.endswith("adam_v") else 1e-8
        np.testing.assert_allclose(each.numpy(), expected[name], rtol=2e-6, atol=atol, err_msg=name)


def test_bias_corrected_adam_is_keras_also_where_gradients_are_as_small_as_epsilon():
    """There, epsilon on the other side of the correction makes the change up to five times as large."""
    start = np.random.default_rng(2).normal(0, 1e-4, [6, 8]).astype(np.float32)
    theirs, mine = (tf.Variable(start, name="block/kernel") for _ in range(2))
    reference = keras.optimizers.AdamW(1e-4, weight_decay=DECAY, epsilon=EPSILON, jit_compile=False)
    ours = AdamW(1e-4, bias_correction=True)
    for gradient in np.random.default_rng(3).normal(0, 1e-6, [20, 6, 8]).astype(np.float32):
        reference.apply_gradients([(tf.constant(gradient), theirs)])
        ours.apply_gradients([(tf.constant(gradient), mine)])
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-4 * np.abs(theirs - start).max())


@pytest.mark.parametrize(
    "name, value, expected", [("kernel", 0.0, 0.0), ("kernel", 1.0, 0.9), ("LayerNorm/gamma", 1.0, 1.0)]
)
def test_a_gradient_of_zero_is_no_division_by_zero(name, value, expected):
    """Without decay the update is zero, too, and so is its norm."""
    optimizer, variable = NVLAMB(tf.constant(0.1)), tf.Variable([value] * 4, name=name)
    optimizer.build([variable])
    optimizer.apply_update([tf.zeros([4])], [variable], tf.constant(1.0), tf.constant(True))
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("adapt_excluded", [True, False])
def test_nvlamb_equals_tensorflow_addons(adapt_excluded):
    tfa = pytest.importorskip("tensorflow_addons")
    theirs = tfa.optimizers.LAMB(
        0.02,
        beta_1=BETA_1,
        beta_2=BETA_2,
        epsilon=EPSILON,
        weight_decay=DECAY,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        exclude_from_layer_adaptation=["no such name"] if adapt_excluded else None,
    )
    ours = NVLAMB(0.02, adapt_excluded=adapt_excluded)
    their_variables = make_variables()
    for gradients in gradient_sequence():
        clipped, _ = tf.clip_by_global_norm([tf.constant(value) for value in gradients.values()], 1.0)
        theirs.apply_gradients(zip(clipped, their_variables))
    for mine, other in zip(run_updates(ours, gradient_sequence()), their_variables):
        # Their 1 - 0.999^t is computed in float32, good to 5 digits.
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=5e-5, atol=2e-6, err_msg=mine.name)


@pytest.mark.parametrize(
    "make, compiled",
    [(NVLAMB, True), (NVLAMB, False), (NVLAMB, "in groups"), (AdamW, True), (LARS, True)],
    indirect=["compiled"],
)
def test_non_finite_gradients_leave_every_bit(make, compiled):
    """An optimizer that met bad gradients in between ends with the bits of one that never did."""
    gradients = gradient_sequence(3)
    clean, met = make(make_schedule(), compiled=compiled), make(make_schedule(), compiled=compiled)
    expected = run_updates(clean, gradients)
    found = run_updates(met, [gradients[0], gradients[2], gradients[1], gradients[0], gradients[2]], poisoned=(1, 3))
    assert int(met.iterations) == 3 and bits(found, met) == bits(expected, clean)


def test_groups(monkeypatch):
    """Equal keys go together, in groups of at most 16 of nearly equal sizes; results come in the order of the keys."""
    keys = [*["a"] * 20, "b", *["a"] * 4, "b"]
    called = []

    def call(numbers):
        called.append(numbers)
        return tf.constant([[10.0 * number] for number in numbers])

    for has_gpu, sizes in ((False, [1] * 26), (True, [12, 12, 2])):
        monkeypatch.setattr(groups, "_has_gpu", lambda has_gpu=has_gpu: has_gpu)
        called.clear()
        assert groups.call_in_groups(keys, call).numpy().tolist() == [[10.0 * number] for number in range(26)]
        assert [len(group) for group in called] == sizes
        assert all(len({keys[number] for number in group}) == 1 for group in called)


def bits(variables, optimizer):
    return [variable.numpy().tobytes() for variable in (*variables, *optimizer.slot_variables)]


@pytest.mark.parametrize("compiled", [True, "in groups"], indirect=True)
def test_an_update_tells_its_norms(compiled):
    """Of each variable before, of what is subtracted, and the trust ratio in that."""
    for optimizer in (make(0.1, compiled=compiled) for make in (NVLAMB, AdamW, LARS)):
        variables = make_variables()
        optimizer.build(variables)
        before = [variable.numpy() for variable in variables]
        gradients = [tf.constant(value) for value in gradient_sequence(1)[0].values()]
        rows = optimizer.apply_update(gradients, variables, tf.constant(1.0), tf.constant(True)).numpy()
        for variable, old, (w_norm, change_norm, ratio) in zip(variables, before, rows):
            np.testing.assert_allclose(w_norm, np.linalg.norm(old), rtol=1e-6)
            np.testing.assert_allclose(change_norm, np.linalg.norm(old - variable.numpy()), rtol=1e-3)
            if isinstance(optimizer, NVLAMB):
                expected = change_norm / 0.1 if w_norm == 0 else w_norm
                np.testing.assert_allclose(change_norm, 0.1 * expected, rtol=1e-5)
                assert (ratio == 1) == (w_norm == 0)
            elif isinstance(optimizer, AdamW):
                assert ratio == 1


def test_biases_and_norms_do_not_decay():
    """The variables are those of Google's checkpoints: tests/interchange/test_google.py."""
    config = BertConfig(16, 8, 2, 2, 16, max_position_embeddings=8)
    models = PretrainingModel(config), SpanModel(config)
    names = {variable.name.split(":")[0] for model in models for variable in model.variables}
    excluded = {name for name in names if re.search("(bias|gamma|beta)$", name)}
    assert {name for name in names if excluded_from_weight_decay(name)} == excluded and len(excluded) > 20
    of_keras = ("layer_normalization_1/gamma:0", "dense/bias:0", "dense/kernel:0")
    assert [excluded_from_weight_decay(name) for name in of_keras] == [True, True, False]


@pytest.mark.parametrize("make, jit_compile", [(NVLAMB, True), (AdamW, False)])
def test_fit(make, jit_compile):
    """Of a table, too, whose gradients Keras passes as IndexedSlices; a trust ratio needs the whole of it."""
    random.seed(0)  # Keras draws from it; with its own seed the one of TensorFlow 2.17 fails on Python 3.12
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(10, 8), layers.GlobalAveragePooling1D(), layers.LayerNormalization(), layers.Dense(1)]
    )
    optimizer = make(WarmupPolynomialDecay(0.05, 3, 40))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    pairs = np.arange(20).reshape(10, 2) % 10
    history = model.fit(pairs, np.linspace(0, 3, 10), batch_size=10, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0] and int(optimizer.iterations) == 20
    assert {f"{variable.name.split(':')[0]}/adam_{slot}:0" for variable in model.variables for slot in "mv"} == {
        slot.name for slot in optimizer.slot_variables
    }


@pytest.mark.parametrize("make", [NVLAMB, AdamW, LARS])
def test_a_mirrored_update_is_that_of_one_device(make):
    """Layers of one shape share a compiled update, but no moments."""
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=[32, 8]).astype(np.float32), rng.normal(size=[32, 8]).astype(np.float32)

    def losses(strategy):
        with strategy.scope():
            starts = [keras.initializers.GlorotUniform(seed) for seed in range(3)]
            model = keras.Sequential([keras.layers.Dense(8, "tanh", kernel_initializer=start) for start in starts])
            model.compile(make(0.05), "mse")
        return model.fit(features, targets, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"]

    assert losses(tf.distribute.MirroredStrategy(["CPU:0"])) == pytest.approx(
        losses(tf.distribute.get_strategy()), 1e-5
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        NVLAMB(WarmupPolynomialDecay(0.1, 2, 8, 0.5), beta_1=0.8, weight_decay=0.02, adapt_excluded=False),
        AdamW(0.1, beta_2=0.9, epsilon=1e-4, bias_correction=True, global_clipnorm=None, compiled=False),
        LARS(2.0, momentum=0.5, trust_coefficient=0.01, weight_decay=0.02),
    ],
)
def test_configuration_survives(optimizer):
    schedules = {"WarmupPolynomialDecay": WarmupPolynomialDecay}
    again = type(optimizer).from_config(optimizer.get_config(), custom_objects=schedules)
    assert again.get_config() == optimizer.get_config()
    for name in (*optimizer.config_names, "weight_decay_rate", "global_clipnorm", "compiled"):
        assert getattr(again, name) == getattr(optimizer, name), name


def schedule(**changes):
    return WarmupPolynomialDecay(**{**dict(peak_learning_rate=1.0, warmup_steps=0, total_steps=10), **changes})


@pytest.mark.parametrize(
    "make, name, value",
    [
        (NVLAMB, "beta_1", 1.0),
        (NVLAMB, "beta_2", 0.0),
        *((make, "epsilon", 0.0) for make in (NVLAMB, AdamW)),  # 0/0 where there is no gradient
        (NVLAMB, "weight_decay", -0.1),
        (NVLAMB, "global_clipnorm", math.nan),
        (LARS, "momentum", 1.0),
        (LARS, "trust_coefficient", 0.0),
        *((make, "learning_rate", rate) for make in (NVLAMB, AdamW, LARS) for rate in (-1e-3, math.nan, math.inf)),
        *((schedule, "peak_learning_rate", rate) for rate in (-1e-3, math.nan)),
        *((schedule, name, steps) for name in ("warmup_steps", "decay_start") for steps in (-1, 11)),
        (schedule, "total_steps", 0),
    ],
)
def test_impossible_arguments_are_refused_by_name(make, name, value):
    with pytest.raises(ValueError, match=f"^{name}={value}: must lie in "):
        make(**{name: value})


@pytest.mark.parametrize(
    "warmup, total, drop", [(2000, 7038, 0.8461), (200, 1564, 0.9339), (2133, 7506, 0.8461), (213, 1668, 0.9340)]
)
def test_published_lamb_schedules(warmup, total, drop):
    rate = make_optimizer("lamb", 6e-3, warmup, total)._learning_rate
    assert float(rate(0)) == 0
    np.testing.assert_allclose(rate(warmup - 1), 6e-3 * (warmup - 1) / warmup, rtol=1e-6)
    assert round(float(rate(warmup)) / 6e-3, 4) == drop
    np.testing.assert_allclose(rate(total - 1), 6e-3 * (1 / total) ** 0.5, rtol=1e-5)
    assert float(rate(total)) == 0 == float(rate(total + 5))


@pytest.mark.parametrize(
    "name, arguments, rates",
    [
        ("lamb", (1.0, 100, 1000, 100), {99: 0.99, 100: 1, 101: (899 / 900) ** 0.5}),
        ("adamw", (1.0, 0, 10), {0: 1, 10: 0}),
        ("adamw", (1.0, 10, 10, 10), {9: 0.9, 10: 0}),
        ("adamw", (1.0, 10, 100, 100), {5: 0.5, 10: 1, 99: 1, 100: 0}),
        ("adamw", (1.0, 10, 100, 80), {5: 0.5, 10: 1, 80: 1, 90: 0.5, 100: 0}),
        ("adamw", (1e-4, 10, 100, 10), {9: 9e-5, 10: 1e-4, 50: 5.5555556e-5}),  # as NVIDIA's TF1 code
        ("adamw", (1e-4, 10, 100), {9: 9e-5, 10: 9e-5, 50: 5e-5}),  # with the step of Google's first code
    ],
)
def test_schedules(name, arguments, rates):
    rate = make_optimizer(name, *arguments)._learning_rate
    np.testing.assert_allclose([rate(step) for step in rates], list(rates.values()), rtol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_entries_describe_the_classes(name):
    entry, made = OPTIMIZERS[name], make_optimizer(name, 0.1, 1, 10)
    assert type(made).__name__ == entry.class_name and made.slot_names == entry.slots
    assert set(entry.options.values()) <= set(made.config_names)
    assert set(entry.options) <= set(inspect.signature(PretrainingConfig).parameters)
    assert find_setting("optimizer_type", PretrainingConfig).choices == tuple(OPTIMIZERS)


def test_norms_do_not_stagnate_over_large_tables():
    """Adding 2^25 ones one after the other in float32 stops at 2^24."""
    ones = tf.ones([2**15, 2**10])
    expected = 2**12.5
    for norm in (tensor_norm, tf.function(tensor_norm, jit_compile=True), lambda x: gradient_norms([x])[0]):
        np.testing.assert_allclose(float(norm(ones)), expected, rtol=1e-6)


GOOD, BAD = True, False


@pytest.mark.parametrize(
    "options, good_before, outcomes, expected",
    [
        ({"growth_interval": 3}, 2, [BAD, GOOD, GOOD], (2**14, 2, 0)),  # counting starts again
        ({"growth_interval": 3}, 2, [BAD, GOOD, GOOD, GOOD], (2**15, 0, 0)),
        ({}, 1998, [GOOD], (2**15, 1999, 0)),  # the recipe's interval
        ({}, 1998, [GOOD] * 2, (2**16, 0, 0)),
        ({}, 0, [BAD] * 20, (1, 0, 20)),
        ({"growth_interval": 1}, 0, [GOOD] * 20, (2**24, 0, 0)),
        ({}, 0, [BAD, BAD, GOOD, BAD], (2**12, 0, 1)),
        ({"enabled": False}, 1999, [GOOD, BAD, BAD], (1, 1999, 2)),  # skips are counted all the same
    ],
)
def test_loss_scale(options, good_before, outcomes, expected):
    """And its state survives in a checkpoint."""
    loss_scale, again = LossScale(**options), LossScale(**options)
    loss_scale.good_updates.assign(good_before)
    update = tf.function(loss_scale.update)
    for outcome in outcomes:
        update(tf.constant(outcome))
    assert loss_scale.state() == dict(zip(("scale", "good_updates", "consecutive_skips"), expected))
    assert loss_scale.num_consecutive_skips() == expected[-1]
    again.restore(json.loads(json.dumps(loss_scale.state())))
    assert again.state() == loss_scale.state()
