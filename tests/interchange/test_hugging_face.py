"""Hugging Face's folders: names both ways, configuration, files; numbers of `transformers` (tests/golden)."""

import json
import pickle
import shutil
import sys
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_tf.interchange.export import export
from bert_tf.interchange.hugging_face import read_config, read_folder, to_our_name, to_their_name
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.run.variables import load_weights
from tests.interchange.test_initialise import HUGGING_FACE as MODEL
from tests.interchange.test_initialise import write_pieces
from tests.jobs import changed_json
from tests.refusals import refused

ONE_TYPE = MODEL.with_name("hugging_face_one_type")  # and layer_norm_eps 1e-2
OUTPUTS = np.load(MODEL / "outputs.npz")
FEATURES = {name: tf.constant(OUTPUTS[name]) for name in ("input_ids", "input_mask", "segment_ids")}


def filled(model_class, weights):
    model = model_class(weights.config, seed=1)
    return model, load_weights(weights, model.variables, weights.config.vocab_size)


def assert_same_hidden_states(encoder, outputs=OUTPUTS, tolerance=1e-5):
    states = encoder.hidden_states(FEATURES)
    for state, expected in zip(states, outputs["hidden_states"]):
        np.testing.assert_allclose(state, expected, atol=tolerance)
    np.testing.assert_allclose(encoder(FEATURES)[1], outputs["pooled"], atol=tolerance)


@pytest.mark.parametrize("folder", [MODEL, ONE_TYPE])
def test_a_model_of_transformers_gives_its_numbers(folder):
    model, report = filled(PretrainingModel, read_folder(folder))
    outputs = np.load(folder / "outputs.npz")
    assert report.missing == report.unused == []
    assert_same_hidden_states(model.bert, outputs)
    batch, length = outputs["input_ids"].shape
    positions = tf.constant(np.tile(np.arange(length, dtype=np.int32), [batch, 1]))
    mlm_logits, nsp_logits = model({**FEATURES, "masked_lm_positions": positions})
    np.testing.assert_allclose(mlm_logits, outputs["mlm_logits"], atol=2e-5)
    np.testing.assert_allclose(nsp_logits, outputs["nsp_logits"], atol=1e-5)


