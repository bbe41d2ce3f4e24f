"""From questions to windows, and from logits to answers: beside an independent implementation, and by hand."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from bert_tf.tasks.squad.decode import DecodeSettings, decode
from bert_tf.tasks.squad.examples import Answer, Example
from bert_tf.tasks.squad.features import FeatureSettings, best_windows, count_unreachable, make_windows, window_spans
from bert_tf.tasks.squad.task import SquadTask
from bert_tf.text.vocabulary import SPECIAL_TOKENS
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
    batch = features.batch(np.arange(len(features.input_ids)))
    assert len(features.input_ids) == len(training.input_ids) == len(GOLDEN["features"])
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
        (33, 8, 8, [(0, 8), (8, 8), (16, 8), (24, 8), (32, 1)]),
        (450, 320, 128, [(0, 320), (128, 320), (256, 194)]),  # so much shorter that its length decides
    ],
)
def test_windows_and_for_each_token_the_one_that_shows_most_around_it(num_tokens, room, stride, spans):
    assert window_spans(num_tokens, room, stride) == spans
    found = best_windows(spans, num_tokens)
    for token in range(num_tokens):
        contexts = [
            (min(token - start, start + length - 1 - token) + 0.01 * length, -number)
            for number, (start, length) in enumerate(spans)
            if start <= token < start + length
        ]
        assert found[token] == -max(contexts)[1]


SHORT = FeatureSettings(32, 8, 8)


def example(context, answer, start):
    return Example("q", "who ?", context, (Answer(answer, start),))


def tokenizer_of(folder, *pieces):
    pieces = dict.fromkeys([*SPECIAL_TOKENS, *pieces, "who", "?"])
    (folder / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    return FullTokenizer(folder / "vocab.txt")


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
    tokenizer = tokenizer_of(tmp_path, *context, "12", "1900")
    one = example(context, answer, start)
    features = make_windows([one], tokenizer, FeatureSettings(64, 16, 8), is_training=True)
    assert features.start_positions[0] == 4 + place
    assert features.end_positions[0] == 4 + place + len(tokenizer.tokenize(answer)) - 1


def test_an_invisible_answer_is_refused_when_training(golden):
    invisible = example("who \u200b\u200b moved", "\u200b\u200b", 4)
    refused("leaves nothing of its answer", make_windows, [invisible], golden[1], SHORT, is_training=True)
    made = make_windows([invisible], golden[1], SHORT, is_training=False)
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
    lengths = ([3], [7], [7, 3], [9, 8], [])  # of each question's answers, which begin at 4
    examples = [Example("q", "who", context, tuple(Answer(context[4 : 4 + n], 4) for n in each)) for each in lengths]
    tokenizer, settings = tokenizer_of(tmp_path, *context), FeatureSettings(32, 10, 8)
    for is_training, expected in ((False, {2: 4, 3: 2, 7: 1, 8: 0}), (True, {2: 4, 3: 3, 7: 1, 9: 0})):
        windows = make_windows(examples, tokenizer, settings, is_training=is_training)
        assert {most: count_unreachable(examples, windows, most) for most in expected} == expected
    assert count_unreachable([example._replace(answers=None) for example in examples], windows, 99) == 0


def golden_logits(features):
    """The numbers the golden file was made with: any that spread, and hold in float32."""
    i = np.arange(len(features.input_ids))[:, None]
    j = np.arange(features.input_ids.shape[1])
    start = (i * 7919 + j * 104729 + 17) % 997 / 100
    end = (i * 6101 + j * 15485863 + 5) % 991 / 100
    return start.astype(np.float32), end.astype(np.float32)


def test_a_list_that_has_no_room_for_an_answer_beside_none_is_refused():
    assert DecodeSettings(n_best_size=1) and DecodeSettings(n_best_size=2, version_2_with_negative=True)
    message = "n_best_size=1 with version_2_with_negative: must be at least 2"
    refused(message, DecodeSettings, n_best_size=1, version_2_with_negative=True)


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_agree_with_hugging_face(golden, version_2):
    examples, tokenizer = golden
    features = make_windows(examples, tokenizer, FeatureSettings(**GOLDEN["settings"]), is_training=False)
    settings = DecodeSettings(**GOLDEN["decode_settings"], version_2_with_negative=version_2)
    decoded = decode(examples, features, *golden_logits(features), settings)
    expected = GOLDEN["version_2" if version_2 else "version_1"]
    assert decoded.predictions == expected["predictions"]
    assert decoded.null_odds == pytest.approx(expected.get("null_odds", {}))
    assert list(decoded.nbest) == list(expected["nbest"])
    for question_id, entries in expected["nbest"].items():
        assert len(decoded.nbest[question_id]) == len(entries)
        for found, entry in zip(decoded.nbest[question_id], entries):
            assert found == pytest.approx(entry, abs=1e-8)  # the file holds 9 places
    task = SquadTask({}, FeatureSettings(**GOLDEN["settings"]), settings, wants_scores=False)
    task.contents, task.rows = {"predict": examples}, {"predict": features}
    files = {name: list(parts) for name, parts in task.conclude("predict", golden_logits(features)).files.items()}
    assert "".join(files["nbest_predictions.json"]) == json.dumps(decoded.nbest, indent=4) + "\n"
    assert 1 < max(map(len, files["nbest_predictions.json"])) < 200  # written in parts, as it may be large


def logits_for(features, start, end, score=5.0):
    """Logits [1, S] that clearly prefer one span."""
    logits = np.full([2, *features.input_ids.shape], -10.0, np.float32)
    logits[0, 0, start] = logits[1, 0, end] = score
    return logits


def one_row(golden, context="her brother's workshop moved"):
    """A question, its features, and the position of the context's first token."""
    examples = [Example("q", "who ?", context, None)]
    features = make_windows(examples, golden[1], SHORT, is_training=False)
    return examples, features, int(features.num_query_tokens[0])


