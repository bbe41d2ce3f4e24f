"""Turns logits into answers: a question's n best spans, their texts, and the odds of no answer.

The rules are those of Google's run_squad.py, so that predictions, n-best lists and null odds can be compared entry by
entry and fed to SQuAD's own evaluation scripts. One rule is simpler: an answer's text is the part of the context that
its tokens stand for; Google's code searches the context for the text of the tokens.

Shapes: F windows, S tokens in a row, n the size of the n-best list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.tasks.rows import ByToken
from bert_tf.tasks.scores import probabilities
from bert_tf.tasks.squad.examples import Example
from bert_tf.tasks.squad.features import Windows
from bert_tf.tasks.squad.settings import DecodeSettings


class Decoded(NamedTuple):
    """Results by question id, as in the three output files.

    Attributes:
      predictions: id -> text ("" predicts that there is no answer).
      nbest: id -> list of {"text", "probability", "start_logit", "end_logit"}, best first.
      null_odds: id -> score of no answer minus score of the best answer; empty for version 1.1.
    """

    predictions: dict[str, str]
    nbest: dict[str, list[dict[str, Any]]]
    null_odds: dict[str, float]


class _Span(NamedTuple):
    """Tokens start..end (inclusive) of the window numbered `window`; start 0 ([CLS]) means no answer."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


# What Google's code answers if no window contains an admissible span.
_NO_SPAN = {"empty": _Span(0, 0, 0, 0.0, 0.0)}


def decode(
    examples: Sequence[Example],
    features: Windows,
    start_logits: ByToken,
    end_logits: ByToken,
    settings: DecodeSettings,
    *,
    show_progress: bool = False,
) -> Decoded:
    """Finds the answers to all questions.

    Args:
      features: made for prediction (`is_training=False`) from `examples`.
      start_logits, end_logits: float, for the rows of `features`.
    """
    decoded = Decoded({}, {}, {})
    # The windows of a question are adjacent, and in the order of the questions.
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
            nulls = [_Span(w, 0, 0, float(start_logits[w][0]), float(end_logits[w][0])) for w in windows]
            null = min(nulls, key=lambda span: span.score)
            spans.append(null)
        spans.sort(key=lambda span: span.score, reverse=True)
        span_by_text = _best_spans(spans, null, example.context, features, settings.n_best_size)
        decoded.nbest[example.question_id] = _with_probabilities(span_by_text)
        answer = next(iter(span_by_text))
        if null is not None:
            answer = next(text for text in span_by_text if text)
            odds = null.score - span_by_text[answer].start_logit - span_by_text[answer].end_logit
            decoded.null_odds[example.question_id] = odds
            answer = "" if odds > settings.null_score_diff_threshold else answer
        decoded.predictions[example.question_id] = answer
    return decoded


def _admissible_spans(
    features: Windows, window: int, start_logits: ByToken, end_logits: ByToken, settings: DecodeSettings
) -> list[_Span]:
    """The spans from one of a window's n best starts to one of its n best ends that can be answers, in descending order
    of the start's logit, then the end's."""
    window_starts, window_ends = start_logits[window], end_logits[window]
    starts = np.argsort(-window_starts, kind="stable")[: settings.n_best_size]
    ends = np.argsort(-window_ends, kind="stable")[: settings.n_best_size]
    is_context = features.token_ends[window] > 0
    starts = starts[is_context[starts] & features.is_max_context[window, starts]]
    ends = ends[is_context[ends]]
    lengths = ends - starts[:, None] + 1
    pairs = np.argwhere((lengths >= 1) & (lengths <= settings.max_answer_length))
    return [
        _Span(window, int(starts[i]), int(ends[j]), float(window_starts[starts[i]]), float(window_ends[ends[j]]))
        for i, j in pairs
    ]


def _best_spans(
    spans: Sequence[_Span], null: _Span | None, context: str, features: Windows, n_best_size: int
) -> dict[str, _Span]:
    """The best spans with different texts, by text, best first; never empty.

    A text is the context from the first token's first character to the last token's last; that of [CLS] is "".
    """
    span_by_text: dict[str, _Span] = {}
    for span in spans:
        if len(span_by_text) == n_best_size:
            break
        first = features.token_starts[span.window, span.start]
        span_by_text.setdefault(context[first : features.token_ends[span.window, span.end]], span)
    if null is not None:
        # "No answer" is always listed, and never alone, so that null odds can be computed.
        span_by_text.setdefault("", null)
        if len(span_by_text) == 1:
            return {**_NO_SPAN, **span_by_text}
    return span_by_text or _NO_SPAN


def _with_probabilities(span_by_text: Mapping[str, _Span]) -> list[dict[str, Any]]:
    """The entries of the n-best list; the probabilities are a softmax over the listed spans."""
    [shares] = probabilities(np.array([[span.score for span in span_by_text.values()]], np.float64))
    return [
        {"text": text, "probability": float(share), "start_logit": span.start_logit, "end_logit": span.end_logit}
        for (text, span), share in zip(span_by_text.items(), shares)
    ]