@pytest.mark.parametrize(
    "settings, gives_types",
    [
        ({}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, True),
        ({"tokenizer_class": "TokenizersBackend"}, False),  # of transformers 5, for a tokenizer of one's own
        ({"tokenizer_class": "DistilBertTokenizer"}, False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"tokenizer_class": "TokenizersBackend", "model_input_names": ["input_ids", "token_type_ids"]}, True),
    ],
)
def test_both_texts_are_of_the_first_type_where_transformers_gives_none(tmp_path, settings, gives_types):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(MODEL / name, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    weights = read_folder(tmp_path)
    assert ["no token types" in warning for warning in weights.warnings] == [True] * (not gives_types)
    encoder, _ = filled(BertEncoder, weights)
    original, _ = filled(BertEncoder, read_folder(MODEL))
    types = FEATURES["segment_ids"] if gives_types else tf.zeros_like(FEATURES["segment_ids"])
    np.testing.assert_array_equal(encoder(FEATURES)[0], original({**FEATURES, "segment_ids": types})[0])


def old_state():
    """The encoder's parameters as BertModel files of 2019 have them: other names, a buffer, half precision."""
    state = {"embeddings.position_ids": np.arange(16)[None]}
    for name, value in load_file(MODEL / "model.safetensors").items():
        if name.startswith("bert."):
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            state[name[len("bert.") :]] = value.astype(np.float16)
    return state


def write_old(folder):
    folder.mkdir(exist_ok=True)
    shutil.copy(MODEL / "config.json", folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


def tensor(array):
    """What `_open_torch_file` uses of PyTorch's tensors; one may be sparse, and only a dense one has `numpy`."""
    dense = SimpleNamespace(numpy=lambda: array)
    made = SimpleNamespace(shape=array.shape, dtype=f"torch.{array.dtype}", to_dense=lambda: dense)
    made.detach, made.float = lambda: made, lambda: tensor(array.astype(np.float32))
    return made


def stand_in(monkeypatch, load, version="2.10.0+cpu"):
    """Puts a module in place of PyTorch, which is not required here; returns what notes the calls of `load`."""
    torch = SimpleNamespace(load=mock.Mock(side_effect=load), __version__=version)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch.load


def test_an_old_file_in_half_precision_gives_the_same(tmp_path, monkeypatch):
    load = stand_in(monkeypatch, lambda *_, **__: {name: tensor(value) for name, value in old_state().items()})
    encoder, report = filled(BertEncoder, read_folder(write_old(tmp_path)))
    load.assert_called_once_with(tmp_path / "pytorch_model.bin", map_location="cpu", weights_only=True)
    assert report.missing == report.unused == []
    assert_same_hidden_states(encoder)


def shards_of(folder):
    """Writes the model in two files; returns the content of their index."""
    tensors = load_file(MODEL / "model.safetensors")
    shutil.copy(MODEL / "config.json", folder)
    places = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in {*places.values()}:
        save_file({name: tensors[name] for name in places if places[name] == file}, folder / file)
    return places


def write_index(folder, places):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_safetensors_in_several_files(tmp_path):
    write_index(tmp_path, shards_of(tmp_path))
    whole, parts = read_folder(MODEL), find_weights(tmp_path)
    assert parts.shapes == whole.shapes
    for name in whole.shapes:
        np.testing.assert_array_equal(parts.read(name), whole.read(name), err_msg=name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x": "model-00003-of-00003.safetensors"}, "model-00003-of-00003.safetensors does not exist; fetch"),
        ({"x": "../model-00001-of-00002.safetensors"}, "x is in none of the files that it names .1 missing in all"),
        ({"x": "model.safetensors.index.json"}, "model.safetensors.index.json cannot be read"),
        ({"x": ["", {}]}, "does not exist; fetch"),
        (None, "names no tensors in weight_map"),
    ],
)
def test_an_index_that_does_not_fit_its_files(tmp_path, changes, words):
    places = shards_of(tmp_path)
    write_index(tmp_path, changes and {**places, **changes})
    refused(words, find_weights, tmp_path)


def test_pytorchs_files_without_pytorch_and_what_it_refuses(tmp_path, monkeypatch):
    way = "have the model saved as model.safetensors"
    monkeypatch.setitem(sys.modules, "torch", None)
    message = f"pytorch_model.bin can only be read by PyTorch: 'pip install torch', or {way}"
    refused(message, read_folder, write_old(tmp_path))
    refusal = pickle.UnpicklingError("Weights only load failed. Set weights_only to False.\nUnsupported: os.system")
    message = rf"pytorch_model.bin cannot be read \((?!.*False).*tensors; fetch it again, or {way}"
    for answer in (refusal, [[1]], [{"epoch": 3}], [{"model": {}}]):
        stand_in(monkeypatch, answer)
        refused(message, read_folder, tmp_path)
    load = stand_in(monkeypatch, [{}], "2.5.1+cu121")
    refused(f"could run code in PyTorch 2.5.1.cu121 .*; install 2.6 or later, or {way}", read_folder, tmp_path)
    load.assert_not_called()


def test_names_both_ways():
    """Beside those that a model read from their folder and test_export's round trips have."""
    ours, theirs = "bert/encoder/layer_11/output/LayerNorm/beta", "bert.encoder.layer.11.output.LayerNorm.bias"
    assert (to_their_name(ours), to_our_name(theirs)) == (theirs, ours)
    assert to_our_name("encoder.layer.3.output.LayerNorm.gamma") == "bert/encoder/layer_3/output/LayerNorm/gamma"


def copied(folder, **changes):
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    changed_json(folder / "config.json", **changes)
    return folder


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "roberta"}, "model_type is 'roberta', and must be 'bert': the encoder here is BERT's own"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads is {'0': \\[1\\]}, and must be {}"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', and must be 'gelu' or 'gelu_new'"),
        ({"vocab_size": None}, "vocab_size=None in the model's configuration: must be a whole number"),
        ({"architectures": "RobertaModel"}, "architectures is 'RobertaModel': the encoder"),
        ({"auto_map": {"AutoConfig": "c.C", "AutoModelForMaskedLM": "m.M"}}, "auto_map is .*m.M.*: the encoder"),
    ],
)
def test_other_architectures_are_refused_by_name(tmp_path, changes, words):
    refused(f"config.json: {words}", read_folder, copied(tmp_path, **changes))


