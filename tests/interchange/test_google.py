"""TensorFlow checkpoints of others: Google's and NVIDIA's TF1 files, and the Keras ones of TF2."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.interchange.google import read_checkpoint
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.keras_names import to_our_name
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import PretrainingModel
from bert_tf.run.variables import check_encoder, load_weights, named_variables
from tests import google_checkpoints as published
from tests.google_checkpoints import CONFIG, HIDDEN, VOCAB, keras_model, values_of
from tests.refusals import refused


def test_googles_and_nvidias_tf1_checkpoints_without_the_state_of_optimizers(tmp_path):
    """Google's Adam; NVIDIA's LAMB with accumulation, its loss scale, and a weight kept in half precision."""
    values = published.random_values({**published.published_names(2), **published.HEADS_OF_PRETRAINING})
    slots = {f"{name}/{slot}": value for name, value in values.items() for slot in ("Adam", "adam_m", "accum")}
    others = ("global_step", "local_step", "batch_finite", "loss_scale", "good_steps", "bad_steps", "beta1_power")
    kernel = "bert/pooler/dense/kernel"
    half, shadow = {kernel: values[kernel].astype(np.float16)}, {f"{kernel}/shadow": values[kernel]}
    everything = {**values, **half, **shadow, **slots, **{name: np.int64(3) for name in others}}
    weights = find_weights(published.write_tf1(tmp_path, everything, "model.ckpt-1564"))
    assert weights.config == CONFIG and weights.tokenizer.vocab_file is None and weights.tokenizer.casing is None
    assert weights.shapes == {name: list(value.shape) for name, value in sorted(values.items())}
    model = PretrainingModel(CONFIG)
    report = load_weights(weights, model.variables, VOCAB)
    assert not report.missing and not report.unused and not weights.warnings
    for variable in model.variables:
        name = variable.name.split(":")[0]
        value = half.get(name, values[name]).astype(np.float32)
        np.testing.assert_array_equal(variable[: len(value)], value, err_msg=name)


@pytest.mark.parametrize(
    "old, with_heads, optimizers",
    [(True, True, keras.optimizers.legacy), (True, False, keras.optimizers), (False, True, keras.optimizers)],
)
def test_keras_checkpoints_of_nvidia_and_tf_models(tmp_path, old, with_heads, optimizers):
    theirs, optimizer = keras_model(with_heads, old), optimizers.Adam()
    optimizer.apply_gradients((tf.ones_like(variable), variable) for variable in theirs.trainable_variables)
    tf.train.Checkpoint(model=theirs, optimizer=optimizer).save(str(tmp_path / "bert_model.ckpt"))
    weights = find_weights(tmp_path)  # bert_model.ckpt-1
    model = PretrainingModel(CONFIG) if with_heads else BertEncoder(CONFIG)
    report = load_weights(weights, model.variables, VOCAB)
    assert report.missing == [] and report.unused == (["not_ours/kernel"] if with_heads else [])
    assert ["without an activation" in warning for warning in weights.warnings] == [True] * (with_heads and old)
    by_name = values_of(theirs)
    if with_heads:
        expected = by_name["predictions/transform/logits/kernel"].T
        np.testing.assert_array_equal(weights.read("cls/seq_relationship/output_weights"), expected)
    np.testing.assert_array_equal(model.variables[0][:VOCAB], by_name["word_embeddings/embeddings"])
    attention = "transformer/layer_1/self_attention"
    output = f"{attention}_output" if old else f"{attention}/attention_output"
    for ours, name, shape in (
        ("attention/self/query/kernel", f"{attention}/query/kernel", [HIDDEN, HIDDEN]),
        ("attention/self/value/bias", f"{attention}/value/bias", [HIDDEN]),
        ("attention/output/dense/kernel", f"{output}/kernel", [HIDDEN, HIDDEN]),
        ("output/LayerNorm/beta", "transformer/layer_1/output_layer_norm/beta", [HIDDEN]),
    ):
        found, expected = weights.read(f"bert/encoder/layer_1/{ours}"), by_name[name].reshape(shape)
        np.testing.assert_array_equal(found, expected, err_msg=ours)


def test_the_heads_of_tf_models_pretrainer_are_no_part_of_the_encoder(tmp_path):
    """The pooler is that of the next-sentence head, which alone was trained."""
    theirs = keras_model(True, False, has_own_pooler=True)
    tf.train.Checkpoint(model=theirs).save(str(tmp_path / "model.ckpt"))
    weights, model = find_weights(tmp_path), PretrainingModel(CONFIG)
    check_encoder(weights, named_variables(model.variables), "")
    report = load_weights(weights, model.variables, VOCAB)
    assert not weights.warnings and not report.missing
    assert report.unused == ["not_ours/kernel", "other_head/logits/bias", "other_head/logits/kernel"]
    for ours, name in (
        ("bert/pooler/dense/kernel", "pooler_dense/kernel"),
        ("bert/pooler/dense/bias", "pooler_dense/bias"),
        ("cls/seq_relationship/output_weights", "logits/kernel"),
        ("cls/seq_relationship/output_bias", "logits/bias"),
    ):
        expected = values_of(theirs)[f"bert/next_sentence/{name}"]
        np.testing.assert_array_equal(weights.read(ours), expected.T if name == "logits/kernel" else expected)
    (tmp_path / "params.yaml").write_text("task:\n  model:\n    encoder:\n      bert:\n        norm_first: true\n")
    refused("params.yaml says norm_first: true: .*; name another model", find_weights, tmp_path)


@pytest.mark.parametrize("graph", [b"\xff\xff", np.float32(1), None])
def test_objects_that_are_no_bert(tmp_path, graph):
    """The graph is damaged, or no text at all, or the variables it names are numbers."""
    tf.train.Checkpoint(model=keras_model(False, False)).write(str(tmp_path / "x"))
    tensors = published.read_tensors(tmp_path / "x")
    if graph is None:
        tensors = {name: value if "GRAPH" in name else np.float32(1) for name, value in tensors.items()}
    else:
        tensors["_CHECKPOINTABLE_OBJECT_GRAPH"] = graph
    published.write_tensors(tmp_path / "x", tensors)
    refused("x holds objects of Keras, but not those of a BERT", read_checkpoint, tmp_path / "x")
    (tmp_path / "x.index").write_text("nonsense")
    refused("x cannot be read .*: its .index file is damaged", read_checkpoint, tmp_path / "x")


def test_names_of_outer_layers_and_unknown_names():
    assert to_our_name("bert_encoder/position_embedding_1/embeddings") == "bert/embeddings/position_embeddings"
    assert to_our_name("transformer/layer_10/output/kernel") == "bert/encoder/layer_10/output/dense/kernel"
    assert to_our_name("transformer/layer_0/relative/kernel") == "bert/encoder/layer_0/relative/kernel"
    for name in ("my_word_embeddings/embeddings", "Adam/m/word_embeddings/other"):
        assert to_our_name(name) == name
