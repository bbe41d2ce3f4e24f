"""Optimisers against float64 references written here, and against tensorflow-addons' LAMB."""

import math

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.model.heads import PretrainingModel
from bert_tf.optimizer.keras_optimizers import LARS, NVLAMB, AdamW, make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.optimizer.schedule import WarmupPolynomialDecay
from bert_tf.optimizer.update_rules import excluded_from_weight_decay, gradient_norms
from bert_tf.optimizer.update_rules import norm as tensor_norm

BETA_1, BETA_2, EPSILON, DECAY = 0.9, 0.999, 1e-6, 0.01
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


def reference(kind, rates, gradients, adapt_excluded=True, bias_correction=True):
    """Float64 weights and moments by name after the updates; written from the papers' formulas."""
    w = {name: value.astype(np.float64) for name, value in initial_values().items()}
    m = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    v = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for t, (rate, raw) in enumerate(zip(rates, gradients), start=1):
        for name, g in clip(raw).items():
            m[name] = BETA_1 * m[name] + (1 - BETA_1) * g
            v[name] = BETA_2 * v[name] + (1 - BETA_2) * g**2
            first, second = (1 - BETA_1**t, 1 - BETA_2**t) if bias_correction else (1, 1)
            if kind == "lamb":
                u = m[name] / first / (np.sqrt(v[name] / second) + EPSILON)
            else:  # epsilon is added before the correction
                u = np.sqrt(second) / first * m[name] / (np.sqrt(v[name]) + EPSILON)
            u = u + (DECAY if decays(name) else 0.0) * w[name]
            norms = np.linalg.norm(w[name]), np.linalg.norm(u)
            adapts = kind == "lamb" and (adapt_excluded or decays(name))
            ratio = norms[0] / norms[1] if adapts and min(norms) > 0 else 1.0
            w[name] = w[name] - rate * ratio * u
    return w, m, v


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


