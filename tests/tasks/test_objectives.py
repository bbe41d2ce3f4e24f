"""The losses of tasks for outputs that are given, and the dropout before a classifier."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.model import losses
from bert_tf.model.backends.plain import Plain
from bert_tf.model.heads import CLASSIFIER_DROPOUT, ClassifierModel
from bert_tf.model.randomness import DropoutKey, update_key
from tests.small_models import small_config

pytestmark = pytest.mark.computes

LOGITS = np.array([[1.0, 0.5, -1.0], [0.2, 0.1, 0.9], [0.0, 3.0, 0.0], [0.4, 0.3, 0.2]], np.float32)
LABELS, COUNTS = np.array([0, 2, 0, 1]), np.array([1.0, 1.0, 1.0, 0.0], np.float32)  # the last one does not count


class Fixed:
    """A model with these outputs."""

    backend = Plain()

    def __init__(self, outputs):
        self.outputs = tf.constant(outputs)

    def __call__(self, features, dropout):
        return self.outputs


def sums(objective, outputs, **features):
    features = {name: tf.constant(values) for name, values in features.items()}
    return [values.numpy().tolist() for values in objective(Fixed(outputs), features, None)]


def cross_entropy(factors):
    of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")(LABELS, LOGITS)
    return pytest.approx(float(np.sum(of_rows * factors)))


def test_class_weights_are_factors_of_the_losses_and_none_of_the_accuracy():
    weights_C, rows = np.array([0.5, 1.0, 4.0]), dict(labels=LABELS, example_weights=COUNTS)
    for objective, factors in (
        (losses.WeightedClassificationObjective(weights_C), weights_C[LABELS]),
        (losses.WeightedClassificationObjective(np.ones(3)), 1),
        (losses.ClassificationObjective(), 1),
    ):
        expected = cross_entropy(COUNTS * factors)
        assert sums(objective, LOGITS, **rows) == [[expected], [expected, 2.0]]


def test_a_regression_has_the_squares_of_its_errors():
    rows = dict(labels=np.array([0, 1, 2], np.float32), example_weights=COUNTS[1:])
    assert sums(losses.RegressionObjective(), [[1.5], [4.0], [9.0]], **rows) == [[11.25], [11.25]]


def test_labelled_tokens_count_however_many_a_row_has():
    rows = dict(label_ids=LABELS.reshape(2, 2), label_weights=COUNTS.reshape(2, 2))
    expected = cross_entropy(COUNTS)
    assert sums(losses.TokenObjective(), LOGITS.reshape(2, 2, 3), **rows) == [[expected], [expected, 2.0]]
    assert losses.TokenObjective().local_denominators(rows) == [3.0]


def test_dropout_is_a_function_of_update_and_row():
    """On the pooled output alone here: the encoder has none. A linear head shows its mask."""
    model = ClassifierModel(small_config(20, 64, 1, 8, dropout=0.0), 64, seed=1)
    model.classifier.output_weights.assign(np.eye(64))
    ids = np.random.default_rng(0).integers(5, 20, [6, 8]).astype(np.int32)

    def run(update=None, first_row=0, ids=ids):
        key = update and DropoutKey(tf.constant(update_key(7, update)), tf.constant(first_row, tf.int64))
        features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)}
        return model({name: tf.constant(values) for name, values in features.items()}, dropout=key).numpy()

    plain, dropped = run(), run(update=3)
    is_kept = dropped != 0
    assert 0.8 < is_kept.mean() < 1
    np.testing.assert_allclose(dropped, np.where(is_kept, plain / (1 - CLASSIFIER_DROPOUT), 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run(update=3, first_row=2, ids=ids[2:4]), dropped[2:4], rtol=1e-5)
    assert ((run(update=4) != 0) != is_kept).any()
