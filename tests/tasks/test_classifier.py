"""The classifier on the pooled output: its dropout, and the objective of numbers."""

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.model.backends import make_backend
from bert_tf.model.heads import CLASSIFIER_DROPOUT, ClassifierModel
from bert_tf.model.losses import RegressionObjective
from bert_tf.model.randomness import DropoutKey, update_key
from tests.small_models import small_config

pytestmark = pytest.mark.computes

CONFIG = small_config(20, 64, 1, 8, dropout=0.0)
NUM_ROWS, LENGTH, NUM_CLASSES = 6, 8, 3


def features_of(rows=slice(None)):
    chooser = np.random.default_rng(0)
    ids = chooser.integers(5, 20, size=[NUM_ROWS, LENGTH]).astype(np.int32)
    everything = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "labels": np.arange(NUM_ROWS, dtype=np.int32) % NUM_CLASSES,
        "example_weights": np.array([1, 1, 0, 1, 1, 1], np.float32),
    }
    return {name: tf.constant(values[rows]) for name, values in everything.items()}


def make(scope="off", config=CONFIG, num_classes=NUM_CLASSES):
    model = ClassifierModel(config, num_classes, make_backend(scope), seed=1)
    model.classifier.output_bias.assign(np.linspace(-1, 1, num_classes))
    return model


def run(model, features, dropout=None):
    call = tf.function(
        lambda given, key: model(given, dropout=key), jit_compile=model.backend.scope == "step", autograph=False
    )
    return call(features, dropout).numpy()


def key(update=3, first_row=0):
    return DropoutKey(tf.constant(update_key(7, update)), tf.constant(first_row, tf.int64))


@pytest.mark.parametrize("scope", ["off", "blocks", pytest.param("step", marks=pytest.mark.slow)])
def test_dropout_is_a_function_of_update_and_row(scope):
    """On the pooled output alone here: the encoder has none. A linear head shows its mask."""
    model = make(scope)
    model.classifier.output_weights.assign(np.eye(NUM_CLASSES, CONFIG.hidden_size))
    model.classifier.output_bias.assign(np.zeros(NUM_CLASSES))
    plain, dropped = run(model, features_of()), run(model, features_of(), key())
    is_kept = dropped != 0
    np.testing.assert_allclose(dropped, np.where(is_kept, plain / (1 - CLASSIFIER_DROPOUT), 0), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(is_kept, run(make_eager_twin(model), features_of(), key()) != 0)
    np.testing.assert_allclose(run(model, features_of(slice(2, 4)), key(first_row=2)), dropped[2:4], rtol=1e-5)


def make_eager_twin(model):
    twin = make("off")
    for mine, theirs in zip(twin.variables, model.variables):
        mine.assign(theirs)
    return twin


def test_regression_sums_and_gradient():
    model = make(num_classes=1)
    numbers = np.linspace(0, 5, NUM_ROWS).astype(np.float32)
    features = {**features_of(), "labels": tf.constant(numbers)}
    with tf.GradientTape() as tape:
        losses, metrics = RegressionObjective()(model, features, None)
    differences = (run(model, features)[:, 0] - numbers) * features["example_weights"].numpy()
    np.testing.assert_allclose(losses, [(differences**2).sum()], rtol=1e-5)
    np.testing.assert_allclose(metrics, losses)
    gradient = tape.gradient(losses, model.classifier.output_bias)
    np.testing.assert_allclose(gradient, [2 * differences.sum()], rtol=1e-4)
