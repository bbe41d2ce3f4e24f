"""The weights a run starts from: found by any path, checked, loaded, and what was missing said."""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import pre_tokenizers

import bert_tf
from bert_tf.base.tensorflow import keras, tf
from bert_tf.interchange import initialise, pretrained
from bert_tf.interchange.export import export
from bert_tf.interchange.initialise import choose_config, choose_tokenizer, find_weights
from bert_tf.model.heads import ClassifierModel, MaskedWordModel, PretrainingModel, SpanModel
from bert_tf.run.checkpoint import save_encoder
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import wordpiece_pipeline
from bert_tf.text.tokenizer import CasingFlags, open_tokenizer
from bert_tf.text.vocabulary import SPECIAL_TOKENS, ids_by_piece
from bert_tf.text.wordpiece import FullTokenizer
from tests.exported import write_run
from tests.google_checkpoints import CONFIG, HEADS_OF_PRETRAINING, published_names, random_values, write_tf1
from tests.refusals import refused
from tests.sentencepiece_models import write_model

HUGGING_FACE = Path(__file__).parents[1] / "golden" / "hugging_face"


def started(weights, model, **options):
    """What a start from these weights notes, and what it warns of."""
    notes, warnings = [], []
    initialise.initialise_from(weights, model, SimpleNamespace(note=notes.append, warning=warnings.append), **options)
    return notes, warnings


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
    saved = write_run(tmp_path, PretrainingModel(CONFIG, seed=3).variables, config=CONFIG)
    for path in (tmp_path, saved, saved / "bert_model.ckpt"):
        weights = find_weights(path)
        assert (weights.folder, weights.config) == (saved, CONFIG)
        assert weights.tokenizer.vocab_file == saved / "vocab.txt"
    assert find_weights(HUGGING_FACE).config.hidden_act == "gelu_exact"


def test_a_damaged_newest_checkpoint_of_a_run_is_named(tmp_path):
    model = PretrainingModel(CONFIG, seed=3)
    sound, damaged = (write_run(tmp_path, model.variables, update=update, config=CONFIG) for update in (1, 2))
    (damaged / "state.json").write_text("{}")
    weights = find_weights(tmp_path)
    assert weights.folder == sound
    complaint = f"checkpoint {damaged} is damaged (state.json does not match its sha256) and is skipped"
    assert started(weights, model)[1] == [complaint]


def test_what_is_missing_and_unused_is_said_with_its_shape(google):
    (begun, missing, unused), warnings = started(find_weights(google), SpanModel(CONFIG))
    assert "39 variables loaded" in begun and not warnings
    assert "left as initialised: cls/squad/output_weights [2, 8], cls/squad/output_bias [2]" in missing
    assert "not used: " in unused and "cls/seq_relationship/output_weights [2, 8]" in unused
    assert "cls/predictions/output_bias [19]" in unused
    assert started(None, SpanModel(CONFIG))[0] == ["starting from random weights"]


