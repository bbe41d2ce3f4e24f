"""Our models give the numbers of Hugging Face's BERT in PyTorch.

tests/golden/make_hugging_face_golden.py made the file of numbers and says from what.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.model.heads import MaskedWordModel, PretrainingModel, SpanModel
from bert_tf.model.losses import MaskedWordObjective, PretrainingObjective, SpanObjective

pytestmark = pytest.mark.computes

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "hugging_face_bert.npz")
WEIGHTS = {name[8:]: GOLDEN[name].astype(np.float32) for name in GOLDEN.files if name.startswith("weights/")}
# Our name of an activation -> theirs.
ACTIVATIONS = {"gelu": "gelu_new", "gelu_exact": "gelu"}
NUM_HEADS = 4
# The model, its objective, and the names of its logits and losses.
KINDS = {
    "masked words": (MaskedWordModel, MaskedWordObjective(), ("mlm_logits",), ("mlm_loss",)),
    "pretraining": (PretrainingModel, PretrainingObjective(), ("mlm_logits", "nsp_logits"), ("mlm_loss", "nsp_loss")),
    "span": (SpanModel, SpanObjective(), ("start_logits", "end_logits"), ("span_loss",)),
}


def make_model(model_class, activation):
    vocab_size, hidden_size = WEIGHTS["bert/embeddings/word_embeddings"].shape
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_attention_heads=NUM_HEADS,
        hidden_act=activation,
        num_hidden_layers=sum(name.endswith("query/kernel") for name in WEIGHTS),
        intermediate_size=WEIGHTS["bert/encoder/layer_0/intermediate/dense/bias"].size,
        max_position_embeddings=len(WEIGHTS["bert/embeddings/position_embeddings"]),
    )
    model = model_class(config, seed=0)
    for variable in model.variables:
        value = WEIGHTS[variable.name.split(":")[0]]
        padding = variable.shape[0] - value.shape[0]
        variable.assign(np.pad(value, [(0, padding)] + [(0, 0)] * (value.ndim - 1)))
    return model


def make_features():
    features = {name[7:]: tf.constant(GOLDEN[name]) for name in GOLDEN.files if name.startswith("inputs/")}
    return {**features, "example_weights": tf.ones([len(features["input_ids"])])}


def losses_and_gradients(model, objective, features, denominators):
    """Mean losses [K], and gradients of their sum by name."""
    with tf.GradientTape() as tape:
        sums, _ = objective(model, features, None)
        means = sums / denominators
        total = tf.reduce_sum(means)
    gradients = tape.gradient(total, model.trainable_variables)
    names = [variable.name.split(":")[0] for variable in model.trainable_variables]
    return means, {name: tf.convert_to_tensor(gradient) for name, gradient in zip(names, gradients)}


def assert_same_gradients(found, prefix):
    expected = {name[len(prefix) :]: GOLDEN[name] for name in GOLDEN.files if name.startswith(prefix)}
    assert expected
    for name, gradient in expected.items():
        mine = found[name].numpy()
        difference = np.linalg.norm(mine[: len(gradient)] - gradient) / np.linalg.norm(gradient)
        assert difference < 1e-4, f"{name}: relative difference {difference}"
        assert not mine[len(gradient) :].any(), f"{name}: the padding has a gradient"


@pytest.mark.parametrize(
    "kind, activation",
    # The others' encoder is that of the pre-training model, so not with each activation.
    [("pretraining", "gelu"), ("pretraining", "gelu_exact"), ("span", "gelu"), ("masked words", "gelu")],
)
def test_values_and_gradients(kind, activation):
    """By TensorFlow's own operations; that what is compiled computes the same: test_train_step, test_backends."""
    model_class, objective, logit_names, loss_names = KINDS[kind]
    model, features, theirs = make_model(model_class, activation), make_features(), ACTIVATIONS[activation]
    denominators = objective.local_denominators(features)

    def run(features):
        states = {}
        if kind == "pretraining":
            states = {"hidden_states": tf.stack(model.bert.hidden_states(features)), "pooled": model.bert(features)[1]}
        return states, model(features), losses_and_gradients(model, objective, features, denominators)

    states, logits, (losses, gradients) = tf.function(run, autograph=False)(features)
    logits = [logits] if len(logit_names) == 1 else logits
    found = {**states, **dict(zip(logit_names, logits)), **dict(zip(loss_names, losses))}
    for name, value in found.items():
        np.testing.assert_allclose(value, GOLDEN[f"{theirs}/{name}"], rtol=1e-5, atol=1e-5, err_msg=name)
    if kind == "masked words":  # the gradients are those of pre-training without the next-sentence loss
        whole, without = make_model(PretrainingModel, activation), np.array([*denominators, np.inf], np.float32)
        _, expected = losses_and_gradients(whole, PretrainingObjective(), features, without)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
        assert not [name for name in gradients if "pooler" in name or "seq_relationship" in name]
    else:
        assert_same_gradients(gradients, f"{theirs}/{kind}_gradients/")
