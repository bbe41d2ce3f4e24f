"""The model's own contracts; parity with an independent implementation is in test_model_parity."""

import gc
import warnings

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.model.backends import Plain, make_backend
from bert_tf.model.encoder import BertEncoder, first_positions
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.optimizer.keras_optimizers import NVLAMB
from bert_tf.optimizer.schedule import WarmupPolynomialDecay
from tests.small_models import small_config

CONFIG = small_config(layers=1, positions=24)


def make_features():
    rng = np.random.default_rng(0)
    mask = (np.arange(16) < rng.integers(8, 17, [4, 1])).astype(np.int32)
    return {
        "input_ids": tf.constant(rng.integers(5, 101, [4, 16]) * mask, tf.int32),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.constant((np.arange(16) > 5) * mask, tf.int32),
        "masked_lm_positions": tf.constant(rng.integers(1, 8, [4, 3]), tf.int32),
    }


@pytest.mark.parametrize(
    "options, packed",
    [
        (dict(scope="off", recompute=True), True),
        (dict(scope="blocks"), False),
        (dict(scope="step", for_gpu=True), True),
    ],
)
def test_states_at_some_positions_are_those_of_a_whole_layer(options, packed):
    """With dropout on: a layer that computes some positions only draws the same masks."""
    features, encoder = make_features(), BertEncoder(CONFIG, make_backend(**options), seed=1)
    masked = features["masked_lm_positions"]
    if packed:
        numbers = np.repeat([[1] * 7 + [2] * 5 + [0] * 4], 4, axis=0)
        features |= {"instance_numbers": tf.constant(numbers), "cls_positions": tf.constant([[0, 7]] * 4)}
    first = first_positions(features)
    rng = np.random.default_rng(1)
    factors = [tf.constant(rng.normal(size=[*each.shape, 32]), tf.float32) for each in (masked, first)]

    def run(only_these):
        dropout = DropoutKey(tf.constant(update_key(1, 2)), tf.constant(0, tf.int64))
        with tf.GradientTape() as tape:
            if only_these:
                found = encoder.states_at(features, masked, first, dropout=dropout)
            else:
                states = encoder.hidden_states(features, dropout)[-1]
                found = [tf.gather(states, each, batch_dims=1) for each in (masked, first)]
            loss = sum(tf.reduce_sum(each * factor) for each, factor in zip(found, factors))
        used = [each for each in encoder.trainable_variables if "pooler" not in each.name]
        return found, [tf.convert_to_tensor(each) for each in tape.gradient(loss, used)]

    compiled = tf.function(run, jit_compile=options["scope"] == "step" or None, autograph=False)
    for seen, expected in zip(*(tf.nest.flatten(compiled(only_these)) for only_these in (True, False))):
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-4)


def make_inputs(**options):
    """Keras's inputs of the encoder, and features for them."""
    features = {name: values for name, values in make_features().items() if name != "masked_lm_positions"}
    return {name: keras.Input([16], dtype=tf.int32, name=name, **options) for name in features}, features


def test_usable_as_keras_model_summary_functional_and_saved(tmp_path):
    encoder = BertEncoder(CONFIG, make_backend("blocks"))
    inputs, features = make_inputs(batch_size=4)
    sequence, pooled = encoder(inputs)
    model = keras.Model(inputs, {"sequence": sequence, "pooled": pooled})
    expected = encoder(features)
    np.testing.assert_allclose(model(features)["sequence"], expected[0], atol=1e-6)
    model.summary(print_fn=lambda line: None)
    model.save(tmp_path / "saved", include_optimizer=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    answers = loaded.signatures["serving_default"](**features).values()
    pooled = next(answer for answer in answers if answer.shape == expected[1].shape)
    np.testing.assert_allclose(pooled, expected[1], atol=1e-6)


def test_rows_of_any_length():
    """Keras makes the length of its second shape a variable one."""
    encoder, rng = BertEncoder(CONFIG), np.random.default_rng(0)
    for length in (8, 12, 20):
        ids = rng.integers(0, CONFIG.vocab_size, [3, length]).astype(np.int32)
        features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        for found, expected in zip(encoder.predict(features, verbose=0), encoder(features)):
            np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="rows of 25 tokens, but the model has 24 positions"):
        encoder({name: np.zeros([1, 25], np.int32) for name in features})
    for wrong in ({"input_ids": ids, "attention_mask": ids}, ids):
        with pytest.raises(ValueError, match="a dictionary of input_ids, input_mask and segment_ids, .* not "):
            encoder(wrong)


