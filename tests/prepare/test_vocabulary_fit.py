"""Language and case of text and vocabulary."""

from __future__ import annotations

import re

import pytest

from bert_tf.prepare.checking import vocabulary_fit
from bert_tf.prepare.checking.vocabulary_fit import judge_fit, measure_fit
from bert_tf.text.vocabulary import SPECIAL_TOKENS
from bert_tf.text.wordpiece import FullTokenizer

TEXT = "The river flows to the Sea.\nMany people live by the river.\n\n" * 50
LOWER = "the river flows to sea many people live by .".split()
CASED = "The the river flows to Sea Many people live by .".split()


def judged(tmp_path, text, pieces, do_lower_case):
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "[unused1]", *pieces]))
    (tmp_path / "text.txt").write_text(text)
    tokenizer = FullTokenizer(tmp_path / "vocab.txt", do_lower_case)
    fit = measure_fit([tmp_path / "text.txt"], tokenizer)
    return fit, list(judge_fit(fit, tokenizer))


@pytest.mark.parametrize("pieces,do_lower_case", [(LOWER, True), (CASED, False)])
def test_what_fits_is_counted_and_not_blamed(tmp_path, pieces, do_lower_case):
    fit, wrong = judged(tmp_path, TEXT, pieces, do_lower_case)
    assert wrong == []
    assert (fit.num_words, fit.num_unknown, fit.num_pieces) == (600, 0, 600)
    assert fit.sampled_bytes == fit.total_bytes == len(TEXT) and fit.num_capitals == 150


@pytest.mark.parametrize(
    "pieces,do_lower_case,message",
    [
        (LOWER, False, "no piece of the vocabulary has a capital letter, and 25% of the words have"),
        (CASED, True, "27% of the vocabulary's pieces have capital letters, but the text is lower-cased"),
        (LOWER[:4], True, "of the words are .UNK. .mostly LATIN characters"),
        (
            [".", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz")],
            True,
            "a word takes 3.8 pieces, where 1.1 to 1.4 are usual",
        ),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, pieces, do_lower_case, message):
    _, wrong = judged(tmp_path, TEXT, pieces, do_lower_case)
    assert len([what for what in wrong if re.search(message, what)]) == 1, wrong


def test_of_a_large_text_the_beginning_of_each_file_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(vocabulary_fit, "SAMPLE_BYTES", 100)
    fit, _ = judged(tmp_path, TEXT, LOWER, True)
    assert 100 <= fit.sampled_bytes < 200 and fit.total_bytes == len(TEXT)
    assert "of training text, the beginning of each shard" in vocabulary_fit.describe_fit(fit)