def test_a_list_of_one_and_a_text_found_twice(golden):
    examples, features, first = one_row(golden, context="brother moved brother")
    logits = np.maximum(logits_for(features, first, first), logits_for(features, first + 2, first + 2, score=4.0))
    decoded = decode(examples, features, *logits, DecodeSettings(n_best_size=1))
    assert [entry["text"] for entry in decoded.nbest["q"]] == ["brother"]
    decoded = decode(examples, features, *logits, DecodeSettings())
    texts = [entry["text"] for entry in decoded.nbest["q"]]
    assert texts[:2] == ["brother", "brother moved brother"] and texts.count("brother") == 1


def test_no_span_at_all_is_answered_like_google_does(golden):
    examples, features, _ = one_row(golden, context="\u200b")
    logits = np.zeros(features.input_ids.shape, np.float32)
    assert decode(examples, features, logits, logits, DecodeSettings()).predictions == {"q": "empty"}
    decoded = decode(examples, features, logits + 1, logits, DecodeSettings(version_2_with_negative=True))
    assert (decoded.predictions, decoded.null_odds) == ({"q": ""}, {"q": 1.0})


@pytest.mark.parametrize("threshold, answer", [(3.0, "her"), (2.5, "her"), (2.4, "")])
def test_no_answer_wins_over_the_threshold_only(golden, threshold, answer):
    examples, features, first = one_row(golden)
    logits = logits_for(features, first, first)  # score 10
    logits[:, 0, 0] = 8.0, 4.5  # 2.5 more
    settings = DecodeSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
    decoded = decode(examples, features, *logits, settings)
    assert (decoded.null_odds, decoded.predictions) == ({"q": 2.5}, {"q": answer})
    assert decoded.nbest["q"][0]["text"] == ""


@pytest.mark.parametrize(
    "context, span_text, answer",
    [
        ("Her Brother's workshop", "her brother", "Her Brother"),
        ("in (1851) made", "1851", "1851"),
        ("bröther s", "brother", "bröther"),
        ("bro\u0308ther s", "brother", "bro\u0308ther"),
        ("her  brother\nmoved", "her brother moved", "her  brother\nmoved"),
        ("her ☃-brother", "brother", "brother"),
    ],
)
def test_answers_keep_their_capitals_accents_and_white_space(golden, context, span_text, answer):
    examples, features, _ = one_row(golden, context)
    ids, wanted = features.input_ids[0].tolist(), golden[1].tokenize_to_ids(span_text)
    start = next(place for place in range(len(ids)) if ids[place : place + len(wanted)] == wanted)
    logits = logits_for(features, start, start + len(wanted) - 1)
    assert decode(examples, features, *logits, DecodeSettings()).predictions == {"q": answer}
