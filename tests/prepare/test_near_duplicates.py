"""Sketches and matches: what is found, whatever the blocks that a file is read in."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf.prepare.checking import near_duplicates
from bert_tf.prepare.checking.near_duplicates import Sketches, find_matches, read_document, sketch_file
from tests.preparation import changed, documents


def write(path, texts, sentence_ends=". "):
    """As sharded text: a sentence a line, a blank line after each document."""
    path.write_text("".join("\n".join(text.split(sentence_ends)) + "\n\n" for text in texts), encoding="utf-8")
    return path


def test_copies_with_small_changes_are_found_and_nothing_else(tmp_path):
    texts = documents(200)
    planted = {3: changed(texts[3]), 50: texts[50].upper(), 120: changed(texts[120], seed=9)}
    path = write(tmp_path / "a.txt", texts + list(planted.values()))
    matches = find_matches(sketch_file(path))
    assert np.flatnonzero(matches.similarity).tolist() == [200, 201, 202]
    assert matches.partner[200:].tolist() == list(planted)
    assert matches.similarity[201] == 1 and 0.6 < matches.similarity[200] < 1
    assert read_document(path, 3, 1000).replace("\n", " ") == texts[3].replace(". ", " ")[:1000]


@pytest.mark.parametrize("block_bytes", [37, 64, 1000, 4096])
def test_sketches_do_not_depend_on_the_blocks(tmp_path, monkeypatch, block_bytes):
    texts = [
        *documents(20),
        "short",
        "x",
        *documents(2, seed=5, words=4),
        "word " * 300,
        "unbroken" * 200,
        "日本語のテキスト。" * 40,
    ]
    path = write(tmp_path / "a.txt", texts)
    whole = sketch_file(path)
    monkeypatch.setattr(near_duplicates, "_BLOCK_BYTES", block_bytes)
    assert whole.num_documents == len(texts)
    for wanted, found in zip(whole, sketch_file(path)):
        assert np.array_equal(wanted, found)


def test_a_document_does_not_depend_on_its_neighbours(tmp_path):
    texts = [*documents(5), "short", "x"]
    forth = sketch_file(write(tmp_path / "a.txt", texts))
    back = sketch_file(write(tmp_path / "b.txt", texts[::-1]))
    assert np.array_equal(forth.values, back.values[::-1])
    assert np.array_equal(forth.contents, back.contents[::-1])


def test_scripts_without_spaces(tmp_path):
    rng = np.random.default_rng(0)
    texts = ["".join(map(chr, rng.integers(0x4E00, 0x5E00, 300))) for _ in range(30)]
    near = texts[7][:150] + "龍龍" + texts[7][150:]
    matches = find_matches(sketch_file(write(tmp_path / "a.txt", [*texts, near])))
    assert np.flatnonzero(matches.similarity).tolist() == [30] and matches.partner[30] == 7


def test_a_sample_keeps_what_belongs_together(tmp_path):
    texts = documents(401)
    path = write(tmp_path / "a.txt", texts + texts)
    sample = sketch_file(path, one_in=4)
    assert 100 < sample.num_documents < 300
    half = sample.num_documents // 2
    assert np.array_equal(sample.numbers[:half] + 401, sample.numbers[half:])
    assert (find_matches(sample).similarity > 0).sum() == half


def test_many_of_a_kind_are_all_found(tmp_path):
    texts = documents(50)
    path = write(tmp_path / "a.txt", texts + [changed(texts[0], seed) for seed in range(300)])
    matches = find_matches(sketch_file(path))
    assert (matches.similarity[50:] > 0).all() and not matches.similarity[:50].any()
    assert set(matches.partner[50:]) <= {0, *range(50, 350)}


def test_nothing_to_compare():
    empty = Sketches(
        np.zeros([0, near_duplicates.NUM_HASHES], np.uint16), np.zeros(0, np.uint64), np.zeros(0, np.int32)
    )
    assert len(find_matches(empty).partner) == 0
