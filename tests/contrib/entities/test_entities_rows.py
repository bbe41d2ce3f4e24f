"""Rows for the model: labels on first pieces, windows over long sentences, tokens of which nothing is left."""

import numpy as np
import pytest

from bert_tf.contrib.entities.rows import NO_LABEL, make_entity_rows
from bert_tf.text.wordpiece import FullTokenizer
from tests.entity_data import write_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return FullTokenizer(write_model(tmp_path_factory.mktemp("model")) / "vocab.txt")


def test_labels_stand_on_first_pieces(tokenizer):
    rows = make_entity_rows([["Anna", "reds", "\x07", "."], ["lamp"]], np.array([3, 1, 0, 2, 1]), tokenizer, 8)
    batch = rows.batch(np.array([[0, 1]]))
    pieces = tokenizer.convert_ids_to_tokens(batch["input_ids"][0, 0])
    assert pieces == ["[CLS]", "anna", "red", "##s", ".", "[SEP]", "[PAD]", "[PAD]"]
    np.testing.assert_array_equal(batch["label_weights"], [[[0, 1, 1, 0, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]])
    np.testing.assert_array_equal(batch["label_ids"], [[[0, 3, 1, 0, 2, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]])
    np.testing.assert_array_equal(batch["segment_ids"], 0 * batch["input_ids"])
    np.testing.assert_array_equal(batch["input_mask"].sum(axis=-1), [[6, 3]])
    np.testing.assert_array_equal(rows.has_piece_W, [True, True, False, True, True])


@pytest.mark.parametrize("length", [3, 4, 5, 8, 13, 40])
def test_every_token_is_labelled_once_and_sees_its_own_sentence(tokenizer, length):
    rng = np.random.default_rng(length)
    words = ["a", "lamp", "reds", "absta", "\x07", "annabobcat", "."]
    sentences = [list(rng.choice(words, rng.integers(1, 40))) for _ in range(30)]
    tokens = [token for sentence in sentences for token in sentence]
    rows = make_entity_rows(sentences, np.arange(len(tokens)), tokenizer, length)
    assert rows.num_tokens.max() <= length
    labels = rows.labels_P[rows.labels_P != NO_LABEL]
    np.testing.assert_array_equal(labels, np.flatnonzero(rows.has_piece_W))  # each once, and in order
    for token, has_piece, row, position in zip(tokens, rows.has_piece_W, rows.rows_W, rows.positions_W):
        ids = tokenizer.tokenize_to_ids(token)[: length - 2]
        assert has_piece == bool(ids)
        place = rows.sequences.starts_F[row] + position
        assert not ids or rows.tokens[place : place + len(ids)].tolist() == ids
    assert int(rows.batch(np.arange(len(rows.num_tokens)))["label_weights"].sum()) == len(labels)
    assert length == 40 or len(rows.num_tokens) > len(sentences), "some are cut"


def test_context_is_shared_out_evenly(tokenizer):
    """40 tokens of one piece in windows of 20: each token has 5 on its shorter side, or the sentence ends there."""
    rows = make_entity_rows([["a"] * 40], np.zeros(40, np.int64), tokenizer, 22)
    np.testing.assert_array_equal(rows.num_tokens, [22, 22, 22])
    np.testing.assert_array_equal(np.bincount(rows.rows_W), [15, 10, 15])
    middle = rows.positions_W[rows.rows_W == 1]
    assert (middle.min(), middle.max()) == (6, 15)
