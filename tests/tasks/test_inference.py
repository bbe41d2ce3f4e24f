"""Predicting over rows: fixed shapes, fill rows, shares of ranks."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.bert_config import BertConfig
from bert_tf.interchange.heads import SPANS, TOKENS
from bert_tf.interchange.initialise import find_weights
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.model.losses import Objective
from bert_tf.ranks.workers import Workers
from bert_tf.settings.training import PretrainingConfig
from bert_tf.tasks.predict import Predicted, Predictor
from bert_tf.tasks.pretraining import evaluation
from bert_tf.tasks.weights import find_trained_weights, load_trained_weights
from tests.exported import write_run
from tests.refusals import refused
from tests.squad_data import write_squad


class OneOf(Workers):
    """One of several ranks; notes what it would send."""

    def __init__(self, rank, size, sent):
        self.rank, self.size, self._sent = rank, size, sent

    def gather(self, vector):
        self._sent.append(vector)
        return np.zeros([self.size, len(vector)], vector.dtype)


MAX_LENGTH = 96
NUM_TOKENS = np.random.default_rng(0).integers(3, MAX_LENGTH + 1, 500)


def rows_of(num_rows):
    """Row r holds the ids r+1 and then padding."""

    def batch(numbers):
        is_token = np.arange(MAX_LENGTH) < NUM_TOKENS[numbers, None]
        ids = np.where(is_token, numbers[:, None] + 1, 0).astype(np.int32)
        return {"input_ids": ids, "input_mask": is_token.astype(np.int32), "segment_ids": ids, "start_positions": ids}

    return SimpleNamespace(batch=batch, num_tokens=NUM_TOKENS[:num_rows])


def predictor(compute, batch_size, workers=None, by_position=True, rows_per_compilation=8, max_length=MAX_LENGTH):
    return Predictor(compute, workers or Workers(), max_length, batch_size, by_position, rows_per_compilation)


class Echo:
    """Computes what tells which rows it saw, and notes the shapes."""

    def __init__(self):
        self.shapes = []

    def __call__(self, features):
        assert set(features) == {"input_ids", "input_mask", "segment_ids"}
        self.shapes.append(tuple(features["input_ids"].shape))
        ids = tf.cast(features["input_ids"], tf.float32)
        return 2 * ids, 3 * ids


@pytest.mark.parametrize("num_rows, batch_size", [(500, 7), (6, 3), (2, 8), (1, 1)])
def test_every_row_once_in_order_with_few_shapes(num_rows, batch_size):
    compute = Echo()
    made = predictor(compute, batch_size)
    predicted = made.compute_all(rows_of(num_rows))
    one_by_one = predictor(Echo(), batch_size).predict_each(rows_of(min(2, num_rows)))
    for output, few, factor in zip(predicted.outputs, one_by_one, (2, 3)):
        expected = np.repeat(factor * (np.arange(num_rows) + 1.0), NUM_TOKENS[:num_rows])
        np.testing.assert_array_equal(output.values, expected)  # and nothing of the padding
        np.testing.assert_array_equal(few.values, expected[: len(few.values)])
        for row in {0, num_rows - 1}:
            assert output[row].tolist() == [factor * (row + 1.0)] * NUM_TOKENS[row]
            np.testing.assert_array_equal(output.at(np.array([row]), np.array([2])), output[row][2:3])
    lengths = [length for length, _ in made.batches(NUM_TOKENS[:num_rows])]
    assert set(compute.shapes) == {(batch_size, length) for length in lengths}
    assert len(predicted.batch_secs) == len(compute.shapes) - len(lengths)


def test_a_batch_too_large_for_the_memory_is_named(monkeypatch):
    class Large(Objective):
        def __call__(self, *_):
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor\nwith a hint")

    named = "=512: out of memory .OOM when allocating tensor.; a smaller one takes less"
    refused(f"--predict_batch_size{named}", predictor(Large(), 512).compute_all, rows_of(3))
    batch = {"example_weights": np.ones([512], np.float32)}
    monkeypatch.setattr(evaluation, "evaluation_batches", lambda *_, **__: iter([batch]))
    config, data = PretrainingConfig(num_train_steps=1, eval_batch_size=512), SimpleNamespace(num_instances=3)
    model = SimpleNamespace(backend=SimpleNamespace(scope="off"), config=SimpleNamespace(vocab_size=9))
    scorer = evaluation.make_scorer(config, data, model, Large(), Workers())
    refused(f"--eval_batch_size{named}", scorer.scores, None, 1)


def test_what_was_predicted_last_is_kept_until_the_next_update():
    compute = Echo()
    made, rows = predictor(compute, 4), rows_of(20)
    first = made.predict("dev", rows, 3)
    num_computed = len(compute.shapes)
    assert made.predict("dev", rows, 3) is first and len(compute.shapes) == num_computed
    assert made.predict("test", rows, 3) is not first and made.predict("dev", rows, 3) is first
    assert made.predict("dev", rows, 4) is not first and len(compute.shapes) == 3 * num_computed


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("num_rows, batch_size, size", [(500, 7, 3), (11, 2, 3), (2, 4, 2)])
def test_ranks_together_compute_every_row(num_rows, batch_size, size, by_position):
    def output_of(ranks):
        def ids(features):
            ids = tf.cast(features["input_ids"], tf.float32)
            return [ids if by_position else ids[:, 0]]

        [output] = predictor(ids, batch_size, ranks, by_position=by_position).compute_all(rows_of(num_rows)).outputs
        return output.values if by_position else output

    sent = [[] for _ in range(size)]
    for rank in range(size):
        output_of(OneOf(rank, size, sent[rank]))
    for vectors in zip(*sent):
        assert len({len(vector) for vector in vectors}) == 1  # all ranks alike, or gathering would hang
    together, gathered = OneOf(0, size, []), iter(zip(*sent))
    together.gather = lambda _: np.stack(next(gathered))
    times = NUM_TOKENS[:num_rows] if by_position else 1
    np.testing.assert_array_equal(output_of(together), np.repeat(np.arange(num_rows) + 1, times))


def test_lengths_save_positions_and_are_few():
    def lengths(num_tokens, rows_per_compilation, max_length=384, global_batch_size=8):
        made = predictor(None, global_batch_size, rows_per_compilation=rows_per_compilation, max_length=max_length)
        return [length for length, _ in made.batches(np.array(num_tokens))]

    assert lengths([30] * 900 + [380] * 100, 256) == [32, 384]
    assert lengths([30] * 90 + [380] * 10, 256) == [384]  # not worth a compilation
    assert lengths([30] * 7 + [380], 0) == [384]  # not worth another batch
    assert lengths([30] * 5, 256) == [32]
    assert lengths([47] * 5, 256, max_length=47) == [47]  # never more than the greatest length
    assert lengths([30] * 900 + [380] * 100, None) == [384]
    many = lengths(np.random.default_rng(0).integers(1, 385, 20000), 256)
    assert many == sorted(many) and many[-1] == 384 and 3 < len(many) < 8


def test_speed_is_shown_in_words_that_scripts_know():
    predicted = Predicted((), [0.01 * number for number in range(1, 101)], 6)
    levels = {50: "510.00", 90: "910.00", 95: "960.00", 99: "1000.00", 100: "1000.00"}
    expected = [f"Latency Confidence Level {level} (ms) = {millisecs}" for level, millisecs in levels.items()]
    expected += ["Latency Average (ms) = 505.00", "Throughput Average (sequences/sec) = 11.88"]
    assert predicted.describe_speed() == expected
    assert Predicted((), [], 6).describe_speed() == [] and Predicted((), [], 6).speed() == {}


def test_which_weights_predict(tmp_path):
    """They must be complete."""
    config = BertConfig.from_json_file(write_squad(tmp_path) / "bert_config.json")
    trained, model = SpanModel(config, seed=1), SpanModel(config, seed=2)
    tuned, pretrained, empty = (tmp_path / name for name in ("tuned", "pretrained", "empty"))
    fine_tuned = write_run(tuned, trained.variables, update=5, config=config)
    write_run(pretrained, PretrainingModel(config, seed=1).variables, config=config)
    # What was fine-tuned is used; what was only pre-trained is where a run started from.
    for model_dir, start in ((empty, str(tuned)), (tuned, str(pretrained)), (tuned, None)):
        assert find_trained_weights(model_dir, start, SPANS).folder == fine_tuned
    refused("has no question answering head", find_trained_weights, empty, str(pretrained), SPANS)
    refused("holds no checkpoint to predict with", find_trained_weights, empty, None, SPANS)
    other = "--model_dir=.*tuned has no token classification head .* but is a BertForQuestionAnswering; fine-tune"
    refused(other, find_trained_weights, tuned, None, TOKENS)

    assert load_trained_weights(find_weights(fine_tuned), model, SPANS) == 5
    for mine, theirs in zip(model.variables, trained.variables):
        np.testing.assert_array_equal(mine, theirs)
    refused("lacks cls/squad/output_", load_trained_weights, find_weights(pretrained), model, SPANS)
