"""The weights a run starts from: found by any path, checked, loaded, and what was missing said."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.initialise import (
    choose_config,
    choose_tokenizer,
    choose_vocabulary,
    find_weights,
    initialise_from,
)
from bert_tf.model.heads import ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel
from bert_tf.run.checkpoint import CheckpointFolder, save_encoder
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import wordpiece_pipeline
from bert_tf.text.tokenizer import CasingFlags, open_tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, ids_of
from bert_tf.text.wordpiece import FullTokenizer
from tests.google_checkpoints import CONFIG, HEADS_OF_PRETRAINING, published_names, random_values, write_tf1
from tests.refusals import refused
from tests.sentencepiece_models import write_model

HUGGING_FACE = Path(__file__).parents[1] / "golden" / "hugging_face"


class Notes:
    """Stands for telemetry."""

    def __init__(self):
        self.notes, self.warnings = [], []
        self.note, self.warning = self.notes.append, self.warnings.append


def write_pieces(path, *pieces):
    """A vocabulary of the special tokens and these."""
    path.write_text("".join(f"{piece}\n" for piece in (*SPECIAL_TOKENS, *pieces)), encoding="utf-8")
    return path


def their_folder(tmp_path, *pieces, settings=None):
    """The model of transformers in a folder that may be changed, with a vocabulary."""
    folder = shutil.copytree(HUGGING_FACE, tmp_path / "model")
    write_pieces(folder / "vocab.txt", *pieces)
    if settings:
        (folder / "tokenizer_config.json").write_text(settings)
    return folder


@pytest.fixture(scope="module")
def google(tmp_path_factory):
    folder = tmp_path_factory.mktemp("google")
    return write_tf1(folder, random_values({**published_names(2), **HEADS_OF_PRETRAINING}))


def test_every_kind_of_path(google, tmp_path):
    for path in (google, google / "bert_model.ckpt"):
        assert find_weights(path).source == str(google / "bert_model.ckpt")
    model = PretrainingModel(CONFIG, seed=3)
    companions = {"bert_config.json": CONFIG.to_json(), "vocab.txt": "[PAD]\n"}
    run = CheckpointFolder(tmp_path / "checkpoints", keep=2, vocab_size=CONFIG.vocab_size, companions=companions)
    saved = run.save(1, model.variables, {})
    for path in (tmp_path, saved, saved / "bert_model.ckpt"):
        weights = find_weights(path)
        assert (weights.folder, weights.config) == (saved, CONFIG)
        assert weights.tokenizer.vocab_file == saved / "vocab.txt"
    assert find_weights(HUGGING_FACE).config.hidden_act == "gelu_exact"


def test_a_damaged_newest_checkpoint_of_a_run_is_named(tmp_path):
    model, telemetry = PretrainingModel(CONFIG, seed=3), Notes()
    run = CheckpointFolder(tmp_path / "checkpoints", keep=2, vocab_size=CONFIG.vocab_size, companions={})
    sound, damaged = (run.save(update, model.variables, {}) for update in (1, 2))
    (damaged / "state.json").write_text("{}")
    weights = find_weights(tmp_path)
    assert weights.folder == sound
    initialise_from(weights, model, telemetry)
    [warning] = telemetry.warnings
    assert warning == f"checkpoint {damaged} is damaged (state.json does not match its sha256) and is skipped"


def test_the_encoder_alone(tmp_path):
    model = PretrainingModel(CONFIG, seed=3)
    save_encoder(tmp_path, model.variables, CONFIG.vocab_size, {"bert_config.json": CONFIG.to_json()})
    weights = find_weights(tmp_path / "pretrained")
    assert weights.source.endswith("bert_model.ckpt-1") and weights.config == CONFIG
    assert weights.shapes == dict(sorted(published_names(2).items()))
    np.testing.assert_array_equal(weights.read("bert/pooler/dense/kernel"), model.bert.pooler.dense[0])


def test_what_is_missing_and_unused_is_said_with_its_shape(google):
    telemetry = Notes()
    initialise_from(find_weights(google), SpanModel(CONFIG), telemetry)
    started, missing, unused = telemetry.notes
    assert "39 variables loaded" in started and not telemetry.warnings
    assert "left as initialised: cls/squad/output_weights [2, 8], cls/squad/output_bias [2]" in missing
    assert "not used: " in unused and "cls/seq_relationship/output_weights [2, 8]" in unused
    assert "cls/predictions/output_bias [19]" in unused
    initialise_from(None, SpanModel(CONFIG), telemetry)
    assert telemetry.notes[-1] == "starting from random weights"


def test_a_start_from_pretraining_without_next_sentence_and_to_it(tmp_path):
    """A classifier gets a pooler of its own, and it is said; weights with a pooler serve a model that has none."""
    model, telemetry = MaskedWordModel(CONFIG, seed=3), Notes()
    save_encoder(tmp_path, model.variables, CONFIG.vocab_size, {"bert_config.json": CONFIG.to_json()})
    initialise_from(find_weights(tmp_path / "pretrained"), ClassifierModel(CONFIG, 3), telemetry)
    (missing,) = telemetry.notes[1:]
    assert "not in the checkpoint, left as initialised: bert/pooler/dense/kernel [8, 8], bert/pooler" in missing
    assert "output_weights" in missing

    whole, telemetry = PretrainingModel(CONFIG, seed=4), Notes()
    run = CheckpointFolder(tmp_path / "checkpoints", keep=2, vocab_size=CONFIG.vocab_size, companions={})
    initialise_from(find_weights(run.save(1, whole.variables, {})), model, telemetry)
    (unused,) = telemetry.notes[1:]
    assert "in the checkpoint, not used: bert/pooler/dense/bias [8], bert/pooler/dense/kernel" in unused
    assert "cls/seq_relationship/output_weights [2, 8]" in unused and "embeddings" not in unused
    np.testing.assert_array_equal(model.variables[0], whole.variables[0])


def changed(**changes):
    return BertConfig(**{**CONFIG.to_dict(), **changes})


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"num_attention_heads": 4}, "num_attention_heads=2, the model has 4"),
        ({"vocab_size": 24}, r"word_embeddings is \[19, 8\], the model wants \[24, 8\]: .* vocabulary"),
        ({"num_hidden_layers": 3}, "lacks bert.encoder.layer_2.*; .* --allow_missing_weights"),
        ({"intermediate_size": 16}, r"kernel is \[8, 12\], the model wants \[8, 16\]: they are of another model size"),
    ],
)
def test_weights_of_another_model_are_refused(google, changes, words):
    config = changed(**changes)
    refused(words, initialise_from, find_weights(google), SpanModel(config), Notes())


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"bert/encoder/layer_1/output/dense/bias": None}, "lacks bert/encoder/layer_1/output/dense/bias .1 var"),
        ({"bert/encoder/layer_0/mlp/gate/kernel": [8, 8]}, "also has bert/encoder/layer_0/mlp/gate/kernel"),
        ({"bert/encoder/layer_2/output/dense/bias": [8]}, "also has bert.encoder.layer_2"),
    ],
)
def test_an_encoder_that_fits_only_in_part_needs_a_flag(tmp_path, changes, words):
    shapes = {name: shape for name, shape in {**published_names(2), **changes}.items() if shape}
    weights, model, telemetry = find_weights(write_tf1(tmp_path, random_values(shapes))), SpanModel(CONFIG), Notes()
    refused(words, initialise_from, weights, model, telemetry)
    assert not telemetry.notes
    initialise_from(weights, model, telemetry, allow_missing=True)
    assert any(name in note for name in changes for note in telemetry.notes)


def test_another_activation_is_a_warning_and_another_model_a_fault(google, tmp_path):
    telemetry, config = Notes(), changed(hidden_act="gelu_exact")
    initialise_from(find_weights(google), SpanModel(config), telemetry)
    assert len(telemetry.warnings) == 1 and "hidden_act=gelu, the model computes gelu_exact" in telemetry.warnings[0]
    write_tf1(tmp_path, {"my/kernel": np.zeros([2, 2], np.float32)})
    with pytest.raises(
        UserError, match="holds none of the model's variables, but my/kernel .1 variables in all.; name a BERT"
    ):
        initialise_from(find_weights(tmp_path), SpanModel(CONFIG), Notes(), allow_missing=True)


def test_records_of_another_vocabulary_are_refused(tmp_path):
    pieces = ["cat", "\u2028", "la"]
    folder = their_folder(tmp_path, *pieces, settings='{"do_lower_case": true, "strip_accents": false}')
    model = PretrainingModel(find_weights(folder).config)

    def begin(data_pieces, *casing):
        files = FullTokenizer(write_pieces(tmp_path / "data.txt", *data_pieces), *casing).files()
        initialise_from(find_weights(folder), model, Notes(), tokenizer_files=files)

    begin(pieces, True, False)
    begin([*pieces, ""], True, False)  # an empty line is no piece
    unknown_casing = {"vocab.txt": (folder / "vocab.txt").read_text()}
    initialise_from(find_weights(folder), model, Notes(), tokenizer_files=unknown_casing)
    message = "another vocabulary than the records: piece 5 is 'cat', 'dog' in theirs"
    refused(message, begin, ["dog", *pieces[1:]], True, False)
    refused(r"piece 6 is '\\u2028', '' in theirs", begin, ["cat", "", "la"], True, False)
    refused("do_lower_case=1, strip_accents=0, the records were made with .*_accents=1", begin, pieces, True)
    (folder / "vocab.txt").write_bytes(b"[PAD]\nc\xff\n")
    refused("vocab.txt: byte 7 is not UTF-8", begin, pieces, True, False)


def test_records_that_were_cut_otherwise_than_the_model_s_text_are_refused(tmp_path):
    folder, pieces = shutil.copytree(HUGGING_FACE, tmp_path / "model"), ["e-mail", "e", "-", "mail"]
    pipeline = wordpiece_pipeline(ids_of([*SPECIAL_TOKENS, *pieces]), Casing.of(True))
    pipeline.save(str(folder / "tokenizer.json"))
    write_pieces(tmp_path / "vocab.txt", *pieces)
    model, ours = PretrainingModel(find_weights(folder).config), FullTokenizer(tmp_path / "vocab.txt").files()
    initialise_from(find_weights(folder), model, Notes(), tokenizer_files=ours)  # BERT's own rules
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.save(str(folder / "tokenizer.json"))
    message = "has a tokenizer.json that gives other tokens than the records"
    refused(message, initialise_from, find_weights(folder), model, Notes(), tokenizer_files=ours)
    files = open_tokenizer(folder / "tokenizer.json").files()
    initialise_from(find_weights(folder), model, Notes(), tokenizer_files=files)


def test_records_of_a_sentencepiece_model_of_which_a_list_lies_beside_the_weights(tmp_path):
    folder = shutil.copytree(HUGGING_FACE, tmp_path / "model")
    tokenizer = open_tokenizer(write_model(folder / "own.model"), do_lower_case=False)
    (folder / "vocab.txt").write_text(tokenizer.files()["vocab.txt"], encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    weights = find_weights(folder)
    model = PretrainingModel(weights.config)
    initialise_from(weights, model, Notes(), tokenizer_files=tokenizer.files())
    others = open_tokenizer(write_model(tmp_path / "other.model", model_type="bpe"), do_lower_case=False).files()
    refused("has another vocabulary than the records", initialise_from, weights, model, Notes(), tokenizer_files=others)


def test_what_is_no_model_is_named(google, tmp_path):
    shutil.copy(HUGGING_FACE / "config.json", tmp_path)
    for path in (tmp_path / "nowhere", tmp_path):
        refused(f"^--init_checkpoint={path}: no model is there; .* unpack an", find_weights, path)
    for name in ("model.ckpt-1", "model.ckpt-2"):
        shutil.copy(google / "bert_model.ckpt.index", tmp_path / f"{name}.index")
    refused(f"name {tmp_path}/model.ckpt-1 or {tmp_path}/model.ckpt-2$", find_weights, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    refused("no checkpoint has been saved", find_weights, tmp_path)


@pytest.mark.parametrize(
    ("named", "prefixes"),
    [
        ("model.ckpt", "FOLDER/model.ckpt-1000000"),
        ("model.ckpt-1000000.index", "FOLDER/best or FOLDER/model.ckpt-1000000"),
        ("model.ckpt-7", "FOLDER/best or FOLDER/model.ckpt-1000000"),
    ],
)
def test_a_path_beside_a_checkpoints_prefix_is_told_the_prefix(google, tmp_path, named, prefixes):
    for name in ("best", "model.ckpt-1000000"):
        shutil.copy(google / "bert_model.ckpt.index", tmp_path / f"{name}.index")
    expected = prefixes.replace("FOLDER", str(tmp_path))
    refused(f"is no checkpoint's name.*; name {expected}$", find_weights, tmp_path / named)


def test_configuration_and_vocabulary(google, tmp_path):
    weights = find_weights(google)
    assert choose_config(None, weights) == CONFIG
    assert choose_config(str(HUGGING_FACE / "config.json"), None).vocab_size == 23
    published = dict(directionality="bidi", pooler_fc_size=768, pooler_type="first_token_transform")
    (tmp_path / "bert_config.json").write_text(json.dumps({**CONFIG.to_dict(), **published}))
    assert choose_config(str(tmp_path / "bert_config.json"), None) == CONFIG
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    assert choose_vocabulary(str(tmp_path / "vocab.txt"), weights) == tmp_path / "vocab.txt"
    for choose, flag in ((choose_config, "bert_config_file"), (choose_vocabulary, "vocab_file")):
        refused(f"--{flag} is required, as no --init_checkpoint", choose, None, None)
    refused("--vocab_file is required, as .*vocab.txt does not exist", choose_vocabulary, None, weights)


def test_one_rule_for_the_casing(tmp_path):
    """Weights may contradict their vocabulary (bert-base-chinese: cased, of lower-case pieces); a user may not."""
    size = find_weights(HUGGING_FACE).config.vocab_size - len(SPECIAL_TOKENS)
    folder = their_folder(tmp_path, *(f"p{number}" for number in range(size)))
    config = find_weights(folder).config
    for stated, text in ((False, '{"do_lower_case": false}'), (True, '{"do_lower_case": true}'), (True, "{}")):
        (folder / "tokenizer_config.json").write_text(text)
        for vocab_file in (None, str(folder / "vocab.txt")):
            tokenizer, assumed = choose_tokenizer(vocab_file, CasingFlags(), config, find_weights(folder))
            assert tokenizer.casing == (stated, stated) and bool(assumed) == (text == "{}")
    assert f"{folder}/vocab.txt: do_lower_case=1, strip_accents=1 is assumed" in assumed
    message = "pass --do_lower_case=1 with an uncased model"
    refused(message, choose_tokenizer, None, CasingFlags(False), config, find_weights(folder))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    message = "--do_lower_case=1: .*tokenizer_config.json says .*do_lower_case=0"
    refused(message, choose_tokenizer, None, CasingFlags(True), config, find_weights(folder))


def test_rows_of_the_word_table_without_a_piece(tmp_path):
    """Publishers pad tables and reserve rows; another model's vocabulary is still found out by its size."""
    weights = find_weights(their_folder(tmp_path, "cat"))
    other = str(write_pieces(tmp_path / "vocab.txt", "cat"))
    for vocab_file, rows, fits in ((None, 1000, True), (other, 1000, False), (other, 64, True), (None, 5, False)):
        arguments = (vocab_file, CasingFlags(), dataclasses.replace(weights.config, vocab_size=rows), weights)
        if fits:
            assert choose_tokenizer(*arguments)[0].vocab_size == 6
        else:
            message = f"has 6 pieces, but the model's configuration says vocab_size={rows}"
            refused(message, choose_tokenizer, *arguments)
