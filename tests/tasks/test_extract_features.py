"""Texts into vectors: the layers' own numbers, in the order of the texts, whatever the batches are."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.interchange.pretrained import from_pretrained
from bert_tf.tasks.extract_features import CLS, MEAN, TOKENS, Settings, extract, main
from tests.exported import ENCODER_ONLY, make_variables, write_run

# Shorter and longer ones, in no order, one of them empty and one that is cut off.
TEXTS = ["the river", "", "the sea into " * 20, "unaffable cafe", "flows"] * 3
LENGTHS = [4, 2, 24, 6, 3] * 3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), make_variables(ENCODER_ONLY))


@pytest.fixture(scope="module")
def model(checkpoint):
    return from_pretrained(checkpoint)


@pytest.mark.computes
@pytest.mark.parametrize("vectors", [TOKENS, CLS, MEAN])
def test_vectors_are_the_layers(model, vectors):
    found = list(extract(model, TEXTS, Settings((-1, 0), vectors, max_seq_length=24, batch_size=4)))
    assert [len(extracted.tokens) for extracted in found] == LENGTHS
    for text, extracted in zip(TEXTS, found):
        length = len(extracted.tokens)
        features = model.features([text], 24)
        states = model.encoder.hidden_states({name: tf.constant(value) for name, value in features.items()})
        for layer in (-1, 0):
            state = states[layer][0, :length].numpy()
            expected = {TOKENS: state, CLS: state[0], MEAN: state.mean(axis=0)}[vectors]
            np.testing.assert_allclose(extracted.layers[layer], expected, atol=2e-6)


def test_what_the_model_lacks_is_refused(model):
    for settings, message in (
        (Settings((3,)), r"--layers: 3: the model has layers 1 to 2"),
        (Settings((-4,)), r"--layers: -4"),
        (Settings(max_seq_length=33), r"--max_seq_length=33: must be at least 3, .* and at most 32"),
        (Settings(max_seq_length=2), r"--max_seq_length=2: must be at least 3"),
    ):
        with pytest.raises(UserError, match=message):
            extract(model, TEXTS, settings)


def run(*arguments):
    main.__wrapped__(["extract_features", *map(str, arguments)])


def test_files(checkpoint, model, tmp_path):
    (tmp_path / "texts").write_text("\n".join(TEXTS), encoding="utf-8")
    for output, options in (("tokens.jsonl", ["--layers=-1,1"]), ("tokens.npz", []), ("mean.npz", ["--vectors=mean"])):
        common = [checkpoint, "--input", tmp_path / "texts", "--output", tmp_path / output, "--max_seq_length=24"]
        run(*common, *options)
    extracted = list(extract(model, TEXTS, Settings((-1, 1), max_seq_length=24)))
    lines = [json.loads(line) for line in (tmp_path / "tokens.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["linex_index"] for line in lines] == list(range(len(TEXTS)))
    for line, expected in zip(lines, extracted):
        assert [feature["token"] for feature in line["features"]] == expected.tokens
        for number, index in enumerate((-1, 1)):
            values = [feature["layers"][number]["values"] for feature in line["features"]]
            assert {feature["layers"][number]["index"] for feature in line["features"]} == {index}
            np.testing.assert_allclose(values, expected.layers[index], atol=2e-6)
    arrays, means = np.load(tmp_path / "tokens.npz"), np.load(tmp_path / "mean.npz")
    np.testing.assert_array_equal(arrays["ends"], np.cumsum(LENGTHS))
    np.testing.assert_allclose(arrays["layer_-1"][:4], extracted[0].layers[-1], atol=2e-6)
    assert list(arrays["tokens"][:4]) == ["[CLS]", "the", "river", "[SEP]"]
    np.testing.assert_allclose(means["layer_-1"][0], extracted[0].layers[-1].mean(axis=0), atol=2e-6)
    options = ["--max_seq_length=24", "--replace", "--layers", "-1,-2"]
    for output in ("tokens.jsonl", "tokens.npz"):
        run(checkpoint, "--input", tmp_path / "texts", "--output", tmp_path / output, *options)
    np.testing.assert_array_equal(np.load(tmp_path / "tokens.npz")["layer_-1"], arrays["layer_-1"])


def test_a_damaged_newest_checkpoint_is_named(tmp_path, capsys):
    for update in (1, 2):
        newest = write_run(tmp_path / "run", make_variables(ENCODER_ONLY), update=update)
    (newest / "state.json").write_text("{}")
    (tmp_path / "texts").write_text("the river\n", encoding="utf-8")
    run(tmp_path / "run", "--input", tmp_path / "texts", "--output", tmp_path / "a.npz", "--max_seq_length=24")
    assert f"warning: checkpoint {newest} is damaged" in capsys.readouterr().err
    with pytest.warns(UserWarning, match=f"checkpoint {newest} is damaged"):
        from_pretrained(tmp_path / "run")


def test_mistakes(tmp_path):
    texts, latin1, empty = (tmp_path / name for name in ("texts", "latin1", "empty"))
    texts.write_text("the river", encoding="utf-8")
    latin1.write_bytes(b"the\nriv\xe9re\n")
    empty.write_bytes(b"")
    (tmp_path / "old.jsonl").write_text("precious", encoding="utf-8")
    (tmp_path / "ours.jsonl").write_text('{"linex_index": 0, "layers": []}', encoding="utf-8")
    for text, output, options, message in (
        (texts, "new.txt", [], "must end in .jsonl or .npz"),
        (texts, "ours.jsonl", [], f"^{tmp_path}/ours.jsonl exists; replace it with --replace"),
        (
            texts,
            "old.jsonl",
            ["--replace"],
            f"--output={tmp_path}/old.jsonl is a file that this program has not written",
        ),
        (texts, "new.npz", ["--layers=one"], "--layers=one: must be a whole number"),
        (texts, "new.npz", ["--batch_size=99999999999"], "--batch_size=99999999999: must be at least 1 and at most"),
        (texts, "new.npz", ["--batch_size=0"], "--batch_size=0: must be at least 1"),
        (latin1, "new.npz", [], "latin1, line 2: byte 3 is not UTF-8"),
        (empty, "new.npz", [], "is empty"),
        (tmp_path / "none", "new.npz", [], "does not exist"),
    ):
        with pytest.raises(UserError, match=message):
            run(tmp_path, "--input", text, "--output", tmp_path / output, *options)
    with pytest.raises(UserError, match="^CHECKPOINT=nowhere: there is neither"):
        run("nowhere", "--input", texts, "--output", tmp_path / "new.npz")
    assert (tmp_path / "old.jsonl").read_text(encoding="utf-8") == "precious"
    assert not (tmp_path / "new.npz").exists()