def test_a_start_from_pretraining_without_next_sentence_and_to_it(tmp_path):
    """A classifier gets a pooler of its own, and it is said; weights with a pooler serve a model that has none."""
    model, whole = MaskedWordModel(CONFIG, seed=3), PretrainingModel(CONFIG, seed=4)
    companions, prefix = {"bert_config.json": CONFIG.to_json()}, tmp_path / "pretrained/bert_model.ckpt-1"
    save_encoder(prefix, model.variables, CONFIG.vocab_size, companions)
    weights = find_weights(tmp_path / "pretrained")
    assert weights.source.endswith("bert_model.ckpt-1") and weights.config == CONFIG
    encoder = {name: shape for name, shape in published_names(2).items() if "pooler" not in name}
    assert weights.shapes == dict(sorted(encoder.items()))
    _, missing = started(weights, ClassifierModel(CONFIG, 3))[0]
    assert "not in the checkpoint, left as initialised: bert/pooler/dense/kernel [8, 8], bert/pooler" in missing
    assert "output_weights" in missing

    (tmp_path / "whole").mkdir()
    save_encoder(tmp_path / "whole" / "pretrained" / "bert_model.ckpt-1", whole.variables, CONFIG.vocab_size, {})
    assert find_weights(tmp_path / "whole/pretrained").shapes == dict(sorted(published_names(2).items()))
    write_run(tmp_path, whole.variables, config=CONFIG)
    _, unused = started(find_weights(tmp_path), model)[0]
    assert "in the checkpoint, not used: bert/pooler/dense/bias [8], bert/pooler/dense/kernel" in unused
    assert "cls/seq_relationship/output_weights [2, 8]" in unused and "embeddings" not in unused
    np.testing.assert_array_equal(model.variables[0], whole.variables[0])


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
    refused(words, started, find_weights(google), SpanModel(dataclasses.replace(CONFIG, **changes)))


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
    weights, model = find_weights(write_tf1(tmp_path, random_values(shapes))), SpanModel(CONFIG)
    refused(words, started, weights, model)
    notes, _ = started(weights, model, allow_missing=True)
    assert any(name in note for name in changes for note in notes)


def test_another_activation_is_a_warning_and_another_model_a_fault(google, tmp_path):
    model = SpanModel(dataclasses.replace(CONFIG, hidden_act="gelu_exact"))
    [warning] = started(find_weights(google), model)[1]
    assert "hidden_act=gelu, the model computes gelu_exact" in warning
    write_tf1(tmp_path, {"my/kernel": np.zeros([2, 2], np.float32)})
    message = "holds none of the model's variables, but my/kernel .1 variables in all.; name a BERT"
    refused(message, started, find_weights(tmp_path), model, allow_missing=True)


def test_records_of_another_vocabulary_are_refused(tmp_path):
    pieces = ["cat", "\u2028", "la"]
    folder = their_folder(tmp_path, *pieces, settings='{"do_lower_case": true, "strip_accents": false}')
    model = PretrainingModel(find_weights(folder).config)

    def begin(data_pieces, *casing):
        files = FullTokenizer(write_pieces(tmp_path / "data.txt", *data_pieces), *casing).files()
        started(find_weights(folder), model, tokenizer_files=files)

    begin(pieces, True, False)
    begin([*pieces, ""], True, False)  # an empty line is no piece
    started(find_weights(folder), model, tokenizer_files={"vocab.txt": (folder / "vocab.txt").read_text()})
    message = "another vocabulary than the records: piece 5 is 'cat', 'dog' in theirs"
    refused(message, begin, ["dog", *pieces[1:]], True, False)
    refused(r"piece 6 is '\\u2028', '' in theirs", begin, ["cat", "", "la"], True, False)
    refused("do_lower_case=1, strip_accents=0, the records were made with .*_accents=1", begin, pieces, True)
    (folder / "vocab.txt").write_bytes(b"[PAD]\nc\xff\n")
    refused("vocab.txt: byte 7 is not UTF-8", begin, pieces, True, False)


def test_records_that_were_cut_otherwise_than_the_model_s_text_are_refused(tmp_path):
    folder, pieces = shutil.copytree(HUGGING_FACE, tmp_path / "model"), ["e-mail", "e", "-", "mail"]
    pipeline = wordpiece_pipeline(ids_by_piece([*SPECIAL_TOKENS, *pieces]), Casing.from_flags(True))
    pipeline.save(str(folder / "tokenizer.json"))
    write_pieces(tmp_path / "vocab.txt", *pieces)
    model, ours = PretrainingModel(find_weights(folder).config), FullTokenizer(tmp_path / "vocab.txt").files()
    started(find_weights(folder), model, tokenizer_files=ours)  # BERT's own rules
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.save(str(folder / "tokenizer.json"))
    message = f"has a tokenizer.json that gives other tokens than the records.* --vocab_file {folder}/tokenizer.json"
    refused(message, started, find_weights(folder), model, tokenizer_files=ours)
    # Whoever writes the file may leave open that accents go with the capitals.
    left_open = pipeline.to_str().replace('"strip_accents":true', '"strip_accents":null')
    for text in (pipeline.to_str(), left_open):
        (tmp_path / "tokenizer.json").write_text(text)
        started(find_weights(folder), model, tokenizer_files=open_tokenizer(tmp_path / "tokenizer.json").files())