def assert_near_reference(optimizer, variables, expected, rtol=2e-6, atol=1e-7):
    weights, m, v = expected
    slots = {slot.name.split(":")[0]: slot.numpy() for slot in optimizer.slot_variables}
    for variable in variables:
        name = variable.name.split(":")[0]
        np.testing.assert_allclose(variable.numpy(), weights[name], rtol=rtol, atol=atol, err_msg=name)
        np.testing.assert_allclose(slots[f"{name}/adam_m"], m[name], rtol=rtol, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(slots[f"{name}/adam_v"], v[name], rtol=rtol, atol=1e-10, err_msg=name)


def make_schedule():
    return WarmupPolynomialDecay(0.02, 2, 10, 0.5)


def schedule_rates(num_updates):
    return [0.02 * t / 2 if t < 2 else 0.02 * (1 - t / 10) ** 0.5 for t in range(num_updates)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("adapt_excluded", [True, False])
def test_nvlamb_equals_the_reference(compiled, adapt_excluded):
    optimizer = NVLAMB(make_schedule(), adapt_excluded=adapt_excluded, compiled=compiled)
    variables = run_updates(optimizer, gradient_sequence())
    expected = reference("lamb", schedule_rates(5), gradient_sequence(), adapt_excluded)
    assert_near_reference(optimizer, variables, expected)
    assert int(optimizer.iterations) == 5


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_adamw_equals_the_reference(compiled, bias_correction):
    optimizer = AdamW(make_schedule(), bias_correction=bias_correction, compiled=compiled)
    variables = run_updates(optimizer, gradient_sequence())
    expected = reference("adamw", schedule_rates(5), gradient_sequence(), bias_correction=bias_correction)
    assert_near_reference(optimizer, variables, expected)


def test_the_default_adam_is_googles():
    assert AdamW(0.1).bias_correction is False


@pytest.mark.parametrize("compiled", [True, False])
def test_bias_corrected_adam_is_keras_also_where_gradients_are_as_small_as_epsilon(compiled):
    """There, epsilon on the other side of the correction makes the change up to five times as large."""
    start = np.random.default_rng(2).normal(0, 1e-4, [6, 8]).astype(np.float32)
    gradients = np.random.default_rng(3).normal(0, 1e-6, [20, 6, 8]).astype(np.float32)
    keras = tf.keras.optimizers.AdamW(1e-4, weight_decay=DECAY, epsilon=EPSILON, jit_compile=False)
    ours = AdamW(1e-4, bias_correction=True, compiled=compiled)
    theirs, mine = (tf.Variable(start, name="block/kernel") for _ in range(2))
    w, m, v = start.astype(np.float64), 0.0, 0.0
    for t, g in enumerate(gradients, 1):
        keras.apply_gradients([(tf.constant(g), theirs)])
        ours.apply_gradients([(tf.constant(g), mine)])
        g = g.astype(np.float64)
        m, v = BETA_1 * m + (1 - BETA_1) * g, BETA_2 * v + (1 - BETA_2) * g * g
        rate = 1e-4 * np.sqrt(1 - BETA_2**t) / (1 - BETA_1**t)
        w = w - 1e-4 * DECAY * w - rate * m / (np.sqrt(v) + EPSILON)
    change = np.abs(w - start).max()
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-4 * change)
    np.testing.assert_allclose(mine.numpy(), w, atol=1e-4 * change)


@pytest.mark.parametrize("kind, make", [("lamb", NVLAMB), ("adamw", AdamW)])
def test_keras_apply_gradients_equals_the_reference(kind, make):
    optimizer, variables = make(make_schedule()), make_variables()
    for gradients in gradient_sequence():
        optimizer.apply_gradients(zip([tf.constant(value) for value in gradients.values()], variables))
    expected = reference(kind, schedule_rates(5), gradient_sequence(), bias_correction=kind == "lamb")
    assert_near_reference(optimizer, variables, expected)


def test_zero_weights_and_zero_gradients_stay_zero():
    variable = tf.Variable(tf.zeros([4, 4]), name="kernel")
    optimizer = NVLAMB(0.1)
    optimizer.build([variable])
    optimizer.apply_update([tf.zeros([4, 4])], [variable], tf.constant(1.0), tf.constant(True))
    np.testing.assert_array_equal(variable.numpy(), np.zeros([4, 4]))


@pytest.mark.parametrize("name", ["kernel", "LayerNorm/gamma"])
def test_a_zero_gradient_is_no_division_by_zero(name):
    """Without decay the update is zero too, and so is its norm."""
    variable = tf.Variable(tf.ones([4]), name=name)
    optimizer = NVLAMB(0.1)
    optimizer.build([variable])
    optimizer.apply_update([tf.zeros([4])], [variable], tf.constant(1.0), tf.constant(True))
    np.testing.assert_allclose(variable.numpy(), 0.9 if name == "kernel" else 1.0, rtol=1e-6)


@pytest.mark.parametrize("compiled", [True, False])
def test_lars_equals_float64(compiled):
    """Weights and momenta after five updates, by the formulas of arXiv 1708.03888."""
    rates, momentum, trust = (0.5, 1.0, 2.0, 1.5, 1.0), 0.9, 0.001
    w = {name: value.astype(np.float64) for name, value in initial_values().items()}
    a = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay(list(range(4)), list(rates))
    optimizer = LARS(schedule, compiled=compiled)
    variables = run_updates(optimizer, gradient_sequence())
    for rate, raw in zip(rates, gradient_sequence()):
        for name, g in clip(raw).items():
            decay = DECAY if decays(name) else 0.0
            norms = np.linalg.norm(w[name]), np.linalg.norm(g)
            ratio = trust * norms[0] / (norms[1] + decay * norms[0]) if decays(name) and min(norms) > 0 else 1.0
            a[name] = momentum * a[name] + rate * ratio * (g + decay * w[name])
            w[name] = w[name] - a[name]
    slots = {slot.name.split(":")[0]: slot.numpy() for slot in optimizer.slot_variables}
    for variable in variables:
        name = variable.name.split(":")[0]
        np.testing.assert_allclose(variable.numpy(), w[name], rtol=2e-6, atol=1e-7, err_msg=name)
        np.testing.assert_allclose(slots[f"{name}/momentum"], a[name], rtol=2e-6, atol=1e-9, err_msg=name)


def test_zero_padding_rows_stay_zero():
    table = np.zeros([8, 4], np.float32)
    gradient = np.zeros([8, 4], np.float32)
    table[:5], gradient[:5] = 0.3, 0.7
    variable = tf.Variable(table, name="word_embeddings")
    optimizer = NVLAMB(0.1)
    optimizer.build([variable])
    for _ in range(3):
        optimizer.apply_update([tf.constant(gradient)], [variable], tf.constant(1.0), tf.constant(True))
    np.testing.assert_array_equal(variable.numpy()[5:], 0)
    assert (variable.numpy()[:5] != 0.3).all()


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


@pytest.mark.parametrize("make", [NVLAMB, AdamW, LARS])
def test_compiled_equals_plain_to_rounding(make):
    compiled, plain = (run_updates(make(make_schedule(), compiled=flag), gradient_sequence()) for flag in (True, False))
    for one, other in zip(compiled, plain):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("make", [NVLAMB, AdamW, LARS])
def test_non_finite_gradients_leave_every_bit(make, compiled):
    """An optimizer that met bad gradients in between ends with the bits of one that never did."""
    gradients = gradient_sequence(3)
    clean, met = make(make_schedule(), compiled=compiled), make(make_schedule(), compiled=compiled)
    expected = run_updates(clean, gradients)
    found = run_updates(met, [gradients[0], gradients[2], gradients[1], gradients[0], gradients[2]], poisoned=(1, 3))
    assert int(met.iterations) == 3
    for one, other in zip([*expected, *clean.slot_variables], [*found, *met.slot_variables]):
        assert one.numpy().tobytes() == other.numpy().tobytes()


def test_slots_resume_to_the_bit():
    gradients = gradient_sequence()
    whole = NVLAMB(make_schedule())
    expected = run_updates(whole, gradients)
    first = NVLAMB(make_schedule())
    weights = [variable.numpy() for variable in run_updates(first, gradients[:2])]
    slots = {slot.name: slot.numpy() for slot in first.slot_variables}

    second, variables = NVLAMB(make_schedule()), make_variables()
    second.build(variables)
    for variable, value in zip(variables, weights):
        variable.assign(value)
    for slot in second.slot_variables:
        slot.assign(slots[slot.name])
    second.iterations.assign(first.iterations)
    run_updates(second, gradients[2:], variables)
    for one, other in zip([*expected, *whole.slot_variables], [*variables, *second.slot_variables]):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert int(second.iterations) == 5


def test_slots_have_googles_names():
    optimizer = NVLAMB(0.1)
    optimizer.build(make_variables())
    names = [slot.name for slot in optimizer.slot_variables]
    assert names[:3] == ["block/kernel/adam_m:0", "block/kernel/adam_v:0", "block/bias/adam_m:0"]
    assert len(names) == 2 * len(SHAPES)


def test_two_functions_for_each_shape_traced_once(monkeypatch):
    functions, compile_one = [], NVLAMB._compiled
    monkeypatch.setattr(
        NVLAMB, "_compiled", lambda self, function: functions.append(compile_one(self, function)) or functions[-1]
    )
    run_updates(NVLAMB(0.1), gradient_sequence())
    assert len(functions) == 2 * len({(shape, decays(name)) for name, shape in SHAPES.items()})
    assert all(function.experimental_get_tracing_count() == 1 for function in functions)


def test_an_update_tells_its_norms():
    """Of each variable before, of what is subtracted, and the trust ratio in that."""
    for optimizer in (NVLAMB(0.1), AdamW(0.1), LARS(0.1)):
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


def test_decay_class_of_every_variable_of_a_model():
    config = BertConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
    )
    names = [variable.name.split(":")[0] for variable in PretrainingModel(config).variables]
    decayed = {
        "bert/embeddings/word_embeddings",
        "bert/embeddings/token_type_embeddings",
        "bert/embeddings/position_embeddings",
        "bert/pooler/dense/kernel",
        "cls/predictions/transform/dense/kernel",
        "cls/seq_relationship/output_weights",
    }
    excluded = {
        "bert/embeddings/LayerNorm/gamma",
        "bert/embeddings/LayerNorm/beta",
        "bert/pooler/dense/bias",
        "cls/predictions/transform/dense/bias",
        "cls/predictions/transform/LayerNorm/gamma",
        "cls/predictions/transform/LayerNorm/beta",
        "cls/predictions/output_bias",
        "cls/seq_relationship/output_bias",
    }
    for layer in ("bert/encoder/layer_0", "bert/encoder/layer_1"):
        for dense in (
            "attention/self/query",
            "attention/self/key",
            "attention/self/value",
            "attention/output/dense",
            "intermediate/dense",
            "output/dense",
        ):
            decayed.add(f"{layer}/{dense}/kernel")
            excluded.add(f"{layer}/{dense}/bias")
        for norm in ("attention/output/LayerNorm", "output/LayerNorm"):
            excluded |= {f"{layer}/{norm}/gamma", f"{layer}/{norm}/beta"}
    assert {name for name in names if not excluded_from_weight_decay(name)} == decayed
    assert {name for name in names if excluded_from_weight_decay(name)} == excluded
    assert len(names) == len(set(names))


