"""Exported models, loaded by Hugging Face's transformers on PyTorch, compute what ours do.

Neither library is among this project's requirements: without them these tests are skipped.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.interchange.export import export
from bert_tf.interchange.hugging_face import is_transposed, to_their_name
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import ChoiceModel, ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel, TokenModel
from bert_tf.model.losses import ClassificationObjective, MaskedWordObjective
from tests.exported import CLASSIFIER, CONFIG, ENCODER_ONLY, make_variables, write_run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.computes]

TEXTS = ["The river flows into the sea.", "Café, an unaffable 中 river?", "the"]
LENGTH = 24
# BERT's own configuration, and what others have changed in it.
CONFIGS = [
    CONFIG,
    dataclasses.replace(CONFIG, hidden_act="gelu_exact"),
    dataclasses.replace(CONFIG, layer_norm_eps=1e-2, type_vocab_size=1),
]
THEIR_FEATURES = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}


def make_folder(tmp_path, kind, config=CONFIG):
    """A checkpoint of ours, and the folder that it was exported to."""
    checkpoint = write_run(tmp_path / "run", make_variables(kind, config), config=config)
    export(str(checkpoint), tmp_path / "out", replace=False)
    return checkpoint, tmp_path / "out"


def our_features(checkpoint):
    return {name: tf.constant(value) for name, value in from_pretrained(checkpoint).features(TEXTS, LENGTH).items()}


def filled(model, kind):
    for variable, value in zip(model.variables, make_variables(kind, model.config)):
        variable.assign(value)
    return model


def their_outputs(auto_class, folder):
    """The outputs of transformers' model on its own tokenizer's input, the names of which loading complained about."""
    model, report = auto_class.from_pretrained(folder, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding="max_length", max_length=LENGTH, return_tensors="pt")
    with torch.no_grad():
        outputs = model.eval()(**inputs)
    return outputs, {name for names in report.values() for name in names}


def assert_close(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs.numpy(), atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS)
def test_pretraining_and_masked_words(tmp_path, config):
    checkpoint, folder = make_folder(tmp_path, PretrainingModel, config)
    model = filled(PretrainingModel(config), PretrainingModel)
    positions = tf.tile(tf.range(LENGTH)[tf.newaxis], [len(TEXTS), 1])
    mlm_logits, nsp_logits = model({**our_features(checkpoint), "masked_lm_positions": positions})
    outputs, complaints = their_outputs(transformers.AutoModelForPreTraining, folder)
    assert_close(mlm_logits, outputs.prediction_logits)
    assert_close(nsp_logits, outputs.seq_relationship_logits)
    assert complaints == set()
    outputs, _ = their_outputs(transformers.AutoModelForMaskedLM, folder)
    assert_close(mlm_logits, outputs.logits)


def test_masked_words_alone_with_loss_and_gradients(tmp_path):
    """As BertForMaskedLM, which has neither pooler nor next sentence; masked are two words of each text."""
    checkpoint, folder = make_folder(tmp_path, MaskedWordModel)
    features, theirs = our_features(checkpoint), transformers.AutoModelForMaskedLM.from_pretrained(folder)
    outputs, complaints = their_outputs(transformers.AutoModelForMaskedLM, folder)
    assert complaints == set() and type(theirs).__name__ == "BertForMaskedLM"
    masked = {
        "masked_lm_positions": np.array([[1, 3], [2, 4], [1, 0]], np.int32),
        "masked_lm_ids": np.array([[7, 9], [8, 6], [5, 0]], np.int32),
        "masked_lm_weights": np.array([[1, 1], [1, 1], [1, 0]], np.float32),
    }
    labels = torch.full([len(TEXTS), LENGTH], -100)
    for row, column in np.argwhere(masked["masked_lm_weights"]):
        labels[row, masked["masked_lm_positions"][row, column]] = int(masked["masked_lm_ids"][row, column])
    inputs = {name: torch.tensor(features[ours].numpy()).long() for name, ours in THEIR_FEATURES.items()}
    loss = theirs.eval()(**inputs, labels=labels).loss
    loss.backward()

    model = filled(MaskedWordModel(CONFIG), MaskedWordModel)
    positions = tf.tile(tf.range(LENGTH)[tf.newaxis], [len(TEXTS), 1])
    assert_close(model({**features, "masked_lm_positions": positions}), outputs.logits)
    objective, features = MaskedWordObjective(), {**features, **{name: tf.constant(masked[name]) for name in masked}}
    with tf.GradientTape() as tape:
        sums, _ = objective(model, features, None)
        mean = sums[0] / objective.local_denominators(features)[0]
    assert float(mean) == pytest.approx(float(loss.detach()), rel=1e-6)
    gradients, parameters = tape.gradient(mean, model.trainable_variables), dict(theirs.named_parameters())
    for variable, gradient in zip(model.trainable_variables, map(tf.convert_to_tensor, gradients)):
        name = variable.name.split(":")[0]
        expected = parameters[to_their_name(name)].grad.numpy()
        mine = gradient.numpy()[: len(expected)] if name.endswith(("word_embeddings", "output_bias")) else gradient
        np.testing.assert_allclose(mine, expected.T if is_transposed(name) else expected, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "make", "auto_class", "names"),
    [
        (SpanModel, SpanModel, transformers.AutoModelForQuestionAnswering, ["start_logits", "end_logits"]),
        (CLASSIFIER, lambda c: ClassifierModel(c, 3), transformers.AutoModelForSequenceClassification, ["logits"]),
        (TokenModel, lambda c: TokenModel(c, 3), transformers.AutoModelForTokenClassification, ["logits"]),
        (ENCODER_ONLY, BertEncoder, transformers.AutoModel, ["last_hidden_state", "pooler_output"]),
    ],
)
def test_heads(tmp_path, kind, make, auto_class, names):
    checkpoint, folder = make_folder(tmp_path, kind)
    ours = filled(make(CONFIG), kind)(our_features(checkpoint))
    theirs, complaints = their_outputs(auto_class, folder)
    for mine, name in zip([ours] if len(names) == 1 else ours, names):
        assert_close(mine, theirs[name])
    assert complaints == set()


def test_choices_with_loss(tmp_path):
    """The texts are the choices of one question."""
    checkpoint, folder = make_folder(tmp_path, ChoiceModel)
    features = {name: value[None] for name, value in our_features(checkpoint).items()}
    inputs = {name: torch.tensor(features[ours].numpy()).long() for name, ours in THEIR_FEATURES.items()}
    theirs, report = transformers.AutoModelForMultipleChoice.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    with torch.no_grad():
        outputs = theirs.eval()(**inputs, labels=torch.tensor([1]))
    model = filled(ChoiceModel(CONFIG), ChoiceModel)
    assert_close(model(features), outputs.logits)
    targets = {"labels": tf.constant([1]), "example_weights": tf.constant([1.0])}
    sums, _ = ClassificationObjective()(model, {**features, **targets}, None)
    assert float(sums[0]) == pytest.approx(float(outputs.loss), rel=1e-6)


@pytest.mark.parametrize("kind", [PretrainingModel, MaskedWordModel])
def test_the_pipeline_fills_a_mask(tmp_path, kind):
    checkpoint, folder = make_folder(tmp_path, kind)
    best = transformers.pipeline("fill-mask", model=str(folder))("The river [MASK] into the sea.", top_k=1)[0]
    model, pretrained = filled(kind(CONFIG), kind), from_pretrained(checkpoint)
    features = pretrained.features(["the river x into the sea."], LENGTH)
    features["input_ids"][0, 3] = pretrained.tokenizer.vocab["[MASK]"]
    features["masked_lm_positions"] = np.array([[3]], np.int32)
    outputs = model({name: tf.constant(value) for name, value in features.items()})
    logits = outputs if kind is MaskedWordModel else outputs[0]
    assert best["token"] == np.argmax(logits[0, 0])
    assert best["score"] == pytest.approx(float(tf.nn.softmax(logits[0, 0])[best["token"]]), abs=1e-5)
