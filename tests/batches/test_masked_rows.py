"""Compiled rows against NumPy's, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bert_tf.batches import masked_rows
from bert_tf.batches.masked_rows import SOURCE, RowFiller
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.records.pairs import Pairs
from bert_tf.records.schema import RecordSchema
from tests.compiled import compile_for_test

VOCAB = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
VOCAB.update({f"w{number}": number for number in range(5, 1000)})
IDS = VocabularyIds.of(VOCAB)
RANGES = np.array([[0, 7, 100], [3, (1 << 40) + 1, 157]], np.int64)  # epoch, first instance, number of instances
NUM = int(RANGES[:, 2].sum())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    return compile_for_test(SOURCE, tmp_path_factory.mktemp("environment") / "masked_rows.so")


def random_pairs(length: int, num_tokens: int, rng: np.random.Generator) -> Pairs:
    """Of all sizes, the smallest and the largest among them."""
    a_size = rng.integers(1, length - 3, NUM)
    b_size = rng.integers(1, length - 2 - a_size)
    a_size[:2], b_size[:2] = 1, (1, length - 4)
    a_start, b_start = (rng.integers(0, num_tokens - size + 1) for size in (a_size, b_size))
    a_start[0], b_start[1] = num_tokens - 1, num_tokens - b_size[1]
    return Pairs(a_start, a_start + a_size, b_start, b_start + b_size, rng.integers(0, 2, NUM))


def empty_features(schema: RecordSchema) -> dict[str, np.ndarray]:
    """Not zeros: every place must be written."""
    return {
        name: np.full([NUM, size], 77, np.int32 if kind == "int64" else np.float32)
        for name, kind, size in schema.fields
    }


@pytest.mark.parametrize("kind", [np.uint16, np.int32])
@pytest.mark.parametrize(
    "length,num_predictions,masked_lm_prob",
    [(128, 20, 0.15), (512, 77, 0.15), (5, 1, 0.15), (64, 61, 1.0), (67, 64, 1.0), (68, 65, 1.0), (130, 3, 0.0)],
)
def test_both_ways_give_the_same(compiled, monkeypatch, kind, length, num_predictions, masked_lm_prob):
    rng = np.random.default_rng(length)
    schema = RecordSchema(length, num_predictions)
    masker = Masker(MaskingRules(masked_lm_prob, num_predictions), IDS)
    tokens = rng.integers(5, 1000, 700).astype(kind)
    pairs = random_pairs(length, len(tokens), rng)
    made = []
    for path in (compiled, compiled.with_name("none")):
        monkeypatch.setattr(masked_rows, "compiled_file", lambda _, path=path: path)
        filler = RowFiller(masker, schema)
        assert bool(filler._code) == (path == compiled)
        made.append(empty_features(schema))
        filler.fill(tokens, pairs, 12345, RANGES, made[-1])
    for name, expected in made[1].items():
        np.testing.assert_array_equal(made[0][name], expected, err_msg=name)
    assert made[0]["masked_lm_weights"].sum(axis=1).min() >= 1


def test_whole_words_are_masked_by_numpy(compiled, monkeypatch):
    monkeypatch.setattr(masked_rows, "compiled_file", lambda _: compiled)
    masker = Masker(MaskingRules(whole_word_masking=True), IDS)
    assert RowFiller(masker, RecordSchema(128, 20))._code is None


def test_arrays_that_compiled_code_would_misread_are_noticed(compiled, monkeypatch):
    monkeypatch.setattr(masked_rows, "compiled_file", lambda _: compiled)
    schema = RecordSchema(128, 20)
    pairs = random_pairs(128, 700, np.random.default_rng(1))
    for wrong in (np.repeat(pairs.a_start, 2)[::2], pairs.a_start.astype(np.int32)):
        with pytest.raises(AssertionError):
            RowFiller(Masker(MaskingRules(), IDS), schema).fill(
                np.zeros(700, np.uint16), pairs._replace(a_start=wrong), 1, RANGES, empty_features(schema)
            )
