"""`bert_tf.from_pretrained`."""

import numpy as np
import pytest

import bert_tf
from tests.google_checkpoints import published_names, random_values, write_tf1
from tests.interchange.test_initialise import write_pieces
from tests.refusals import refused

PIECES = "the cat dog sat ran a in ##s . 猫 犬 über ñ уж".split()


@pytest.fixture
def google(tmp_path):
    folder = write_tf1(tmp_path, random_values(published_names(2)))
    write_pieces(folder / "vocab.txt", *PIECES)
    return folder


def test_features_and_numbers(google):
    bert = bert_tf.from_pretrained(google)
    features = bert.features(["The cats sat in a dog.", "", "cat " * 20], max_seq_length=10)
    pieces = bert.tokenizer.convert_ids_to_tokens(features["input_ids"][0])
    assert pieces == "[CLS] the cat ##s sat in a dog . [SEP]".split()
    assert features["input_mask"].sum(axis=1).tolist() == [10, 2, 10]
    assert features["input_ids"][2, -1] == bert.tokenizer.vocab["[SEP]"]
    values = random_values(published_names(2))
    words = values["bert/embeddings/word_embeddings"][features["input_ids"]]
    embedded = words + values["bert/embeddings/position_embeddings"][:10]
    embedded += values["bert/embeddings/token_type_embeddings"][0]
    centred = embedded - embedded.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-12)
    expected = expected * values["bert/embeddings/LayerNorm/gamma"] + values["bert/embeddings/LayerNorm/beta"]
    np.testing.assert_allclose(bert.encoder.hidden_states(features)[0], expected, atol=1e-5)


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
        (["a"], 2, ValueError, "max_seq_length=2: must be from 3 .* to 16"),
        (["a"], 17, ValueError, "max_seq_length=17: must be from 3 .* to 16"),
    ],
)
def test_arguments_that_are_no_texts_are_named(google, texts, length, error, message):
    with pytest.raises(error, match=message):
        bert_tf.from_pretrained(google).features(texts, length)


def test_what_is_no_model_is_named(google, tmp_path):
    with pytest.raises(AttributeError, match="nothing"):
        _ = bert_tf.nothing
    refused("^folder=.*no/where: no model is there", bert_tf.from_pretrained, tmp_path / "no/where")
    values = random_values(published_names(2))
    write_tf1(google, {f"model/{name}": value for name, value in values.items()})
    refused("it also has model/bert/embeddings/LayerNorm/beta, .*; name other", bert_tf.from_pretrained, google)
