"""Scores against scikit-learn and SciPy."""

import math

import numpy as np
import pytest

from bert_tf.tasks.glue.metrics import METRICS, f1, matthews_correlation, pearson, ranks, scores_of_classes, spearman
from bert_tf.tasks.scores import mean_loss

LAST_DIGIT = dict(rel=4e-16, abs=4e-16)


def cases(num_classes):
    chooser = np.random.default_rng(num_classes)
    for size in (1, 2, 7, 100, 4093):
        true = chooser.integers(num_classes, size=size)
        right = chooser.random(size) < 0.7
        yield np.where(right, true, chooser.integers(num_classes, size=size)), true
        yield np.zeros_like(true), true
        yield true, true


@pytest.mark.parametrize("num_classes", [2, 3, 11])
@pytest.mark.filterwarnings("ignore")
def test_of_classes(num_classes):
    theirs = pytest.importorskip("sklearn.metrics")
    for predicted, true in cases(num_classes):
        for name, expected in {
            "accuracy": theirs.accuracy_score(true, predicted),
            "macro_f1": theirs.f1_score(true, predicted, average="macro", zero_division=0.0),
            "matthews_correlation": theirs.matthews_corrcoef(true, predicted),
        }.items():
            assert METRICS[name](predicted, true) == pytest.approx(expected, **LAST_DIGIT), name
        if num_classes == 2:
            expected = theirs.f1_score(true, predicted, zero_division=0.0)
            assert f1(predicted, true) == pytest.approx(expected, **LAST_DIGIT)


@pytest.mark.parametrize("num_classes, scored", [(2, [1]), (6, [0, 1, 2, 3, 4]), (6, [5, 2])])
@pytest.mark.filterwarnings("ignore")
def test_of_some_classes(num_classes, scored):
    """ChemProt's measure, by the library that BioBERT's re_eval.py calls."""
    theirs = pytest.importorskip("sklearn.metrics")
    for predicted, true in cases(num_classes):
        scores = scores_of_classes(predicted, true, {number: f"class {number}" for number in scored})
        expected = {}
        for prefix, labels in {"": scored, **{f"class {number}_": [number] for number in scored}}.items():
            options = dict(labels=labels, average="micro", zero_division=0.0)
            *measures, _ = theirs.precision_recall_fscore_support(true, predicted, **options)
            expected.update(zip((f"{prefix}{name}" for name in ("precision", "recall", "f1")), measures))
        assert list(scores) == list(expected) and scores == pytest.approx(expected, **LAST_DIGIT)


def test_matthews_does_not_overflow():
    num = 2_000_000
    true = np.arange(num) % 2
    assert matthews_correlation(true, true) == 1.0 and matthews_correlation(1 - true, true) == -1.0


def test_of_numbers():
    theirs = pytest.importorskip("scipy.stats")
    chooser = np.random.default_rng(0)
    for size in (2, 5, 100, 1500):
        true = np.round(5 * chooser.random(size), 1)  # with ties
        predicted = (true + chooser.normal(size=size)).astype(np.float32)
        for values in (predicted, np.round(predicted)):
            np.testing.assert_array_equal(ranks(values), theirs.rankdata(values))
            if len(set(values)) > 1 and len(set(true)) > 1:
                expected = [theirs.pearsonr(values.astype(float), true)[0], theirs.spearmanr(values, true)[0]]
                assert [pearson(values, true), spearman(values, true)] == pytest.approx(expected, **LAST_DIGIT)
    assert math.isnan(pearson(np.ones(3), np.arange(3.0))) and math.isnan(spearman(np.ones(3), np.arange(3.0)))


def test_losses():
    logits, labels = np.array([[0.0, 1.0], [2.0, -1.0]], np.float32), np.array([1, 1], np.int32)
    expected = np.mean([np.log(1 + np.exp(-1.0)), np.log(1 + np.exp(3.0))])
    assert mean_loss(logits, labels) == pytest.approx(expected)
    assert mean_loss(np.array([[1.0], [2.0]]), np.array([0.0, 4.0], np.float32)) == 2.5
    assert mean_loss(np.array([[1000.0, 0.0]]), np.array([1], np.int32)) == pytest.approx(1000.0)