def test_records_of_a_sentencepiece_model_of_which_a_list_lies_beside_the_weights(tmp_path):
    folder = shutil.copytree(HUGGING_FACE, tmp_path / "model")
    files = (write_model(tmp_path / f"{kind}.model", model_type=kind) for kind in ("unigram", "bpe"))
    same, other = (open_tokenizer(file, do_lower_case=False).files() for file in files)
    (folder / "vocab.txt").write_text(same["vocab.txt"], encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    model = PretrainingModel(find_weights(folder).config)
    started(find_weights(folder), model, tokenizer_files=same)
    message = "has another vocabulary than the records"
    refused(message, started, find_weights(folder), model, tokenizer_files=other)


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
def test_a_checkpoint_with_a_device_for_a_file_is_refused(encoder, suffix):
    """TensorFlow would read it without end."""
    file = encoder / f"bert_model.ckpt.{suffix}"
    file.unlink()
    file.symlink_to("/dev/zero")
    refused(f"{file.name} is not a file; fetch", find_weights, encoder)


def test_what_is_no_model_is_named(google, tmp_path):
    shutil.copy(HUGGING_FACE / "config.json", tmp_path)
    for path in (tmp_path / "nowhere", tmp_path):
        refused(f"^--init_checkpoint={path}: no model is there; .* unpack an", find_weights, path)
    for name in ("best", "model.ckpt-1000000"):
        shutil.copy(google / "bert_model.ckpt.index", tmp_path / f"{name}.index")
    best, large = tmp_path / "best", tmp_path / "model.ckpt-1000000"
    both = f"{best} or {large}"
    answers = {"": both, "model.ckpt": large, "model.ckpt-1000000.index": both, "model.ckpt-7": both}
    for named, prefixes in answers.items():
        refused(f"is no checkpoint's name.*; name {prefixes}$", find_weights, tmp_path / named)
    for step in (8, 9, 10):
        shutil.copy(google / "bert_model.ckpt.index", tmp_path / f"model.ckpt-{step}.index")
    newest = [str(tmp_path / f"model.ckpt-{step}") for step in (9, 10, 1000000)]
    refused(f"; name {' or '.join(newest)}$", find_weights, tmp_path)
    (tmp_path / "checkpoints").mkdir()
    refused("no checkpoint has been saved", find_weights, tmp_path)


def test_what_is_at_a_path_where_nothing_is_read_is_named(google, tmp_path, monkeypatch):
    shutil.copy(HUGGING_FACE / "config.json", tmp_path)
    for name, argument in (("pytorch_model.bin.index.json", ""), ("tf_model.h5", "tf"), ("flax_model.msgpack", "flax")):
        (tmp_path / name).touch()
        load = f"from_pretrained.'{tmp_path}'" + (f", from_{argument}=True" if argument else "")
        refused(f"{tmp_path}: {name} is not read here; .* model.safetensors .*{load}", find_weights, tmp_path)
        (tmp_path / name).unlink()
    unpacked = shutil.copytree(google, tmp_path / "zip/uncased")
    names = ("models--x--bert/snapshots/abc", "trainer/checkpoint-500", "trainer/checkpoint-1000")
    snapshot, *trained = (shutil.copytree(HUGGING_FACE, tmp_path / name) for name in names)
    above = {unpacked.parent: [unpacked], snapshot.parents[1]: [snapshot], trained[0].parent: trained}
    files = (HUGGING_FACE / name for name in ("model.safetensors", "config.json"))
    for path, models in {**above, **dict.fromkeys(files, [HUGGING_FACE])}.items():
        refused(f"a model's folder must be named, such as {' or '.join(map(str, models))}$", find_weights, path)
    served = tmp_path / "served/1/model.savedmodel"
    (served / "variables").mkdir(parents=True)
    for name in ("saved_model.pb", "variables/variables.index"):
        (served / name).touch()
    for path in (served, served.parent, served.parents[1]):
        refused(f"{path}: a SavedModel is there, .* name the run that it was exported from$", find_weights, path)
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "google/bert_uncased_L-2"):
        refused(f"no such folder; .* must be fetched first .*download {name} --local-dir", find_weights, name)