def test_decay_class_of_keras_own_layers():
    assert excluded_from_weight_decay("layer_normalization_1/gamma:0")
    assert excluded_from_weight_decay("dense/bias:0")
    assert not excluded_from_weight_decay("dense/kernel:0")


def test_keras_exclusions_are_heeded():
    optimizer, variables = AdamW(0.1, weight_decay=0.5), make_variables()
    optimizer.exclude_from_weight_decay(var_names=["block/kernel"])
    zeros = [tf.zeros(variable.shape) for variable in variables]
    optimizer.apply_gradients(zip(zeros, variables))
    np.testing.assert_array_equal(variables[0].numpy(), initial_values()["block/kernel"])


@pytest.mark.parametrize("make, jit_compile", [(NVLAMB, True), (AdamW, False)])
def test_fit(make, jit_compile):
    """`fit` learns, and ends where GradientTape and apply_gradients end."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[64, 5]).astype(np.float32)
    y = x @ rng.normal(size=[5, 1]).astype(np.float32)

    def make_model():
        tf.keras.utils.set_random_seed(0)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(8, activation="tanh"),
                tf.keras.layers.LayerNormalization(),
                tf.keras.layers.Dense(1),
            ]
        )
        model.build([None, 5])
        return model

    model, optimizer = make_model(), make(WarmupPolynomialDecay(0.05, 3, 40))
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    history = model.fit(x, y, batch_size=64, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.7 * history[0]
    assert int(optimizer.iterations) == 20
    assert {f"{variable.name.split(':')[0]}/adam_{slot}:0" for variable in model.variables for slot in "mv"} == {
        slot.name for slot in optimizer.slot_variables
    }

    other, other_optimizer = make_model(), make(WarmupPolynomialDecay(0.05, 3, 40))
    for _ in range(20):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((other(x) - y) ** 2)
        other_optimizer.apply_gradients(zip(tape.gradient(loss, other.trainable_variables), other.trainable_variables))
    for one, another in zip(model.variables, other.variables):
        np.testing.assert_allclose(one.numpy(), another.numpy(), rtol=1e-3, atol=1e-4)


def test_fit_with_an_embedding():
    """Keras passes embedding gradients as IndexedSlices; a trust ratio needs the whole table."""
    model = tf.keras.Sequential(
        [tf.keras.layers.Embedding(10, 4), tf.keras.layers.GlobalAveragePooling1D(), tf.keras.layers.Dense(1)]
    )
    model.compile(NVLAMB(0.01), "mse")
    model.fit(np.arange(10).reshape(5, 2), np.ones([5, 1]), epochs=2, verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize(
    "optimizer",
    [
        NVLAMB(WarmupPolynomialDecay(0.1, 2, 8, 0.5), beta_1=0.8, weight_decay=0.02, adapt_excluded=False),
        AdamW(0.1, beta_2=0.9, epsilon=1e-4, bias_correction=True, global_clipnorm=None, compiled=False),
        LARS(2.0, momentum=0.5, trust_coefficient=0.01, weight_decay=0.02),
    ],
)
def test_configuration_survives(optimizer):
    again = type(optimizer).from_config(
        optimizer.get_config(), custom_objects={"WarmupPolynomialDecay": WarmupPolynomialDecay}
    )
    assert again.get_config() == optimizer.get_config()
    for name in (
        "beta_1",
        "beta_2",
        "epsilon",
        "weight_decay_rate",
        "global_clipnorm",
        "compiled",
        "adapt_excluded",
        "bias_correction",
        "momentum",
        "trust_coefficient",
    ):
        assert getattr(again, name, None) == getattr(optimizer, name, None), name


@pytest.mark.parametrize(
    "arguments",
    [{"beta_1": 1.0}, {"beta_2": 0.0}, {"epsilon": -1.0}, {"weight_decay": -0.1}, {"global_clipnorm": math.nan}],
)
def test_impossible_arguments_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        NVLAMB(0.1, **arguments)


@pytest.mark.parametrize("make", [NVLAMB, AdamW, LARS])
@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1e-3, np.float32("nan")])
def test_a_learning_rate_that_is_negative_or_not_finite_is_refused(make, rate):
    with pytest.raises(ValueError, match=f"^learning_rate={rate}: must lie in "):
        make(rate)
    with pytest.raises(ValueError, match=f"^peak_learning_rate={rate}: must lie in "):
        WarmupPolynomialDecay(rate, 0, 10)


@pytest.mark.parametrize("name", ["learning_rate", "beta_1", "epsilon", "weight_decay"])
@pytest.mark.parametrize("value", ["0.1", b"0.1", None])
def test_what_is_no_number_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"^{name}={value!r}: must be a number$"):
        NVLAMB(**{name: value})


def test_a_learning_rate_may_be_a_number_a_tensor_or_a_schedule():
    for rate in (0.25, np.float32(0.25), tf.constant(0.25), tf.Variable(0.25), WarmupPolynomialDecay(0.25, 0, 10)):
        np.testing.assert_allclose(NVLAMB(rate).current_learning_rate(), 0.25)
    assert float(NVLAMB(0).current_learning_rate()) == 0


@pytest.mark.parametrize("arguments", [{"momentum": 1.0}, {"trust_coefficient": 0.0}, {"weight_decay": -0.1}])
def test_impossible_arguments_of_lars_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        LARS(0.1, **arguments)


@pytest.mark.parametrize(
    "warmup, total, drop", [(2000, 7038, 0.8461), (200, 1564, 0.9339), (2133, 7506, 0.8461), (213, 1668, 0.9340)]
)
def test_published_lamb_schedules(warmup, total, drop):
    schedule = make_optimizer("lamb", 6e-3, warmup, total)._learning_rate
    assert float(schedule(0)) == 0
    np.testing.assert_allclose(schedule(warmup - 1), 6e-3 * (warmup - 1) / warmup, rtol=1e-6)
    assert round(float(schedule(warmup)) / 6e-3, 4) == drop
    np.testing.assert_allclose(schedule(total - 1), 6e-3 * (1 / total) ** 0.5, rtol=1e-5)
    assert float(schedule(total)) == 0 == float(schedule(total + 5))


def test_continuous_join_has_no_drop():
    schedule = WarmupPolynomialDecay(1.0, 100, 1000, 0.5, continuous_join=True)
    np.testing.assert_allclose(
        [schedule(50), schedule(99), schedule(100), schedule(101)], [0.5, 0.99, 1.0, (899 / 900) ** 0.5], rtol=1e-6
    )
    assert float(schedule(1000)) == 0


def test_adam_decays_linearly_and_joins_without_a_step():
    """As NVIDIA's TF1 code; with the step of Google's first code by an option."""
    schedule = make_optimizer("adamw", 1e-4, 10, 100)._learning_rate
    np.testing.assert_allclose([schedule(9), schedule(10), schedule(50)], [9e-5, 1e-4, 5.5555556e-5], rtol=1e-6)
    schedule = make_optimizer("adamw", 1e-4, 10, 100, continuous_join=False)._learning_rate
    np.testing.assert_allclose([schedule(9), schedule(10), schedule(50)], [9e-5, 9e-5, 5e-5], rtol=1e-6)


def test_schedule_without_warmup_and_with_nothing_else():
    assert float(WarmupPolynomialDecay(1.0, 0, 10)(0)) == 1.0
    all_warmup = WarmupPolynomialDecay(1.0, 10, 10, continuous_join=True)
    np.testing.assert_allclose([all_warmup(9), all_warmup(10)], [0.9, 0.0], rtol=1e-6)
    for steps in ((11, 10), (-1, 10), (0, 0)):
        with pytest.raises(ValueError, match="warmup_steps"):
            WarmupPolynomialDecay(1.0, *steps)


def test_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="'sgd'.*lamb, adamw"):
        make_optimizer("sgd", 0.1, 0, 1)


def test_current_learning_rate_follows_the_updates():
    optimizer = NVLAMB(make_schedule())
    assert float(optimizer.current_learning_rate()) == 0
    run_updates(optimizer, gradient_sequence())
    np.testing.assert_allclose(optimizer.current_learning_rate(), 0.02 * 0.5**0.5, rtol=1e-6)
    np.testing.assert_allclose(NVLAMB(0.25).current_learning_rate(), 0.25)


def test_norms_do_not_stagnate_over_large_tables():
    """Adding 2^25 ones one after the other in float32 stops at 2^24."""
    ones = tf.ones([2**15, 2**10])
    expected = 2**12.5
    for norm in (tensor_norm, tf.function(tensor_norm, jit_compile=True), lambda x: gradient_norms([x])[0]):
        np.testing.assert_allclose(float(norm(ones)), expected, rtol=1e-6)


def test_global_norm_sums_in_float32():
    gradients = [tf.fill([300], tf.constant(200.0, tf.float16)), tf.constant([3.0])]
    np.testing.assert_allclose(gradient_norms(gradients)[0], np.sqrt(300 * 200.0**2 + 9), rtol=1e-6)


def feed(loss_scale, outcomes):
    update = tf.function(loss_scale.update)
    for outcome in outcomes:
        update(tf.constant(outcome))
    return float(loss_scale.scale)


def test_loss_scale_doubles_after_enough_sound_updates():
    loss_scale = LossScale(growth_interval=3)
    assert feed(loss_scale, [True] * 2) == 2**15
    assert feed(loss_scale, [True]) == 2**16
    assert feed(loss_scale, [True] * 2) == 2**16
    assert feed(loss_scale, [False, True, True]) == 2**15  # counting starts again
    assert feed(loss_scale, [True]) == 2**16


def test_loss_scale_starts_and_grows_by_the_recipe():
    loss_scale = LossScale()
    assert float(loss_scale.scale) == 2**15
    loss_scale.good_updates.assign(1998)
    assert feed(loss_scale, [True]) == 2**15
    assert feed(loss_scale, [True]) == 2**16


def test_loss_scale_stays_within_bounds():
    assert feed(LossScale(), [False] * 20) == 1
    assert feed(LossScale(growth_interval=1), [True] * 20) == 2**24


def test_loss_scale_counts_skips_in_a_row():
    loss_scale = LossScale()
    feed(loss_scale, [False, False])
    assert loss_scale.num_consecutive_skips() == 2
    feed(loss_scale, [True, False])
    assert loss_scale.num_consecutive_skips() == 1


def test_disabled_loss_scale_is_one_and_counts_skips():
    loss_scale = LossScale(enabled=False)
    assert feed(loss_scale, [False, False]) == 1
    assert loss_scale.num_consecutive_skips() == 2
    loss_scale.good_updates.assign(1999)
    assert feed(loss_scale, [True]) == 1


@pytest.mark.parametrize(
    "outcomes, expected",
    [
        ([True, False, True, False, False], {"scale": 2.0**12, "good_updates": 0, "consecutive_skips": 2}),
        ([False, True, True], {"scale": 2.0**14, "good_updates": 2, "consecutive_skips": 0}),
    ],
)
def test_loss_scale_state_survives(outcomes, expected):
    loss_scale, again = LossScale(growth_interval=5), LossScale(growth_interval=5)
    feed(loss_scale, outcomes)
    again.restore(loss_scale.state())
    assert again.state() == loss_scale.state() == expected
