"""Exact match and F1 by the rules of SQuAD's official evaluation scripts, versions 1.1 and 2.0.

Answers are compared after normalisation: lower case, without punctuation and the words a, an and
the, single spaces. F1 counts common words. Of several accepted answers the best match counts. All
final scores are percentages.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping, Sequence
from typing import Callable

from bert_tf.tasks.squad.examples import Example

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """The text in lower case, without ASCII punctuation and articles, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(prediction: str, truth: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(truth))


def f1(prediction: str, truth: str) -> float:
    """Harmonic mean of precision and recall over words, each word counted as often as it occurs."""
    predicted, true = normalize_answer(prediction).split(), normalize_answer(truth).split()
    num_same = sum((collections.Counter(predicted) & collections.Counter(true)).values())
    if num_same == 0:
        return 0.0
    precision, recall = num_same / len(predicted), num_same / len(true)
    return 2 * precision * recall / (precision + recall)


def f1_version_2(prediction: str, truth: str) -> float:
    """Like `f1`, but if either side has no word left, 1 if both have none, else 0."""
    if not normalize_answer(prediction) or not normalize_answer(truth):
        return exact_match(prediction, truth)
    return f1(prediction, truth)


def score(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, float]:
    """The scores of version 1.1, {"exact_match", "f1"}, for questions with answers and one prediction for each."""
    truths = {example.question_id: [answer.text for answer in example.answers or ()] for example in examples}
    return {
        "exact_match": _mean(_best_scores(truths, predictions, exact_match), truths),
        "f1": _mean(_best_scores(truths, predictions, f1), truths),
    }


def score_version_2(
    examples: Sequence[Example], predictions: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """The scores of version 2.0, for one prediction and null odds per question; "" predicts that there is no answer.

    Returns: "exact_match" and "f1" over all questions and their number "total"; the same as
      "HasAns_exact", "HasAns_f1", "HasAns_total" over those with an answer and as "NoAns_..." over
      those without (left out if there are none); the best scores that any threshold would give,
      "best_exact" and "best_f1", with the thresholds "best_exact_thresh" and "best_f1_thresh":
      no answer is predicted if the odds exceed the threshold.
    """
    truths = {example.question_id: _accepted(example) for example in examples}
    exact = _best_scores(truths, predictions, exact_match)
    f1_scores = _best_scores(truths, predictions, f1_version_2)
    has_answer = {example.question_id: bool(example.answers) for example in examples}
    result = {"exact_match": _mean(exact, truths), "f1": _mean(f1_scores, truths), "total": len(truths)}
    for name, is_answerable in (("HasAns", True), ("NoAns", False)):
        ids = [id_ for id_ in truths if has_answer[id_] is is_answerable]
        if ids:
            result[f"{name}_exact"] = _mean(exact, ids)
            result[f"{name}_f1"] = _mean(f1_scores, ids)
            result[f"{name}_total"] = len(ids)
    for name, scores in (("exact", exact), ("f1", f1_scores)):
        best, threshold = best_threshold(scores, predictions, null_odds, has_answer)
        result[f"best_{name}"], result[f"best_{name}_thresh"] = best, threshold
    return result


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """(best mean score in percent, the null odds above which no answer must be predicted to get it).

    Starts with no answer to all questions, and then admits the questions' own predictions in order of
    ascending odds. For a question without an answer whose prediction is "" nothing changes.
    """
    current = best = float(sum(not answerable for answerable in has_answer.values()))
    threshold = 0.0
    for id_ in sorted(scores, key=null_odds.__getitem__):
        if has_answer[id_]:
            current += scores[id_]
        elif predictions[id_]:
            current -= 1
        if current > best:
            best, threshold = current, null_odds[id_]
    return 100.0 * best / len(scores), threshold


def _accepted(example: Example) -> list[str]:
    """The accepted answers, or [""] if there is none. Answers that normalise to nothing do not count."""
    return [answer.text for answer in example.answers or () if normalize_answer(answer.text)] or [""]


def _best_scores(
    truths: Mapping[str, Sequence[str]], predictions: Mapping[str, str], compare: Callable[[str, str], float]
) -> dict[str, float]:
    return {id_: max(compare(predictions[id_], truth) for truth in texts) for id_, texts in truths.items()}


def _mean(scores: Mapping[str, float], ids) -> float:
    return 100.0 * sum(scores[id_] for id_ in ids) / len(ids)