def test_inputs_of_another_type_or_of_no_known_shape_are_named():
    encoder, features = BertEncoder(CONFIG), make_inputs()[1]
    for wrong, words in (
        (tf.cast(features["input_ids"], tf.float32), r"input_ids float32 \(4, 16\)"),  # of keras.Input without a dtype
        (tf.RaggedTensor.from_tensor(features["input_ids"]), "input_ids RaggedTensor"),
    ):
        with pytest.raises(ValueError, match=f"int32 tensors of one shape, .* not {words}"):
            encoder({**features, "input_ids": wrong})
    spec = tf.TensorSpec(None, tf.int32)  # what tf.numpy_function gives in a pipeline
    with pytest.raises(ValueError, match="int32 tensors of one shape, .* not input_ids int32 <unknown>"):
        tf.function(encoder).get_concrete_function(dict.fromkeys(features, spec))


@pytest.mark.parametrize("name", ["input_ids", "segment_ids"])
def test_ids_beyond_a_table_are_an_error(name):
    """As in a layer of Keras: on a CPU, where no program of XLA computes them."""
    encoder, features = BertEncoder(CONFIG), make_inputs()[1]
    features[name] += CONFIG.padded_vocab_size
    for call in (encoder, tf.function(encoder)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not in "):
            call(features)


def test_keras_3_is_told_that_the_encoder_is_of_keras_2():
    """With TensorFlow 2.16 and later; earlier ones have no Keras 3."""
    keras_3 = pytest.importorskip("keras", "3")
    encoder, features = BertEncoder(CONFIG), make_inputs()[1]
    with pytest.raises(ValueError, match="the encoder is a model of Keras 2, and these are inputs of Keras 3"):
        encoder({name: keras_3.Input([16], dtype="int32") for name in features})
    call = keras_3.layers.Lambda(lambda given: encoder(given)[1])
    with pytest.warns(UserWarning, match="it neither trains nor saves the encoder's weights"):
        call(features)
    encoder.trainable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(features)


def test_a_model_that_keras_saves_goes_on_when_loaded(tmp_path):
    inputs, features = make_inputs()
    encoder = BertEncoder(CONFIG)
    lines: list[str] = []
    encoder.summary(print_fn=lines.append)
    assert "unused" not in "".join(lines)  # which it called each layer before the first call
    encoder.encoder_layers[0].trainable = False
    model = keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)[1]))
    model.compile(NVLAMB(WarmupPolynomialDecay(1e-2, 1, 9), compiled=False), "mse")
    targets = tf.ones([4, 2])
    model.train_on_batch(features, targets)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    encoder.trainable = False
    copy = keras.models.clone_model(model)
    assert [type(each.layers[-2]) for each in (loaded, copy)] == [BertEncoder] * 2
    assert not copy.layers[-2].trainable_variables
    for _ in range(2):
        assert loaded.train_on_batch(features, targets) == model.train_on_batch(features, targets)


def count_alive(kind):
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("recompute", [False, True])
def test_of_a_model_that_was_trained_and_dropped_no_graph_is_left(recompute):
    """A notebook's cell may be run fifty times; a graph holds the memory of the variables that it reads."""

    def train():
        inputs, features = make_inputs(batch_size=4)
        model = keras.Model(inputs, keras.layers.Dense(2)(BertEncoder(CONFIG, Plain(recompute=recompute))(inputs)[1]))
        model.compile("sgd", "mse")
        model.train_on_batch(features, tf.ones([4, 2]))

    kind = type(tf.function(lambda: None).get_concrete_function().graph)
    counts = []
    for _ in range(3):
        train()
        counts.append(count_alive(kind))
    assert counts[1] == counts[2]


def test_calls_of_an_encoder_leave_no_tensor():
    encoder, features = BertEncoder(CONFIG), make_inputs()[1]
    counts = []
    for _ in range(3):
        encoder(features)
        counts.append(count_alive(type(tf.ones([]))))
    assert counts[1] == counts[2]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_a_policy_of_keras_is_that_of_other_layers(policy):
    features = make_features()
    expected = BertEncoder(CONFIG)(features)
    keras.mixed_precision.set_global_policy(policy)
    try:
        encoder = BertEncoder(CONFIG)
        given = encoder(features)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert {each.dtype for each in (*given, *encoder.variables)} == {tf.float32}
    for seen, right in zip(given, expected):
        np.testing.assert_array_equal(seen, right)