@pytest.mark.parametrize("theirs, ours", [("gelu", "gelu_exact"), ("gelu_new", "gelu"), ("gelu_pytorch_tanh", "gelu")])
def test_activations(tmp_path, theirs, ours):
    assert read_config(copied(tmp_path, hidden_act=theirs) / "config.json").hidden_act == ours


@pytest.mark.parametrize("dtype", [np.float16, tf.bfloat16.as_numpy_dtype])
def test_half_precision_becomes_float32(tmp_path, dtype):
    def halve(tensors):
        tensors.update({name: value.astype(dtype) for name, value in tensors.items()})

    name, folder = "bert/pooler/dense/kernel", changed_tensors(tmp_path, halve)
    assert read_folder(folder).read(name).dtype == np.float32
    np.testing.assert_allclose(read_folder(folder).read(name), read_folder(MODEL).read(name), rtol=1e-2)


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3"])
def test_quantised_weights_are_refused(tmp_path, dtype):
    path = copied(tmp_path) / "model.safetensors"
    save_file({**load_file(path), "bert.pooler.dense.weight": np.ones([8, 8], np.int8)}, path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].replace(b'"I8"', f'"{dtype}"'.encode())  # NumPy has no floats of 8 bits
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + size :])
    message, read = f"bert.pooler.dense.weight holds {dtype}, but weights are floats", read_folder(tmp_path).read
    refused(message, read, "bert/pooler/dense/kernel")


def changed_tensors(folder, change, **config):
    """The model's folder after `change`, which gets its tensors by name."""
    path = copied(folder, **config) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return folder


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path, value):
    changed_tensors(tmp_path, lambda tensors: tensors["bert.pooler.dense.weight"].__setitem__((1, 2), value))
    message = "model.safetensors: bert.pooler.dense.weight holds numbers that are not finite"
    refused(message, from_pretrained, tmp_path, vocab_file=write_vocabulary(tmp_path))


def write_vocabulary(folder):
    return write_pieces(folder / "vocab.txt", *(f"w{number}" for number in range(18)))


@pytest.mark.parametrize("added, config", [(1, {}), (0, {"tie_word_embeddings": False})])
def test_an_untied_decoder_is_refused_where_the_masked_word_head_is_used(tmp_path, added, config):
    def write(added, **config):
        def change(tensors):
            tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + added

        return read_folder(changed_tensors(tmp_path, change, **config))

    weights = write(added, **config)
    write_vocabulary(tmp_path)
    message = "its masked-word head has a table of its own .tie_word_embeddings in config.json, or a cls"
    refused(message, filled, PretrainingModel, weights)
    refused(message, export, str(tmp_path), tmp_path / "out", replace=False)
    assert not (tmp_path / "out").exists()
    span_model, _ = filled(SpanModel, weights)  # which uses the encoder alone
    assert_same_hidden_states(span_model.bert)
    _, report = filled(PretrainingModel, write(0))  # a copy is no table of its own
    assert not report.missing and not report.unused


@pytest.mark.parametrize(
    "name, other, ours",
    [
        ("bert.embeddings.LayerNorm.weight", "bert.embeddings.LayerNorm.gamma", "bert/embeddings/LayerNorm/gamma"),
        ("bert.pooler.dense.weight", "pooler.dense.weight", "bert/pooler/dense/kernel"),
        ("cls.predictions.bias", "cls.predictions.decoder.bias", "cls/predictions/output_bias"),
    ],
)
def test_a_parameter_under_two_names(tmp_path, name, other, ours):
    """transformers 5.24 reads either name, and ties the two only if they are equal."""
    expected = read_folder(MODEL).read(ours)
    for change in (lambda both: both.update({other: both[name]}), lambda both: both.update({other: both.pop(name)})):
        np.testing.assert_array_equal(read_folder(changed_tensors(tmp_path, change)).read(ours), expected)
    changed_tensors(tmp_path, lambda both: both.update({other: both[name] + 1}))
    refused("model.safetensors: .* are names of the same parameter, but differ", read_folder(tmp_path).read, ours)
