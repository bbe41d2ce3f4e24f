"""Exported models, loaded by Hugging Face's transformers on PyTorch, compute what ours do.

Neither library is among this project's requirements: without them these tests are skipped.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.interchange.export import export
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import ChoiceModel, ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel, TokenModel
from tests.exported import CONFIG, make_model, write_run

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.computes]

TEXTS = ["The river flows into the sea.", "Café, an unaffable 中 river?", "the"]
LENGTH = 24
# What others have changed in BERT's own configuration.
EXACT = dataclasses.replace(CONFIG, hidden_act="gelu_exact")
OTHER = dataclasses.replace(CONFIG, layer_norm_eps=1e-2, type_vocab_size=1)
PRETRAINING = ["prediction_logits", "seq_relationship_logits"]


def make_folder(tmp_path, kind, config=CONFIG):
    """A checkpoint of ours, and the folder that it was exported to."""
    checkpoint = write_run(tmp_path / "run", make_model(kind, config).variables, config=config)
    export(str(checkpoint), tmp_path / "out", replace=False)
    return checkpoint, tmp_path / "out"


@pytest.mark.parametrize(
    ("kind", "config", "auto_class", "names"),
    [
        (PretrainingModel, CONFIG, "AutoModelForPreTraining", PRETRAINING),
        (PretrainingModel, EXACT, "AutoModelForPreTraining", PRETRAINING),
        (PretrainingModel, OTHER, "AutoModelForPreTraining", PRETRAINING),
        (MaskedWordModel, CONFIG, "AutoModelForMaskedLM", ["logits"]),
        (SpanModel, CONFIG, "AutoModelForQuestionAnswering", ["start_logits", "end_logits"]),
        (ClassifierModel, CONFIG, "AutoModelForSequenceClassification", ["logits"]),
        (TokenModel, CONFIG, "AutoModelForTokenClassification", ["logits"]),
        (ChoiceModel, CONFIG, "AutoModelForMultipleChoice", ["logits"]),
        (BertEncoder, CONFIG, "AutoModel", ["last_hidden_state", "pooler_output"]),
    ],
)
def test_outputs(tmp_path, kind, config, auto_class, names):
    """Each on the input of its own tokenizer, and loading complains about nothing."""
    checkpoint, folder = make_folder(tmp_path, kind, config)
    features = from_pretrained(checkpoint).features(TEXTS, LENGTH)
    theirs, report = getattr(transformers, auto_class).from_pretrained(folder, output_loading_info=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding="max_length", max_length=LENGTH, return_tensors="pt")
    if kind is ChoiceModel:  # the texts are the choices of one question
        features, inputs = ({name: values[None] for name, values in each.items()} for each in (features, inputs))
    features["masked_lm_positions"] = np.tile(np.arange(LENGTH), [len(TEXTS), 1])
    ours = make_model(kind, config)({name: tf.constant(values, tf.int32) for name, values in features.items()})
    with torch.no_grad():
        outputs = theirs.eval()(**inputs)
    for mine, name in zip([ours] if len(names) == 1 else ours, names):
        np.testing.assert_allclose(np.asarray(mine), outputs[name].numpy(), atol=1e-5)
    assert not any(report.values())


@pytest.mark.parametrize("kind", [PretrainingModel, MaskedWordModel])
def test_the_pipeline_fills_a_mask(tmp_path, kind):
    checkpoint, folder = make_folder(tmp_path, kind)
    best = transformers.pipeline("fill-mask", model=str(folder))("The river [MASK] into the sea.", top_k=1)[0]
    pretrained = from_pretrained(checkpoint)
    features = pretrained.features(["the river x into the sea."], LENGTH)
    features["input_ids"][0, 3] = pretrained.tokenizer.vocab["[MASK]"]
    features["masked_lm_positions"] = np.array([[3]], np.int32)
    outputs = make_model(kind)({name: tf.constant(value) for name, value in features.items()})
    logits = outputs if kind is MaskedWordModel else outputs[0]
    assert best["token"] == np.argmax(logits[0, 0])
    assert best["score"] == pytest.approx(float(tf.nn.softmax(logits[0, 0])[best["token"]]), abs=1e-5)


def test_a_file_that_pytorch_has_written(tmp_path):
    """Read by its names of 2019, in half precision."""
    _, folder = make_folder(tmp_path, BertEncoder)
    state = transformers.AutoModel.from_pretrained(folder).half().state_dict()
    state = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): value for name, value in state.items()}
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    for mine, expected in zip(from_pretrained(folder).encoder.variables, make_model(BertEncoder).variables):
        np.testing.assert_allclose(mine, expected, atol=1e-3)