def test_configuration_and_vocabulary(google, tmp_path):
    weights = find_weights(google)
    assert choose_config(None, weights) == CONFIG
    assert choose_config(str(HUGGING_FACE / "config.json"), None).vocab_size == 23
    published = dict(directionality="bidi", pooler_fc_size=768, pooler_type="first_token_transform")
    (tmp_path / "bert_config.json").write_text(json.dumps({**CONFIG.to_dict(), **published}))
    assert choose_config(str(tmp_path / "bert_config.json"), None) == CONFIG
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    assert initialise.choose_vocabulary(str(tmp_path / "vocab.txt"), weights) == tmp_path / "vocab.txt"
    for choose, flag in ((choose_config, "bert_config_file"), (initialise.choose_vocabulary, "vocab_file")):
        refused(f"--{flag} is required, as no --init_checkpoint", choose, None, None)
    refused("--vocab_file is required, as .*vocab.txt does not exist", initialise.choose_vocabulary, None, weights)
    (google / "bert_config.json").unlink()
    weights, path = find_weights(google), google / "bert_config.json"
    refused(f"--bert_config_file is required, as {path} does not exist; put", choose_config, None, weights)
    # Neither takes another configuration.
    for read in (bert_tf.from_pretrained, lambda path: export(str(path), tmp_path / "out")):
        refused(f"^{path} does not exist; put the model's configuration there$", read, google)


def test_one_rule_for_the_casing(tmp_path):
    """Weights may contradict their vocabulary (bert-base-chinese: cased, of lower-case pieces); a user may not."""
    size = find_weights(HUGGING_FACE).config.vocab_size - len(SPECIAL_TOKENS)
    folder = their_folder(tmp_path, *(f"p{number}" for number in range(size)))

    def choose(vocab_file=None, *casing):
        weights = find_weights(folder)
        return choose_tokenizer(vocab_file, CasingFlags(*casing), weights.config, weights)

    for stated, text in ((False, '{"do_lower_case": false}'), (True, '{"do_lower_case": true}'), (True, "{}")):
        (folder / "tokenizer_config.json").write_text(text)
        for vocab_file in (None, str(folder / "vocab.txt")):
            tokenizer, assumed = choose(vocab_file)
            assert tokenizer.casing == (stated, stated) and bool(assumed) == (text == "{}")
    assert f"{folder}/vocab.txt: do_lower_case=1, strip_accents=1 is assumed" in assumed
    refused("pass --do_lower_case=1 with an uncased model", choose, None, False)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    refused("--do_lower_case=1: .*tokenizer_config.json says .*do_lower_case=0", choose, None, True)


SIZES = dict(vocab_size=[19, 8], hidden_size=[19, 8], max_position_embeddings=[16, 8], type_vocab_size=[2, 8])


@pytest.mark.parametrize(("field", "shape"), [*SIZES.items(), ("intermediate_size", [12])])
def test_a_configuration_of_other_sizes_is_named(google, field, shape):
    file, actual = google / "bert_config.json", getattr(CONFIG, field)
    file.write_text(dataclasses.replace(CONFIG, **{field: 2 * actual}).to_json())
    weights = find_weights(google)
    words = rf"{file} says {field}={2 * actual}, but bert/.* in {weights.source} is {re.escape(str(shape))}; .* correct"
    refused(words, choose_config, None, weights)
    refused(words, choose_config, str(file), dataclasses.replace(weights, config=CONFIG))


