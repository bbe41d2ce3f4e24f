"""From logits to text: against an independent implementation and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bert_tf.tasks.squad.decode import DecodeSettings, decode
from bert_tf.tasks.squad.examples import Example
from bert_tf.tasks.squad.features import FeatureSettings, make_windows
from tests.squad_data import GOLDEN, read_golden


@pytest.fixture
def golden(tmp_path):
    """(examples, features, tokenizer) of the golden file."""
    examples, tokenizer = read_golden(tmp_path)
    settings = FeatureSettings(**GOLDEN["settings"])
    return examples, make_windows(examples, tokenizer, settings, is_training=False), tokenizer


def golden_logits(features):
    """The numbers the golden file was made with: any that spread, and hold in float32."""
    i = np.arange(features.num_windows)[:, None]
    j = np.arange(features.input_ids.shape[1])
    start = (i * 7919 + j * 104729 + 17) % 997 / 100
    end = (i * 6101 + j * 15485863 + 5) % 991 / 100
    return start.astype(np.float32), end.astype(np.float32)


@pytest.mark.parametrize("version_2", [False, True])
def test_answers_agree_with_hugging_face(golden, version_2):
    examples, features, tokenizer = golden
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


def logits_for(features, window, start, end):
    """Logits [F, S] that clearly prefer one span."""
    start_logits = np.full(features.input_ids.shape, -10.0, np.float32)
    end_logits = start_logits.copy()
    start_logits[window, start], end_logits[window, end] = 5.0, 5.0
    return start_logits, end_logits


def one_row(golden, context="her brother's workshop moved"):
    examples = [Example("q", "who ?", context, None)]
    return examples, make_windows(examples, golden[2], FeatureSettings(32, 8, 8), is_training=False), golden[2]


def test_spans_that_cannot_be_answers_are_left_out(golden):
    examples, features, tokenizer = one_row(golden)
    first = int(features.num_query_tokens[0])
    settings = DecodeSettings(max_answer_length=2)

    def answer(start, end):
        decoded = decode(examples, features, *logits_for(features, 0, start, end), settings)
        return decoded.nbest["q"][0]

    assert answer(first, first + 1)["text"] == "her brother"
    too_long, backwards, question = answer(first, first + 2), answer(first + 2, first), answer(1, 1)
    # The preferred pair scores 10; whatever else was found can have at most one of its ends.
    for entry in (too_long, backwards, question):
        assert entry["start_logit"] + entry["end_logit"] < 0


def test_a_list_of_one_and_a_text_found_twice(golden):
    examples, features, tokenizer = one_row(golden, context="brother moved brother")
    first = int(features.num_query_tokens[0])
    start_logits, end_logits = logits_for(features, 0, first, first)
    start_logits[0, first + 2] = end_logits[0, first + 2] = 4.0
    decoded = decode(examples, features, start_logits, end_logits, DecodeSettings(n_best_size=1))
    assert [entry["text"] for entry in decoded.nbest["q"]] == ["brother"]
    decoded = decode(examples, features, start_logits, end_logits, DecodeSettings())
    texts = [entry["text"] for entry in decoded.nbest["q"]]
    assert texts[:2] == ["brother", "brother moved brother"] and texts.count("brother") == 1


def test_no_span_at_all_is_answered_like_google_does(golden):
    examples, features, tokenizer = one_row(golden, context="\u200b")
    logits = np.zeros(features.input_ids.shape, np.float32)
    assert decode(examples, features, logits, logits, DecodeSettings()).predictions == {"q": "empty"}
    decoded = decode(examples, features, logits + 1, logits, DecodeSettings(version_2_with_negative=True))
    assert (decoded.predictions, decoded.null_odds) == ({"q": ""}, {"q": 1.0})


@pytest.mark.parametrize("threshold, answer", [(3.0, "her"), (2.5, "her"), (2.4, "")])
def test_no_answer_wins_over_the_threshold_only(golden, threshold, answer):
    examples, features, tokenizer = one_row(golden)
    first = int(features.num_query_tokens[0])
    start_logits, end_logits = logits_for(features, 0, first, first)  # score 10
    start_logits[0, 0], end_logits[0, 0] = 8.0, 4.5  # 2.5 more
    settings = DecodeSettings(version_2_with_negative=True, null_score_diff_threshold=threshold)
    decoded = decode(examples, features, start_logits, end_logits, settings)
    assert decoded.null_odds == {"q": 2.5}
    assert decoded.predictions == {"q": answer}
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
    examples, features, tokenizer = one_row(golden, context)
    ids, wanted = features.input_ids[0].tolist(), tokenizer.tokenize_to_ids(span_text)
    start = next(place for place in range(len(ids)) if ids[place : place + len(wanted)] == wanted)
    logits = logits_for(features, 0, start, start + len(wanted) - 1)
    assert decode(examples, features, *logits, DecodeSettings()).predictions == {"q": answer}
