"""Shares of a sample of instances, and what is said where the rules are broken."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf.batches.masking import VocabularyIds
from bert_tf.prepare.checking import inspection
from bert_tf.prepare.checking.inspection import judge, measure, read_sample
from bert_tf.records.manifest import FileEntry
from tests.pretraining_data import write_records

IDS = VocabularyIds(
    pad=0, cls=2, sep=3, mask=4, unknown=1, replacements=np.arange(5, 100), continues=np.zeros(100, bool)
)


def instances(count=400, seed=0, masked=0.8, kept=0.1, random_next=0.5, unknown=0, padding=0):
    """By the rules."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(24, 33, [count, 1])
    places = np.arange(32)
    mask = places < lengths
    half = lengths // 2
    before = rng.integers(5, 100, [count, 32])
    before[:, 0] = 2
    before[(places == half) | (places == lengths - 1)] = 3
    before *= mask
    positions = np.stack([np.sort(rng.choice(np.r_[1:8], 4, replace=False)) for _ in range(count)])
    labels = np.take_along_axis(before, positions, 1)
    fate = rng.random(positions.shape)
    shown = np.where(fate < masked, 4, np.where(fate < masked + kept, labels, 5 + (labels - 4) % 95))
    ids = before.copy()
    np.put_along_axis(ids, positions, shown, 1)
    ids[:, 10 : 10 + unknown] = 1
    ids, mask, segments = (np.pad(each, ((0, 0), (0, padding))) for each in (ids, mask, (places > half) & mask))
    return {
        "input_ids": ids,
        "input_mask": mask.astype(np.uint8),
        "segment_ids": segments.astype(np.uint8),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": np.ones(positions.shape, np.float32),
        "next_sentence_labels": (rng.random([count, 1]) < random_next).astype(np.int64),
    }


def judged(arrays):
    return list(judge(measure(arrays, IDS)))


def test_shares_are_those_that_were_drawn():
    arrays = instances()
    shares = measure(arrays, IDS)
    assert shares.fates["masked"] == pytest.approx((arrays["input_ids"] == 4).sum() / 1600)
    assert sum(shares.fates.values()) == pytest.approx(1)
    assert shares.padding == pytest.approx(1 - arrays["input_mask"].mean())
    assert shares.random_next == pytest.approx(arrays["next_sentence_labels"].mean())
    assert shares.unknown == 0
    assert judged(arrays) == []
    assert judged(instances(count=6, random_next=0.9)) == [], "a few instances prove nothing"


@pytest.mark.parametrize(
    "options,message",
    [
        ({"masked": 1.0, "kept": 0.0}, "100.0% of the predictions are masked, where 80%"),
        ({"masked": 0.8, "kept": 0.2}, "of the predictions are replaced, where 10%"),
        ({"random_next": 0.2}, "where 50 to 60 % are usual: if less, is the label inverted"),
        ({"random_next": 0.95}, "of the second passages are random, where 50 to 60"),
        ({"unknown": 10}, "of the tokens are [UNK]"),
        ({"padding": 96}, "% of the positions are padding"),
    ],
)
def test_broken_rules_are_said(options, message):
    assert any(message in what for what in judged(instances(**options)))


def test_the_sample_is_spread_over_all_shards(tmp_path, monkeypatch):
    arrays = instances(60)
    entries = []
    for number, rows in enumerate((slice(0, 10), slice(10, 50), slice(50, 60))):
        write_records(tmp_path / f"{number}", {name: values[rows] for name, values in arrays.items()})
        entries.append(FileEntry(f"{number}", 0, "", {"num_instances": rows.stop - rows.start}))
    whole = read_sample(tmp_path, entries)
    for name, column in whole.items():
        assert np.array_equal(column, arrays[name]), name
    monkeypatch.setattr(inspection, "SAMPLE_INSTANCES", 12)
    some = read_sample(tmp_path, entries)
    assert np.array_equal(some["input_ids"], arrays["input_ids"][np.linspace(0, 59, 12).astype(int)])
