"""A checkpoint becomes a folder for Hugging Face's transformers: names, layouts, values, settings, refusals.

test_hugging_face_parity.py loads such folders by transformers, where that is installed.
"""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from bert_tf.interchange.export import data_of, export, write_card
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.to_hugging_face import main
from bert_tf.model.heads import MaskedWordModel, PretrainingModel, SpanModel, TokenModel
from bert_tf.text.basic_tokenizer import Casing
from tests.exported import CASED_VOCAB, CLASSIFIER, CONFIG, ENCODER_ONLY, VOCAB, make_variables, write_run
from tests.refusals import refused

FILES = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]


def by_name(variables):
    return {variable.name.split(":")[0]: variable.numpy() for variable in variables}


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_pretrained_run(tmp_path):
    variables = make_variables(PretrainingModel)
    write_run(tmp_path / "run", variables)
    lines = export(str(tmp_path / "run"), tmp_path / "out")

    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert lines[-1].startswith("BertForPreTraining with")
    ours, theirs = by_name(variables), load_file(tmp_path / "out" / "model.safetensors")
    assert len(theirs) == len(ours)
    for name, expected in {
        "bert.embeddings.word_embeddings.weight": ours["bert/embeddings/word_embeddings"][: len(VOCAB)],
        "bert.embeddings.LayerNorm.weight": ours["bert/embeddings/LayerNorm/gamma"],
        "bert.encoder.layer.1.attention.self.query.weight": ours["bert/encoder/layer_1/attention/self/query/kernel"].T,
        "bert.encoder.layer.0.output.LayerNorm.bias": ours["bert/encoder/layer_0/output/LayerNorm/beta"],
        "bert.pooler.dense.weight": ours["bert/pooler/dense/kernel"].T,
        "cls.predictions.transform.dense.weight": ours["cls/predictions/transform/dense/kernel"].T,
        "cls.predictions.bias": ours["cls/predictions/output_bias"][: len(VOCAB)],
        "cls.seq_relationship.weight": ours["cls/seq_relationship/output_weights"],
    }.items():
        np.testing.assert_array_equal(theirs[name], expected, err_msg=name)
    config = read_json(tmp_path / "out" / "config.json")
    assert config["architectures"] == ["BertForPreTraining"]
    assert config["hidden_act"] == "gelu_new", "their gelu is not the approximation by tanh"
    assert (config["vocab_size"], config["layer_norm_eps"], config["pad_token_id"]) == (len(VOCAB), 1e-12, 0)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1, "who can read one file can read all"


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        (PretrainingModel, "BertForPreTraining"),
        (MaskedWordModel, "BertForMaskedLM"),
        (SpanModel, "BertForQuestionAnswering"),
        (CLASSIFIER, "BertForSequenceClassification"),
        (TokenModel, "BertForTokenClassification"),
        (ENCODER_ONLY, "BertModel"),
    ],
)
def test_round_trip_gives_the_same_bits(tmp_path, kind, architecture):
    variables, config = make_variables(kind), dataclasses.replace(CONFIG, hidden_act="gelu_exact")
    write_run(tmp_path / "run", variables, config=config)
    export(str(tmp_path / "run"), tmp_path / "out")
    again = find_weights(tmp_path / "out")
    assert again.config == config and again.tokenizer.casing == (True, True) and again.tokenizer.vocab_file
    assert read_json(tmp_path / "out" / "config.json")["architectures"] == [architecture]
    ours = by_name(variables)
    left_out = {name for name in ours if kind in (SpanModel, TokenModel) and name.startswith("bert/pooler/")}
    assert set(again.shapes) == set(ours) - left_out
    for name in again.shapes:
        stored = again.read(name)
        np.testing.assert_array_equal(stored, ours[name][: len(stored)], err_msg=name)


def test_only_the_heads_that_are_there_count(tmp_path):
    variables = [v for v in make_variables(PretrainingModel) if "seq_relationship" not in v.name]
    write_run(tmp_path / "run", variables)
    lines = export(str(tmp_path / "run"), tmp_path / "out")
    assert read_json(tmp_path / "out" / "config.json")["architectures"] == ["BertForMaskedLM"]
    assert "left out" in lines[0] and "bert/pooler/dense/bias [16]" in lines[0]


def test_labels(tmp_path):
    task = {"task_name": "MNLI", "labels": ["contradiction", "entailment", "neutral"]}
    write_run(tmp_path / "run", make_variables(CLASSIFIER), companions={"task.json": json.dumps(task)})
    export(str(tmp_path / "run"), tmp_path / "out")
    config = read_json(tmp_path / "out" / "config.json")
    assert config["id2label"] == {"0": "contradiction", "1": "entailment", "2": "neutral"}
    assert config["label2id"]["neutral"] == 2 and config["problem_type"] == "single_label_classification"

    write_run(tmp_path / "other", make_variables(CLASSIFIER, num_classes=1), companions={})
    export(str(tmp_path / "other"), tmp_path / "number")
    config = read_json(tmp_path / "number" / "config.json")
    assert config["id2label"] == {"0": "LABEL_0"} and config["problem_type"] == "regression"

    write_run(tmp_path / "wrong", make_variables(CLASSIFIER), companions={"task.json": '{"labels": ["a"]}'})
    refused("names 1 labels, the weights have 3 classes", export, str(tmp_path / "wrong"), tmp_path / "out2")


