"""The model's own contracts; parity with an independent implementation is in test_model_parity."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.config import BertConfig
from bert_tf.model.blocks import Blocks, choose_scope
from bert_tf.model.elementwise import Dropout
from bert_tf.model.encoder import BertEncoder, first_positions
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.run.device import has_fast_bf16

CONFIG = BertConfig(
    vocab_size=101,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=24,
)


ONE_LAYER = dataclasses.replace(CONFIG, num_hidden_layers=1)  # for what compiles


def make_features(batch_size=4, length=16, num_predictions=3, seed=0):
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(length // 2, length + 1, [batch_size, 1])).astype(np.int32)
    return {
        "input_ids": tf.constant(rng.integers(5, 101, [batch_size, length]) * mask, tf.int32),
        "input_mask": tf.constant(mask),
        "segment_ids": tf.constant((np.arange(length) > length // 3) * mask, tf.int32),
        "masked_lm_positions": tf.constant(rng.integers(1, length // 2, [batch_size, num_predictions]), tf.int32),
        "masked_lm_ids": tf.constant(rng.integers(0, 101, [batch_size, num_predictions]), tf.int32),
        "masked_lm_weights": tf.ones([batch_size, num_predictions]),
        "next_sentence_labels": tf.constant(rng.integers(0, 2, [batch_size, 1]), tf.int32),
        "example_weights": tf.ones([batch_size]),
    }


def gradients(model, features, dropout, compiled):
    def run(features, key, row):
        with tf.GradientTape() as tape:
            losses, metrics = PretrainingObjective()(model, features, DropoutKey(key, row) if dropout else None)
            loss = tf.reduce_sum(losses)
        grads = tape.gradient(loss, model.trainable_variables)
        return metrics, [tf.convert_to_tensor(grad) for grad in grads]

    if compiled is not None:
        run = tf.function(run, jit_compile=compiled, autograph=False)
    metrics, grads = run(features, tf.constant(update_key(1, 2)), tf.constant(0, tf.int64))
    return metrics.numpy(), [grad.numpy() for grad in grads]


def test_variable_names_are_googles():
    names = {variable.name for variable in PretrainingModel(CONFIG).variables}
    assert len(names) == 5 + 2 * 16 + 2 + 5 + 2
    for name in (
        "bert/embeddings/word_embeddings:0",
        "bert/embeddings/LayerNorm/gamma:0",
        "bert/encoder/layer_1/attention/self/query/kernel:0",
        "bert/encoder/layer_1/attention/output/LayerNorm/beta:0",
        "bert/encoder/layer_0/intermediate/dense/bias:0",
        "bert/encoder/layer_0/output/dense/kernel:0",
        "bert/pooler/dense/kernel:0",
        "cls/predictions/transform/LayerNorm/beta:0",
        "cls/predictions/output_bias:0",
        "cls/seq_relationship/output_weights:0",
    ):
        assert name in names
    assert {"cls/squad/output_weights:0", "cls/squad/output_bias:0"} <= {
        variable.name for variable in SpanModel(CONFIG).variables
    }


def test_base_has_the_published_number_of_parameters():
    model = BertEncoder(BertConfig.preset("base", 30522))
    padding = 6 * 768
    assert sum(variable.shape.num_elements() for variable in model.variables) - padding == 109_482_240


def test_eager_graph_and_xla_agree():
    """With dropout, as a GPU is given it; as this machine is: test_train_step. Without: test_model_parity."""
    features = make_features()
    expected_metrics, expected = gradients(PretrainingModel(ONE_LAYER, Blocks("off"), 1), features, True, None)
    for blocks in Blocks("off"), Blocks("step", for_gpu=True):
        model = PretrainingModel(ONE_LAYER, blocks, 1)
        metrics, grads = gradients(model, features, True, blocks.scope == "step")
        np.testing.assert_allclose(metrics, expected_metrics, rtol=1e-5)
        for variable, mine, theirs in zip(model.trainable_variables, grads, expected):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5, err_msg=variable.name)


@pytest.mark.skipif(not has_fast_bf16(), reason="the programs refuse bfloat16 on this processor")
def test_bfloat16_is_close_to_float32_and_parameters_stay_float32():
    features = make_features()
    exact_metrics, exact = gradients(PretrainingModel(ONE_LAYER, Blocks("off"), 1), features, True, False)
    for scope, for_gpu in ("blocks", False), ("step", False), ("step", True):
        model = PretrainingModel(ONE_LAYER, Blocks(scope, "bfloat16", for_gpu=for_gpu), 1)
        metrics, grads = gradients(model, features, True, scope == "step")
        assert {variable.dtype for variable in model.variables} == {tf.float32}
        np.testing.assert_allclose(metrics[:2], exact_metrics[:2], rtol=5e-3)
        flat, exact_flat = (np.concatenate([grad.ravel() for grad in each]) for each in (grads, exact))
        cosine = flat @ exact_flat / np.linalg.norm(flat) / np.linalg.norm(exact_flat)
        assert cosine > 0.999


def result_and_gradients(blocks, function, inputs, result_gradient):
    """As XLA compiles them where the blocks are for a GPU; float32."""

    def run(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*tensors)
        return result, *tape.gradient(result, tensors, tf.cast(result_gradient, result.dtype))

    if blocks.scope == "step":
        run = tf.function(run, jit_compile=True, autograph=False)
    return [tf.cast(each, tf.float32).numpy() for each in run(*inputs)]


@pytest.mark.parametrize("sharpness", [0.05, 1.0, 6.0])
def test_attention_for_a_gpu_is_attention_in_float16(sharpness):
    """With weights that are alike, or nearly all on one key; some of the gradients are subnormal."""
    rng = np.random.default_rng(1)
    batch, heads, length, size = 2, 2, 256, 32
    states = rng.normal(size=[3, batch, heads, length, size]) * np.reshape(
        [sharpness / np.sqrt(size), 1, 1], [3, 1, 1, 1, 1]
    )
    states = [tf.constant(each, tf.float16) for each in states]
    mask = tf.constant(np.arange(length) < [[length], [50]], tf.int32)
    dropout = Dropout(tf.constant(rng.random([batch, heads, length, length]) > 0.1), 1 / 0.9)
    of_result = tf.constant(rng.normal(size=[batch * length, heads * size]) * 1e-3, tf.float16)

    def run(blocks):
        inputs = [tf.cast(each, blocks.compute_dtype) for each in states]
        return result_and_gradients(blocks, lambda *qkv: blocks.attend(*qkv, mask, dropout), inputs, of_result)

    expected = run(Blocks("off"))
    for mine, theirs in zip(run(Blocks("step", "float16", for_gpu=True)), expected):
        np.testing.assert_array_less(np.linalg.norm(mine - theirs), 5e-3 * np.linalg.norm(theirs))


@pytest.mark.parametrize("exact", [False, True])
def test_gelu_for_a_gpu_is_gelu(exact):
    x, bias = (
        tf.constant(np.linspace(-8, 8, 64), tf.float32)[:, tf.newaxis] * tf.ones([1, 3]),
        tf.constant([0.0, 1.0, -2.0]),
    )
    of_result = tf.sin(x * 7)

    def run(blocks):
        return result_and_gradients(blocks, lambda *both: blocks.bias_gelu(*both, exact), [x, bias], of_result)

    expected, mine = run(Blocks("off")), run(Blocks("step", for_gpu=True))
    for found, wanted in zip(mine, expected):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_what_stands_at_padding_does_not_matter():
    features = make_features()
    model = PretrainingModel(CONFIG)
    hidden = 1 - features["input_mask"]
    other = {**features, "input_ids": features["input_ids"] + 7 * hidden}
    for mine, theirs in zip(model(features), model(other)):
        np.testing.assert_array_equal(mine, theirs)


def test_rows_do_not_see_each_other_and_dropout_follows_the_global_row():
    features, model = make_features(), PretrainingModel(CONFIG)
    key = update_key(1, 2)
    whole = model(features, dropout=DropoutKey(key, 0))
    part = model({name: value[2:] for name, value in features.items()}, dropout=DropoutKey(key, 2))
    for mine, theirs in zip(whole, part):
        np.testing.assert_allclose(mine[2:], theirs, atol=1e-5)
    other_rows = model({name: value[2:] for name, value in features.items()}, dropout=DropoutKey(key, 0))
    assert np.abs(other_rows[0] - part[0]).max() > 1e-3


@pytest.mark.parametrize(
    "options, packed",
    [
        ({"scope": "off"}, False),
        ({"scope": "off", "recompute": True}, True),
        ({"scope": "blocks"}, False),
        ({"scope": "step", "for_gpu": True}, True),
    ],
)
def test_states_at_some_positions_are_those_of_a_whole_layer(options, packed):
    """With dropout on: a layer that computes some positions only draws the same masks."""
    features, encoder = make_features(), BertEncoder(ONE_LAYER, Blocks(**options), seed=1)
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


def test_padding_rows_of_the_word_table_stay_zero_and_get_no_gradient():
    model = PretrainingModel(CONFIG)
    _, grads = gradients(model, make_features(), True, False)
    for variable, grad in zip(model.trainable_variables, grads):
        if variable.shape[0] == CONFIG.padded_vocab_size:
            assert not variable[101:].numpy().any() and not grad[101:].any()
            assert grad[:101].any()


def test_logits_have_the_true_vocabulary():
    mlm_logits, nsp_logits = PretrainingModel(CONFIG)(make_features())
    assert mlm_logits.shape == [4, 3, 101] and nsp_logits.shape == [4, 2]


def test_usable_as_keras_model_summary_functional_and_saved(tmp_path):
    encoder = BertEncoder(ONE_LAYER, Blocks("blocks"))
    inputs = {
        name: tf.keras.Input([16], batch_size=4, dtype=tf.int32, name=name)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    sequence, pooled = encoder(inputs)
    model = tf.keras.Model(inputs, {"sequence": sequence, "pooled": pooled})
    features = {name: make_features()[name] for name in inputs}
    expected = encoder(features)
    np.testing.assert_allclose(model(features)["sequence"], expected[0], atol=1e-6)
    model.summary(print_fn=lambda line: None)
    model.save(tmp_path / "saved", include_optimizer=False)
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    answers = loaded.signatures["serving_default"](**features).values()
    pooled = next(answer for answer in answers if answer.shape == expected[1].shape)
    np.testing.assert_allclose(pooled, expected[1], atol=1e-6)


def test_too_long_a_sequence_names_both_numbers():
    with pytest.raises(ValueError, match="32.*24"):
        PretrainingModel(CONFIG)(make_features(length=32))


def test_scope_choice():
    assert choose_scope(False, "auto", False) == "off"
    with pytest.raises(UserError, match="^--xla_scope=blocks has no effect without --enable_xla: give that too, or"):
        choose_scope(False, "blocks", False)
    assert choose_scope(True, "step", False) == "step"
    assert choose_scope(True, "auto", True) == choose_scope(True, "blocks", True) == "blocks"
    with pytest.raises(UserError, match="--recompute saves no memory .* leave out --xla_scope=step"):
        choose_scope(True, "step", True)
    assert choose_scope(True, "auto", False, for_gpu=True) == "step"
    assert choose_scope(True, "auto", False) == ("step" if tf.config.list_physical_devices("GPU") else "blocks")
