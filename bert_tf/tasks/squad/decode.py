"""Turns logits into answers: the n best spans of a question, their text, and the odds of no answer.

The rules are those of Google's run_squad.py, so that predictions, n-best lists and null odds can
be compared entry by entry and fed to SQuAD's own evaluation scripts.

Shapes: F windows, S tokens in a row, n the size of the n-best list.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.config import check_counts
from bert_tf.tasks.squad.examples import Example
from bert_tf.tasks.squad.features import NO_WORD, Features
from bert_tf.text.basic_tokenizer import tokenize_words
from bert_tf.text.wordpiece import FullTokenizer

# What Google's code answers where no window holds any admissible span.
NO_SPAN_TEXT = "empty"


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
    """How spans become answers, with the names of the flags."""

    n_best_size: int = 20
    max_answer_length: int = 30  # tokens
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0

    def __post_init__(self) -> None:
        check_counts(self, "n_best_size", "max_answer_length")


class Decoded(NamedTuple):
    """Answers by question id, as the three files hold them.

    Attributes:
      predictions: id -> text ("" where the answer is that there is none).
      nbest: id -> list of {"text", "probability", "start_logit", "end_logit"}, best first.
      null_odds: id -> score of no answer minus score of the best answer; empty for version 1.1.
    """

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


class _Span(NamedTuple):
    """Tokens start..end (inclusive) of the row `window`; start 0 is [CLS]: no answer."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


class _Entry(NamedTuple):
    text: str
    start_logit: float
    end_logit: float


def decode(
    examples: Sequence[Example],
    features: Features,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    tokenizer: FullTokenizer,
    settings: DecodeSettings,
    *,
    show_progress: bool = False,
) -> Decoded:
    """Finds the answers.

    Args:
      features: made for prediction (`is_training=False`) from `examples`.
      start_logits, end_logits: float [F, S] for the rows of `features`.
    """
    decoded = Decoded({}, {}, {})
    # The windows of one question are adjacent, in the order of the questions.
    bounds = np.searchsorted(features.example_index, np.arange(len(examples) + 1))
    for index, example in enumerate(
        Progress(examples, unit="questions", description="SQuAD answers", disable=not show_progress)
    ):
        windows = range(bounds[index], bounds[index + 1])
        spans = []
        for window in windows:
            spans += _admissible_spans(features, window, start_logits, end_logits, settings)
        null = None
        if settings.version_2_with_negative:
            null = min(
                (
                    _Span(window, 0, 0, float(start_logits[window, 0]), float(end_logits[window, 0]))
                    for window in windows
                ),
                key=lambda span: span.score,
            )
            spans.append(null)
        spans.sort(key=lambda span: span.score, reverse=True)
        text_of = functools.partial(_text_of, example=example, features=features, tokenizer=tokenizer)
        entries = _nbest_entries(spans, null, text_of, settings.n_best_size)
        decoded.nbest[example.question_id] = _with_probabilities(entries)
        answer = entries[0].text
        if null is not None:
            best = next(entry for entry in entries if entry.text)
            odds = null.score - best.start_logit - best.end_logit
            decoded.null_odds[example.question_id] = odds
            answer = "" if odds > settings.null_score_diff_threshold else best.text
        decoded.predictions[example.question_id] = answer
    return decoded


def _admissible_spans(
    features: Features, window: int, start_logits: np.ndarray, end_logits: np.ndarray, settings: DecodeSettings
) -> list[_Span]:
    """Pairs of the n best starts and ends of one window that can be answers, in falling order of
    the start's logit, then the end's."""
    starts = np.argsort(-start_logits[window], kind="stable")[: settings.n_best_size]
    ends = np.argsort(-end_logits[window], kind="stable")[: settings.n_best_size]
    is_context = features.token_to_word[window] != NO_WORD
    starts = starts[is_context[starts] & features.is_max_context[window, starts]]
    ends = ends[is_context[ends]]
    lengths = ends - starts[:, None] + 1
    pairs = np.argwhere((lengths >= 1) & (lengths <= settings.max_answer_length))
    return [
        _Span(
            window,
            int(starts[i]),
            int(ends[j]),
            float(start_logits[window, starts[i]]),
            float(end_logits[window, ends[j]]),
        )
        for i, j in pairs
    ]


def _nbest_entries(
    spans: Sequence[_Span], null: _Span | None, text_of: Callable[[_Span], str], n_best_size: int
) -> list[_Entry]:
    """The best spans with different texts; never an empty list."""
    entries: list[_Entry] = []
    seen = set()
    for span in spans:
        if len(entries) >= n_best_size:
            break
        text = text_of(span) if span.start else ""
        if text not in seen:
            seen.add(text)
            entries.append(_Entry(text, span.start_logit, span.end_logit))
    if null is not None:
        # "No answer" is always listed, and never alone, so that null odds can be computed.
        if "" not in seen:
            entries.append(_Entry("", null.start_logit, null.end_logit))
        if len(entries) == 1:
            entries.insert(0, _Entry(NO_SPAN_TEXT, 0.0, 0.0))
    return entries or [_Entry(NO_SPAN_TEXT, 0.0, 0.0)]


def _with_probabilities(entries: Sequence[_Entry]) -> list[dict[str, Any]]:
    scores = np.array([entry.start_logit + entry.end_logit for entry in entries], np.float64)
    weights = np.exp(scores - scores.max())
    return [
        {
            "text": entry.text,
            "probability": float(weight),
            "start_logit": entry.start_logit,
            "end_logit": entry.end_logit,
        }
        for entry, weight in zip(entries, weights / weights.sum())
    ]


def _text_of(span: _Span, example: Example, features: Features, tokenizer: FullTokenizer) -> str:
    """Text of a span as the context has it, capitals, accents and all."""
    ids = features.input_ids[span.window, span.start : span.end + 1].tolist()
    # Word pieces joined into words: "play ##ed" is "played".
    pieces = " ".join(tokenizer.convert_ids_to_tokens(ids))
    span_text = " ".join(pieces.replace(" ##", "").replace("##", "").split())
    first, last = features.token_to_word[span.window, [span.start, span.end]]
    original = " ".join(example.paragraph.words[first : last + 1])
    return restore_text(span_text, original, tokenizer.do_lower_case)


def restore_text(span_text: str, original: str, do_lower_case: bool) -> str:
    """The part of `original` that the tokenised, normalised `span_text` stands for.

    `original` is the whole words around the span and may hold more, for example a possessive:
    ("steve smith", "Steve Smith's") gives "Steve Smith". `original` is tokenised, the span is
    found in that, and its ends are carried over by counting characters other than spaces. Where
    that cannot be done ([UNK], removed accents), the whole of `original` is the answer.
    """
    tokenized = " ".join(tokenize_words(original, do_lower_case))
    first = tokenized.find(span_text)
    if first < 0:
        return original
    places_in_original = _places_of_non_spaces(original)
    places_in_tokenized = _places_of_non_spaces(tokenized)
    if len(places_in_original) != len(places_in_tokenized):
        return original
    place_of = dict(zip(places_in_tokenized, places_in_original))
    start, end = place_of.get(first), place_of.get(first + len(span_text) - 1)
    if start is None or end is None:
        return original
    return original[start : end + 1]


def _places_of_non_spaces(text: str) -> tuple[int, ...]:
    return tuple(place for place, character in enumerate(text) if character != " ")