def test_casing(tmp_path):
    config = dataclasses.replace(CONFIG, vocab_size=len(CASED_VOCAB))
    write_run(tmp_path / "cased", make_variables(ENCODER_ONLY, config), config=config, vocab=CASED_VOCAB)
    recorded = {"tokenizer_config.json": '{"do_lower_case": false}'}
    write_run(tmp_path / "said", make_variables(ENCODER_ONLY), companions=recorded)
    for name in ("cased", "said"):
        export(str(tmp_path / name), tmp_path / f"{name}_out")
        assert read_json(tmp_path / f"{name}_out" / "tokenizer_config.json")["do_lower_case"] is False
        assert read_json(tmp_path / f"{name}_out" / "tokenizer.json")["normalizer"]["lowercase"] is False


def test_a_folder_with_files_is_replaced_only_on_request(tmp_path):
    write_run(tmp_path / "run", make_variables(PretrainingModel))
    out = tmp_path / "out"
    out.mkdir()
    export(str(tmp_path / "run"), out)  # an empty one is no obstacle
    (out / "config.json").write_text("{}", encoding="utf-8")
    refused("--replace", export, str(tmp_path / "run"), out)
    assert (out / "config.json").read_text(encoding="utf-8") == "{}"
    export(str(tmp_path / "run"), out, replace=True)
    assert read_json(out / "config.json")["model_type"] == "bert"
    (out / "thesis.tex").write_text("precious", encoding="utf-8")
    refused("thesis.tex", export, str(tmp_path / "run"), out, replace=True)
    assert (out / "thesis.tex").exists()
    refused("is a file", export, str(tmp_path / "run"), out / "thesis.tex", replace=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"], "nothing half-made beside it"


def without(name):
    return [v for v in make_variables(PretrainingModel) if not v.name.startswith(name)]


def complete():
    return make_variables(PretrainingModel)


def with_a_nan():
    *others, last = make_variables(PretrainingModel)
    return [*others, tf.Variable(tf.fill(last.shape, float("nan")), name=last.name.split(":")[0])]


@pytest.mark.parametrize(
    ("variables", "options", "message"),
    [
        (lambda: without("bert/encoder/layer_1/output/dense/kernel"), {}, r"its encoder .* lacks .*layer_1/output/den"),
        (lambda: without("cls/predictions/transform/dense"), {}, "2 variables in all"),
        (
            complete,
            {"config": dataclasses.replace(CONFIG, intermediate_size=48)},
            "lacks .*layer_0/intermediate/dense/kernel .16, 48., .*or has other shapes",
        ),
        (complete, {"config": dataclasses.replace(CONFIG, num_hidden_layers=1)}, "also has .*layer_1.*; name a"),
        (with_a_nan, {}, "not finite"),
        (complete, {"vocab": [*VOCAB, "more"]}, f"has {len(VOCAB) + 1} pieces"),
    ],
)
def test_refused(tmp_path, variables, options, message):
    write_run(tmp_path / "run", variables(), **options)
    refused(message, export, str(tmp_path / "run"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # which the command sets, too
    path = write_run(tmp_path / "run", make_variables(PretrainingModel))
    for options in ([], ["--replace"]):
        main(["to_hugging_face", str(path), str(tmp_path / "out"), *options])
        assert "\nBertForPreTraining with" in capsys.readouterr().out
    for arguments, message in (([path, tmp_path / "out"], "--replace"), ([path], "FOLDER; see --help")):
        refused(message, main.__wrapped__, ["to_hugging_face", *map(str, arguments)])


# --- The model card, which tells what the model is, and nothing of the machine ---


@pytest.mark.parametrize(
    ("pipeline", "call"),
    [
        ("fill-mask", '"A sentence with a [MASK] in it."'),
        ("question-answering", "AutoModelForQuestionAnswering.from_pretrained"),
        ("feature-extraction", 'pipeline("feature-extraction"'),
    ],
)
def test_what_it_is_and_how_to_use_it(pipeline, call):
    casing, data = Casing(True, False), "sample" if pipeline == "fill-mask" else ""
    text = write_card(
        "BertModel", pipeline, name="my-model", config=CONFIG, casing=casing, num_weights=12345, data=data
    )
    assert "# my-model\n" in text and "(BertModel): 2 layers of width 16" in text and "12,345 weights" in text
    assert "lower-cased, accents kept, up to 32 tokens" in text and ("trained on sample." in text) == bool(data)
    assert call in text and text.endswith("\n") and not re.search(r"\{[{%]|None|Undefined", text)
    compile(text.partition("```python\n")[2].partition("```")[0], "card", "exec")


def test_the_data_without_its_path(tmp_path):
    checkpoint = write_run(tmp_path / "run", make_variables(ENCODER_ONLY)[:1])
    config_file = tmp_path / "run/config.json"
    for data, expected in (
        ({"dataset": "sample", "first_file": "/x/secret/f"}, "sample"),
        ({"first_file": "/x/secret/train-v1.1.json"}, "train-v1.1.json"),
        ({}, ""),
    ):
        config_file.write_text(json.dumps({"identity": {}, "data": data}))
        assert data_of(checkpoint) == expected
    config_file.unlink()
    refused("no config.json", data_of, checkpoint)
    assert data_of(tmp_path) == ""