def test_rows_of_the_word_table_without_a_piece(tmp_path):
    """Publishers pad tables and reserve rows; another model's vocabulary is still found out by its size."""
    weights = find_weights(their_folder(tmp_path, "cat"))
    other = str(write_pieces(tmp_path / "vocab.txt", "cat"))
    for vocab_file, rows, fits in ((None, 1000, True), (other, 1000, False), (other, 64, True), (None, 5, False)):
        arguments = (vocab_file, CasingFlags(), dataclasses.replace(weights.config, vocab_size=rows), weights)
        if fits:
            tokenizer, said = choose_tokenizer(*arguments)
            assert tokenizer.vocab_size == 6
            assert ("has 6 pieces, the model's word table 1,000 rows" in said) == (rows == 1000), "it may be cut"
        else:
            message = f"has 6 pieces, but the model's configuration says vocab_size={rows}"
            refused(message, choose_tokenizer, *arguments)


def test_a_named_vocabulary_that_is_not_the_weights_own_is_told(tmp_path):
    weights = find_weights(their_folder(tmp_path, "cat", "[unused0]", "dog", settings='{"do_lower_case": true}'))
    config = dataclasses.replace(weights.config, vocab_size=10)

    def told(*pieces, strip_accents=True):
        named = write_pieces(tmp_path / "vocab.txt", *pieces)
        return choose_tokenizer(named, CasingFlags(True, strip_accents), config, weights)[1]

    assert not told("cat", "bird", "dog", "cow"), "words in reserved places"
    said = told("dog", "[unused0]", "cat")
    assert "2 tokens are others than in" in said and "vocab.txt: 5 is 'dog', 'cat' there; a model knows" in said
    assert "strip_accents=0, that of" in told("cat", "[unused0]", "dog", strip_accents=False)


# --- bert_tf.from_pretrained ----------------------------------------------------------------------

PIECES = "the cat dog sat ran a in ##s . 猫 犬 über ñ уж".split()


@pytest.fixture
def encoder(tmp_path):
    folder = write_tf1(tmp_path, random_values(published_names(2)))
    write_pieces(folder / "vocab.txt", *PIECES)
    return folder


def test_two_encoders_in_a_model_of_keras(encoder, tmp_path):
    both = [bert_tf.from_pretrained(encoder, name=name) for name in ("question", "answer")]
    inputs = {each: keras.Input([8], dtype="int32", name=each) for each in ("input_ids", "input_mask", "segment_ids")}
    features = both[0].features(["the cat sat."], 8)
    model = keras.Model(inputs, keras.layers.Dot(1)([bert.encoder(inputs)[1] for bert in both]))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(loaded(features), model(features))


def test_weights_trained_in_python_go_back_to_the_programs(encoder, tmp_path):
    bert = bert_tf.from_pretrained(encoder)
    features = bert.features(["the cat sat."], 8)
    bert.encoder.variables[0].assign_add(tf.ones_like(bert.encoder.variables[0]))
    bert.save(tmp_path / "new" / "folder")
    again = bert_tf.from_pretrained(tmp_path / "new" / "folder")
    np.testing.assert_array_equal(again.encoder(features)[0], bert.encoder(features)[0])
    assert again.tokenizer.casing == bert.tokenizer.casing
    refused("new/folder is not empty", bert.save, tmp_path / "new" / "folder")
    bert.encoder.save_weights(tmp_path / "keras" / "bert_model.ckpt")
    shutil.copy(encoder / "bert_config.json", tmp_path / "keras")
    message = "folder=.*/keras: checkpoint .*/keras/bert_model.ckpt was written by Keras"
    refused(message, bert_tf.from_pretrained, tmp_path / "keras")


