"""Rows of sentences and pairs, by the rules written out for one; cached rows: kept whole, found by what they are of."""

from typing import NamedTuple

import numpy as np
import pytest

from bert_tf.tasks.rows import cached_arrays, content_key, make_text_rows
from bert_tf.text.wordpiece import FullTokenizer
from tests.glue_data import GOOD, VOCAB, write_model


def shortened(first, second, room):
    """Google's rule: the longer one loses its last token, the second if they are equal."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


SECOND = ("", "the dog\nran", "zebra", "they sat there and then she went home with a cat")


@pytest.mark.parametrize("max_seq_length", [5, 8, 16])
@pytest.mark.parametrize("is_pair", [False, True])
def test_rows(tmp_path, monkeypatch, max_seq_length, is_pair):
    monkeypatch.setattr("bert_tf.tasks.rows._BATCH", 3)  # several batches, one of them short
    tokenizer = FullTokenizer(write_model(tmp_path) / "vocab.txt")
    texts = (GOOD, SECOND) if is_pair else (SECOND,)
    features = make_text_rows(texts, np.arange(4, dtype=np.int32), tokenizer, max_seq_length)
    order = np.array([[2, 0], [1, 3]])
    batch = features.batch(order)
    assert {name: values.shape for name, values in batch.items()} == {
        "labels": (2, 2),
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (2, 2, max_seq_length)),
    }
    np.testing.assert_array_equal(batch["labels"], order)
    for place, row in np.ndenumerate(order):
        tokens = [tokenizer.tokenize_to_ids(sentences[row]) for sentences in texts]
        if is_pair:
            tokens = shortened(*tokens, max_seq_length - 3)
        ids, segments = [VOCAB.index("[CLS]")], [0]
        for number, part in enumerate(tokens):
            part = part[: max_seq_length - 2]
            ids += [*part, VOCAB.index("[SEP]")]
            segments += [number] * (len(part) + 1)
        padding = [0] * (max_seq_length - len(ids))
        assert batch["input_ids"][place].tolist() == ids + padding
        assert batch["segment_ids"][place].tolist() == segments + padding
        assert batch["input_mask"][place].tolist() == [1] * len(ids) + padding


class Rows(NamedTuple):
    ids: np.ndarray
    is_first: np.ndarray


MADE = Rows(np.random.default_rng(0).integers(0, 99, [70, 9], np.int32), np.arange(70) % 3 == 0)


def test_cache_is_used_and_damage_to_it_is_mended(tmp_path):
    calls = []

    def make():
        calls.append(1)
        return MADE

    path = tmp_path / "cache" / "rows.npz"
    cached_arrays(path, Rows, make, write=False)
    assert not path.exists()
    for _ in range(2):
        for array, expected in zip(cached_arrays(path, Rows, make, write=True), MADE):
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == expected.dtype
    assert len(calls) == 2  # once without writing, once for the file
    content = path.read_bytes()
    for damaged in (content[:200] + b"rubbish" + content[207:], content[:200]):
        path.write_bytes(damaged)
        cached_arrays(path, Rows, make, write=True)
        assert path.read_bytes() == content
    assert len(calls) == 4
    assert [file.name for file in path.parent.iterdir()] == ["rows.npz"]


def test_a_cache_that_cannot_be_written_costs_only_a_warning(tmp_path, capsys):
    path = tmp_path / "rows.npz"
    path.mkdir()
    assert cached_arrays(path, Rows, lambda: MADE, write=True) is MADE
    warning = f"warning: {path} cannot be written (Is not a file); the next start makes these rows again\n"
    assert capsys.readouterr().err == warning


def test_hashes_that_runs_have_recorded_stay(tmp_path):
    """A run goes on only with the same settings, of which these are some. They do not depend on a file's name."""
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\nthe\n")
    assert content_key(tmp_path / "vocab.txt") == content_key(b"[PAD]\nthe\n") == "6b80ceeae975ae083729"
    assert content_key(b"x", (384, 128)) != content_key(b"x", (384, 64))
