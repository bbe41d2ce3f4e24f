"""A checkpoint becomes a folder for Hugging Face's transformers: names, layouts, values, settings, refusals.

test_hugging_face_parity.py loads such folders by transformers, where that is installed.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_tf.base.errors import as_user_error
from bert_tf.interchange.export import export, training_data_name
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.to_hugging_face import main
from bert_tf.model.encoder import BertEncoder
from bert_tf.model.heads import ChoiceModel, ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel, TokenModel
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from tests import google_checkpoints as published
from tests.exported import CASED_VOCAB, CONFIG, VOCAB, make_model, write_run
from tests.interchange.test_initialise import HUGGING_FACE
from tests.refusals import refused

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_pretrained_run(tmp_path):
    """The names are those that transformers itself has written."""
    write_run(tmp_path / "run", make_model(PretrainingModel).variables)
    lines = export(str(tmp_path / "run"), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert lines[-1].startswith("BertForPreTraining with")
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (tmp_path / "out", HUGGING_FACE))
    assert set(ours) == set(theirs)
    config = read_json(tmp_path / "out" / "config.json")
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new", "their gelu is not the approximation by tanh"
    assert (config["vocab_size"], config["layer_norm_eps"], config["pad_token_id"]) == (len(VOCAB), 1e-12, 0)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1, "who can read one file can read all"


@pytest.mark.parametrize(
    ("kind", "architecture", "call"),
    [
        (PretrainingModel, "BertForPreTraining", 'pipeline("fill-mask", model="out"'),
        (MaskedWordModel, "BertForMaskedLM", '"A sentence with a [MASK] in it."'),
        (SpanModel, "BertForQuestionAnswering", "AutoModelForQuestionAnswering.from_pretrained"),
        (ClassifierModel, "BertForSequenceClassification", 'pipeline("text-classification"'),
        (TokenModel, "BertForTokenClassification", 'pipeline("token-classification"'),
        (ChoiceModel, "BertForMultipleChoice", "AutoModelForMultipleChoice.from_pretrained"),
        (BertEncoder, "BertModel", 'pipeline("feature-extraction"'),
    ],
)
def test_round_trip_gives_the_same_bits_with_a_card_that_tells_what_it_is(tmp_path, kind, architecture, call):
    variables, config = make_model(kind).variables, dataclasses.replace(CONFIG, hidden_act="gelu_exact")
    write_run(tmp_path / "run", variables, config=config)
    export(str(tmp_path / "run"), tmp_path / "out")
    again = find_weights(tmp_path / "out")
    assert again.config == config and again.tokenizer.casing == (True, True) and again.tokenizer.vocab_file
    assert read_json(tmp_path / "out" / "config.json")["architectures"] == [architecture]
    ours = {variable.name.split(":")[0]: variable.numpy() for variable in variables}
    left_out = {name for name in ours if kind in (SpanModel, TokenModel) and name.startswith("bert/pooler/")}
    assert set(again.shapes) == set(ours) - left_out
    for name in again.shapes:
        stored = again.read(name)
        np.testing.assert_array_equal(stored, ours[name][: len(stored)], err_msg=name)

    num_weights = sum(again.read(name).size for name in again.shapes)
    card, _, use = (tmp_path / "out/README.md").read_text().partition("## Use")
    assert "# out\n" in card and f"({architecture}): 2 layers of width 16" in card
    assert f"{num_weights:,} weights" in card and "lower-cased, up to 32 tokens" in card
    assert "trained on sample." in card and not re.search(r"None|Undefined|/x/", card)
    assert call in use and not re.search(r"\{[{%]|Undefined", card + use)
    compile(use.partition("```python\n")[2].partition("```")[0], "card", "exec")


def test_only_the_heads_that_are_there_count(tmp_path):
    variables = [v for v in make_model(PretrainingModel).variables if "seq_relationship" not in v.name]
    write_run(tmp_path / "run", variables)
    lines = export(str(tmp_path / "run"), tmp_path / "out")
    assert read_json(tmp_path / "out" / "config.json")["architectures"] == ["BertForMaskedLM"]
    assert "left out" in lines[0] and "bert/pooler/dense/bias [16]" in lines[0]


def test_labels(tmp_path):
    columns = ["premise", "hypothesis"]
    task, none = {"task_name": "x", "labels": ["contradiction", "entailment", "neutral"], "text_columns": columns}, {}
    classes = {str(number): label for number, label in enumerate(task["labels"])}
    for name, described, num_classes, labels, problem in (
        ("classes", {"task.json": json.dumps(task)}, 3, classes, "single_label_classification"),
        ("number", none, 1, {"0": "LABEL_0"}, "regression"),
    ):
        write_run(tmp_path / name, make_model(ClassifierModel, num_classes=num_classes).variables, companions=described)
        export(str(tmp_path / name), tmp_path / f"{name}_out")
        config = read_json(tmp_path / f"{name}_out" / "config.json")
        assert (config["id2label"], config["problem_type"]) == (labels, problem)
        assert config["label2id"] == {label: int(number) for number, label in labels.items()}
        assert ("text_pair" in (tmp_path / f"{name}_out/README.md").read_text()) == bool(described)


def test_casing(tmp_path):
    config = dataclasses.replace(CONFIG, vocab_size=len(CASED_VOCAB))
    write_run(tmp_path / "cased", make_model(BertEncoder, config).variables, config=config, vocab=CASED_VOCAB)
    recorded = {"tokenizer_config.json": '{"do_lower_case": false}'}
    write_run(tmp_path / "said", make_model(BertEncoder).variables, companions=recorded)
    for name in ("cased", "said"):
        export(str(tmp_path / name), tmp_path / f"{name}_out")
        assert read_json(tmp_path / f"{name}_out" / "tokenizer_config.json")["do_lower_case"] is False
        assert read_json(tmp_path / f"{name}_out" / "tokenizer.json")["normalizer"]["lowercase"] is False
        assert "text with its capitals, accents kept, up to" in (tmp_path / f"{name}_out" / "README.md").read_text()


def test_a_folder_with_files_is_replaced_only_on_request(tmp_path):
    write_run(tmp_path / "run", make_model(PretrainingModel).variables)
    out = tmp_path / "out"
    out.mkdir()
    export(str(tmp_path / "run"), out)  # an empty one is no obstacle
    (out / "config.json").write_text("{}", encoding="utf-8")
    refused("--replace", export, str(tmp_path / "run"), out)
    assert (out / "config.json").read_text(encoding="utf-8") == "{}"
    (out / "README.md").write_text("mine")
    *_, said = export(str(tmp_path / "run"), out, replace=True)
    assert (out / "README.md").read_text() == "mine" and "README.md is the one that was there" in said
    assert read_json(out / "config.json")["model_type"] == "bert"
    (out / "thesis.tex").write_text("precious", encoding="utf-8")
    refused("thesis.tex", export, str(tmp_path / "run"), out, replace=True)
    assert (out / "thesis.tex").exists()
    refused("is a file", export, str(tmp_path / "run"), out / "thesis.tex", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"], "nothing half-made beside it"


LARGER = dataclasses.replace(CONFIG, intermediate_size=48)
SHALLOWER = dataclasses.replace(CONFIG, num_hidden_layers=1)


def without(name):
    return lambda variables: [v for v in variables if not v.name.startswith(name)]


def with_a_nan(variables):
    *others, last = variables
    return [*others, tf.Variable(tf.fill(last.shape, float("nan")), name=last.name.split(":")[0])]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (without("bert/encoder/layer_1/output/dense/kernel"), {}, r"its encoder .* lacks .*layer_1/output/den"),
        (without("cls/predictions/transform/dense"), {}, "dense/kernel is missing, not .16, 16., .*2 variables in all"),
        (list, {"config": LARGER}, r"/bert_config.json says intermediate_size=48, but .*dense/bias in .* is \[32\]"),
        (list, {"config": SHALLOWER}, "also has .*layer_1.*; name a"),
        (with_a_nan, {}, "not finite"),
        (list, {"vocab": [*VOCAB, "more"]}, f"has {len(VOCAB) + 1} pieces"),
    ],
)
def test_refused(tmp_path, change, options, message):
    write_run(tmp_path / "run", change(make_model(PretrainingModel).variables), **options)
    refused(message, export, str(tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the command sets, too
    path = write_run(tmp_path / "run", make_model(PretrainingModel).variables)
    for options in ([], ["--replace"]):
        main(["to_hugging_face", str(path), str(tmp_path / "out"), *options])
        assert "\nBertForPreTraining with" in capsys.readouterr().out
    for arguments, message in (([path, tmp_path / "out"], "--replace"), ([path], "FOLDER; see --help")):
        refused(message, main.__wrapped__, ["to_hugging_face", *map(str, arguments)])


# --- The model card, which tells what the model is, and nothing of the machine ---


def test_what_a_card_says_of_the_data_is_no_path(tmp_path):
    checkpoint = write_run(tmp_path / "run", make_model(BertEncoder).variables[:1])
    config_file = tmp_path / "run/config.json"
    for data, expected in (({"first_file": "/x/secret/train-v1.1.json"}, "train-v1.1.json"), ({}, "")):
        config_file.write_text(json.dumps({"identity": {}, "data": data}))
        assert training_data_name(checkpoint) == expected
    config_file.unlink()
    refused("no config.json", training_data_name, checkpoint)
    assert training_data_name(tmp_path) == ""


# --- What cannot be read, with any of its files cut, emptied, replaced by junk or by a folder ---


def google(folder):
    folder.mkdir()
    pieces = [*SPECIAL_TOKENS, *map(str, range(published.VOCAB - len(SPECIAL_TOKENS)))]
    published.write_encoder(folder, pieces, published.POSITIONS, **published.HEADS_OF_PRETRAINING)


def keras(folder):
    google(folder)
    for file in folder.glob("bert_model.ckpt*"):
        file.unlink()
    tf.train.Checkpoint(model=published.keras_model(with_heads=True, old=True)).write(str(folder / "bert_model.ckpt"))


def run_folder(folder):
    write_run(folder, make_model(PretrainingModel).variables)


def hugging_face(folder):
    """With all files that an export has."""
    run_folder(folder.with_name("run"))
    export(str(folder.with_name("run")), folder)


def damage(path, content):
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("write", [google, keras, run_folder, hugging_face])
def test_damaged_weights(write, tmp_path):
    """They are exported or refused in one line that names the place, and then nothing is left."""
    sound, case, made, num_refused = tmp_path / "sound", tmp_path / "case", tmp_path / "made", 0
    write(sound)
    files = [path.relative_to(sound) for path in sorted(sound.rglob("*")) if path.is_file()]
    for file in files:
        whole = (sound / file).read_bytes()
        flipped = bytes(byte ^ (number == len(whole) // 2) for number, byte in enumerate(whole))
        for content in (whole[: len(whole) // 2], whole[:-1], flipped, b"", b"{}", b'[1, "\xff"]', None):
            shutil.copytree(sound, case)
            damage(case / file, content)
            try:
                export(str(case), made)
            except Exception as raised:
                error = as_user_error(raised)  # as the programs do
                assert error and str(case) in str(error) and "\n" not in str(error), (file, raised)
                assert not made.exists(), file
                num_refused += 1
            shutil.rmtree(made, ignore_errors=True)
            shutil.rmtree(case)
    assert num_refused > 3 * len(files)