def test_what_tensors_leak_is_limited_before_the_first_variable(encoder, monkeypatch):
    made = []
    monkeypatch.setattr(pretrained, "limit_leaked_memory", lambda: made.append("tensors"))
    monkeypatch.setattr(pretrained, "BertEncoder", lambda *_, **__: made.append("variables"))
    monkeypatch.setattr(pretrained, "named_variables", lambda _: made.append("read"))
    with pytest.raises(AttributeError):
        bert_tf.from_pretrained(encoder)
    assert made == ["tensors", "variables"]


def test_features(encoder):
    bert = bert_tf.from_pretrained(encoder)
    features = bert.features((text for text in ("The cats sat in a dog.", "", "cat " * 20)), max_seq_length=10)
    pieces = bert.tokenizer.convert_ids_to_tokens(features["input_ids"][0])
    assert pieces == "[CLS] the cat ##s sat in a dog . [SEP]".split()
    assert features["input_mask"].sum(axis=1).tolist() == [10, 2, 10]
    assert features["input_ids"][2, -1] == bert.tokenizer.vocab["[SEP]"]


def test_a_pooler_that_is_missing_is_a_warning(tmp_path):
    values = random_values(published_names(2))
    write_tf1(tmp_path, {name: value for name, value in values.items() if "pooler" not in name})
    write_pieces(tmp_path / "vocab.txt", *PIECES)
    with pytest.warns(UserWarning, match="has no pooler: the second output of the encoder, the pooled one, is random"):
        bert_tf.from_pretrained(tmp_path, do_lower_case=True, strip_accents=False)


@pytest.mark.parametrize(
    ("texts", "length", "error", "message"),
    [
        ("one text", 16, TypeError, "texts='one text': must be a list of strings, even for one text"),
        ({"text": ["a"]}, 16, TypeError, "texts={'text': .*: must be a list of strings"),
        (np.array([["a"]]), 16, TypeError, r"texts=array.*: must be a list of strings"),  # such as a pandas.DataFrame
        (["a", float("nan")], 16, TypeError, r"texts\[1\]=nan: must be a string; leave it out, or put '' there"),
        (["a"], 2, ValueError, "max_seq_length=2: must be from 3 .* to 16"),
        (["a"], 17, ValueError, "max_seq_length=17: must be from 3 .* to 16"),
    ],
)
def test_arguments_that_are_no_texts_are_named(encoder, texts, length, error, message):
    with pytest.raises(error, match=message):
        bert_tf.from_pretrained(encoder).features(texts, length)


@pytest.mark.parametrize("change", [lambda ids: ids[:1], lambda ids: ids[:, :4], lambda ids: ids[0], np.ndarray.tolist])
@pytest.mark.parametrize("name", ["input_ids", "input_mask", "segment_ids"])
def test_features_that_are_no_batch_are_named(encoder, name, change):
    """A mask of one row would be that of all texts."""
    bert = bert_tf.from_pretrained(encoder)
    features = bert.features(["the river", "a"], 8)
    features[name] = change(np.asarray(features[name]))
    with pytest.raises(ValueError, match=rf"int32 tensors of one shape, .texts, tokens., not .*{name}"):
        bert.encoder(features)


def test_what_from_pretrained_cannot_give_is_named(encoder, tmp_path):
    with pytest.raises(KeyError, match="bert_model.ckpt has no variable 'nothing'"):
        find_weights(encoder).read("nothing")
    with pytest.raises(AttributeError, match="nothing"):
        _ = bert_tf.nothing
    refused("^folder=.*no/where: no model is there", bert_tf.from_pretrained, tmp_path / "no/where")
    with tf.Graph().as_default():
        refused("the weights would stay random: call from_pretrained outside of", bert_tf.from_pretrained, encoder)
    values = random_values(published_names(2))
    write_tf1(encoder, {f"model/{name}": value for name, value in values.items()})
    refused("it also has model/bert/embeddings/LayerNorm/beta, .*; name other", bert_tf.from_pretrained, encoder)
