"""Windows over contexts: against an independent implementation, by hand, and by brute force."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bert_tf.base.errors import UserError
from bert_tf.tasks.squad.examples import Answer, Example
from bert_tf.tasks.squad.features import FeatureSettings, best_windows, count_unreachable, make_windows, window_spans
from bert_tf.text.wordpiece import FullTokenizer
from tests.refusals import refused
from tests.squad_data import GOLDEN, read_golden


@pytest.fixture
def golden(tmp_path):
    """(examples, tokenizer) of the golden file."""
    return read_golden(tmp_path)


def test_features_agree_with_hugging_face(golden):
    examples, tokenizer = golden
    settings = FeatureSettings(**GOLDEN["settings"])
    features = make_windows(examples, tokenizer, settings, is_training=False)
    training = make_windows(examples, tokenizer, settings, is_training=True)
    batch = features.batch(np.arange(features.num_windows))
    assert features.num_windows == training.num_windows == len(GOLDEN["features"])
    for row, expected in enumerate(GOLDEN["features"]):
        tokens = expected["tokens"].split()
        ids, padding = tokenizer.convert_tokens_to_ids(tokens), [0] * (settings.max_seq_length - len(tokens))
        assert features.input_ids[row].tolist() == ids + padding
        assert batch["input_mask"][row].tolist() == [int(token != "[PAD]") for token in tokens] + padding
        assert batch["segment_ids"][row].sum() == expected["segment_sum"]
        assert features.example_index[row] == expected["example_index"]
        assert [training.start_positions[row], training.end_positions[row]] == expected["answer"]
        is_context = features.token_ends[row] > 0
        words = re.finditer("[^ \t\r\n\u202f]+", examples[features.example_index[row]].context)
        starts = [word.start() for word in words]
        word_of = np.searchsorted(starts, features.token_starts[row], side="right") - 1
        assert np.where(is_context, word_of, -1).tolist() == expected["token_to_word"]
        assert "".join("01"[int(best)] for best in features.is_max_context[row]) == expected["max_context"]
    np.testing.assert_array_equal(training.input_ids, features.input_ids)


@pytest.mark.parametrize(
    "num_tokens, room, stride, spans",
    [
        (10, 10, 4, [(0, 10)]),
        (11, 10, 4, [(0, 10), (4, 7)]),
        (20, 10, 4, [(0, 10), (4, 10), (8, 10), (12, 8)]),
        (20, 8, 100, [(0, 8), (8, 8), (16, 4)]),  # a stride over the window's length loses no token
        (0, 8, 4, [(0, 0)]),
    ],
)
def test_window_spans(num_tokens, room, stride, spans):
    assert window_spans(num_tokens, room, stride) == spans


@pytest.mark.parametrize(
    "num_tokens, room, stride", [(30, 10, 4), (50, 16, 3), (7, 10, 4), (33, 8, 8), (450, 320, 128)]
)  # here the last window is so much shorter that its length decides
def test_every_token_is_best_in_the_window_that_shows_most_around_it(num_tokens, room, stride):
    spans = window_spans(num_tokens, room, stride)
    found = best_windows(spans, num_tokens)
    for token in range(num_tokens):
        contexts = [
            (min(token - start, start + length - 1 - token) + 0.01 * length, -number)
            for number, (start, length) in enumerate(spans)
            if start <= token < start + length
        ]
        assert found[token] == -max(contexts)[1]


def example(context, answer, start, tokenized_question="who ?"):
    return Example("q", tokenized_question, context, (Answer(answer, start),))


@pytest.mark.parametrize(
    "context, answer, start, tokens",
    [
        ("in (1851) made", "1851", 4, ["18", "##51"]),  # narrowed to less than the word
        ("made (1851", "1851", 6, ["18", "##51"]),
        ("in 1851", "51", 5, ["##51"]),
        ("in 1851", "85", 4, ["18", "##51"]),  # parts of tokens: the whole tokens
        ("in brother-brother", "brother", 11, ["brother"]),
        ("her brother's workshop", "brother", 4, ["brother"]),
        ("her brother's workshop", "brother's", 4, ["brother", "'", "s"]),
    ],
)
def test_answers_are_narrowed_to_their_own_tokens(golden, context, answer, start, tokens):
    tokenizer = golden[1]
    settings = FeatureSettings(32, 8, 8)
    features = make_windows([example(context, answer, start)], tokenizer, settings, is_training=True)
    first, last = features.start_positions[0], features.end_positions[0]
    assert tokenizer.convert_ids_to_tokens(features.input_ids[0, first : last + 1].tolist()) == tokens


@pytest.mark.parametrize(
    "context, answer, start, place",
    [
        ("北京是中国的首都。北京大学位于北京海淀区", "北京", 15, 15),
        ("北京是中国的首都。北京大学位于北京海\u200b淀区", "淀区", 19, 18),
        ("12-34-12-56 in 1900-1901-1900.", "12", 6, 4),
        ("12-34-12-56 in 1900-1901-1900.", "1900", 25, 12),
    ],
)
def test_an_answer_that_occurs_twice_in_a_word_is_the_one_at_its_place(tmp_path, context, answer, start, place):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(context), "12", "1900", "who"]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)), encoding="utf-8")
    tokenizer = FullTokenizer(tmp_path / "vocab.txt")
    one = example(context, answer, start, "who")
    features = make_windows([one], tokenizer, FeatureSettings(64, 16, 8), is_training=True)
    assert features.start_positions[0] == 3 + place
    assert features.end_positions[0] == 3 + place + len(tokenizer.tokenize(answer)) - 1


def test_an_invisible_answer_is_refused_when_training(golden):
    invisible = example("who \u200b\u200b moved", "\u200b\u200b", 4)
    with pytest.raises(UserError, match="leaves nothing of its answer"):
        make_windows([invisible], golden[1], FeatureSettings(32, 8, 8), is_training=True)
    made = make_windows([invisible], golden[1], FeatureSettings(32, 8, 8), is_training=False)
    assert made.token_starts[0][made.token_ends[0] > 0].tolist() == [0, 7]


@pytest.mark.parametrize(
    "values, message",
    [
        ((67, 128, 64), "max_seq_length=67 leaves no room"),
        ((384, 0, 64), "doc_stride=0"),
        ((384, 381, 64), "doc_stride=381 is as long as a window of max_seq_length=384"),
        ((384, 128, 0), "max_query_length=0"),
    ],
)
def test_lengths_are_checked(values, message):
    refused(message, FeatureSettings, *values)


def test_answers_of_more_tokens_than_may_be_given_are_counted(tmp_path):
    context = "北京是中国的首都，北京大学位于北京海淀区" * 3
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(context), "who"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab), encoding="utf-8")
    lengths = ([3], [7], [7, 3], [9, 8], [])  # of each question's answers, which begin at 4
    examples = [
        Example(str(number), "who", context, tuple(Answer(context[4 : 4 + length], 4) for length in each))
        for number, each in enumerate(lengths)
    ]
    tokenizer, settings = FullTokenizer(tmp_path / "vocab.txt"), FeatureSettings(32, 10, 8)
    for is_training, expected in ((False, {2: 4, 3: 2, 7: 1, 8: 0}), (True, {2: 4, 3: 3, 7: 1, 9: 0})):
        windows = make_windows(examples, tokenizer, settings, is_training=is_training)
        assert {most: count_unreachable(examples, windows, most) for most in expected} == expected
    assert count_unreachable([example._replace(answers=None) for example in examples], windows, 99) == 0
