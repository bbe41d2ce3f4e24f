"""Predicting over rows: fixed shapes, fill rows, shares of ranks."""

import json

import numpy as np
import pytest
import tensorflow as tf
from squad_data import write_squad

from bert_tf.base.errors import UserError
from bert_tf.config import BertConfig
from bert_tf.interchange.initialise import find_weights
from bert_tf.model.blocks import Blocks
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder
from bert_tf.tasks.predict import predict_rows
from bert_tf.tasks.squad.answers import find_span_weights, load_span_weights


class Doubling:
    """A model whose outputs tell which rows it saw."""

    blocks = Blocks("off", "float32")

    def __init__(self):
        self.shapes = []

    def __call__(self, features, dropout):
        assert dropout is None
        self.shapes.append(tuple(features["input_ids"].shape))
        ids = tf.cast(features["input_ids"], tf.float32)
        return 2 * ids, ids[:, 0] + 1


class OneOf(Workers):
    """One of several ranks; notes what it would send."""

    def __init__(self, rank, size, sent):
        self.rank, self.size, self._sent = rank, size, sent

    def gather(self, vector):
        self._sent.append(vector)
        return np.zeros([self.size, len(vector)], vector.dtype)


def batch_of(rows):
    ids = np.stack([rows, 10 * rows], axis=-1).astype(np.int32)
    return {"input_ids": ids, "input_mask": ids, "segment_ids": ids, "start_positions": rows}


@pytest.mark.parametrize("num_rows, batch_size", [(7, 3), (6, 3), (2, 8), (1, 1)])
def test_every_row_once_in_order_with_one_shape(num_rows, batch_size):
    model = Doubling()
    first, second = predict_rows(model, batch_of, num_rows, batch_size, Workers()).outputs
    np.testing.assert_array_equal(first, [[2 * row, 20 * row] for row in range(num_rows)])
    np.testing.assert_array_equal(second, np.arange(num_rows) + 1)
    assert model.shapes == [(batch_size, 2)]  # traced once


@pytest.mark.parametrize("num_rows, batch_size, size", [(11, 2, 3), (2, 4, 2)])
def test_ranks_together_compute_every_row(num_rows, batch_size, size):
    sent = [[] for _ in range(size)]
    for rank in range(size):
        predict_rows(Doubling(), batch_of, num_rows, batch_size, OneOf(rank, size, sent[rank]))
    everyone = np.concatenate([sent[rank][1] for rank in range(size)])  # rank-major, as `gather` stacks
    np.testing.assert_array_equal(everyone[:num_rows], np.arange(num_rows) + 1)
    assert len({len(vectors[0]) for vectors in sent}) == 1  # all ranks alike, or gathering would hang


def save(folder, model, config):
    (folder / "checkpoints").parent.mkdir(exist_ok=True)
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=1, vocab_size=config.vocab_size, companions={})
    return checkpoints.save(5, model.variables, {})


def test_which_weights_predict(tmp_path):
    config = BertConfig.from_json_file(write_squad(tmp_path) / "bert_config.json")
    fine_tuned = save(tmp_path / "tuned", SpanModel(config, seed=1), config)
    save(tmp_path / "pretrained", PretrainingModel(config, seed=1), config)
    empty = tmp_path / "empty"
    # What was fine-tuned is used; what was only pre-trained is where a run started from.
    assert find_span_weights(empty, str(tmp_path / "tuned")).folder == fine_tuned
    assert find_span_weights(tmp_path / "tuned", str(tmp_path / "pretrained")).folder == fine_tuned
    assert find_span_weights(tmp_path / "tuned", None).folder == fine_tuned
    with pytest.raises(UserError, match="has no question answering head"):
        find_span_weights(empty, str(tmp_path / "pretrained"))
    with pytest.raises(UserError, match="holds no checkpoint to predict with"):
        find_span_weights(empty, None)


def test_weights_must_be_complete(tmp_path):
    config = BertConfig.from_json_file(write_squad(tmp_path) / "bert_config.json")
    trained, model = SpanModel(config, seed=1), SpanModel(config, seed=2)
    path = save(tmp_path / "tuned", trained, config)
    assert load_span_weights(find_weights(path), model, config.vocab_size) == 5
    for mine, theirs in zip(model.variables, trained.variables):
        np.testing.assert_array_equal(mine, theirs)
    path = save(tmp_path / "pretrained", PretrainingModel(config, seed=1), config)
    with pytest.raises(UserError, match="lacks cls/squad/output_"):
        load_span_weights(find_weights(path), model, config.vocab_size)
    assert json.loads((path / "state.json").read_text())["updates_applied"] == 5
