"""Exact match and F1 by the rules of SQuAD's official evaluation scripts, versions 1.1 and 2.0, or by CMRC 2018's.

By SQuAD's rules, answers are compared after normalisation (lower case, single spaces, without punctuation and the words
a, an and the), and F1 counts common words. Text without spaces has no words to count: there the rules are those of CMRC
2018 (cmrc2018_evaluate.py), by which answers are in lower case without punctuation, each character of such a script
counts by itself and other text by words, and F1 counts the longest run that both answers have in common. By both, of
several accepted answers the best match counts, and all final scores are percentages.
"""

from __future__ import annotations

import collections
import difflib
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Callable, NamedTuple

from bert_tf.tasks.scores import Counts
from bert_tf.tasks.squad.examples import Example

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
# CMRC's own list, without the double "……", which no single character equals.
_WITHOUT_CMRCS_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
_CHINESE = "\u4e00-\u9fa5"  # as in CMRC's script
# Thai, Lao, Burmese, Khmer; kana; rare Chinese characters.
_WITHOUT_SPACES = f"{_CHINESE}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\U00020000-\U0002fa1f"
# What NLTK's word_tokenize, which CMRC's script applies to text that is not Chinese, separates from words.
_SEPARATED = re.compile(
    r"""([;@#$%&?!()\[\]{}<>"«»‘„‒–—―]|\.{2,}|,(?!\d)|\.(?=[\])}>"'»\s]*$)"""
    r"""|'(?:s|m|d|ll|re|ve)?(?=\s|$)|n't(?=\s|$))"""
)


class Scoring(NamedTuple):
    """How answers are compared."""

    normalize: Callable[[str], str]  # answers whose results are equal are exact matches
    f1: Callable[[str, str], float]  # of a prediction and an accepted answer, from 0 to 1
    note: str = ""  # a line to be shown that says what F1 counts, if not words

    def exact_match(self, prediction: str, truth: str) -> float:
        return float(self.normalize(prediction) == self.normalize(truth))

    def f1_version_2(self, prediction: str, truth: str) -> float:
        """Like `f1`, but if `normalize` leaves nothing of one side: 1 if it leaves nothing of both, else 0."""
        if not self.normalize(prediction) or not self.normalize(truth):
            return self.exact_match(prediction, truth)
        return self.f1(prediction, truth)


def normalize_answer(text: str) -> str:
    """The text in lower case, without ASCII punctuation and articles, and with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def f1(prediction: str, truth: str) -> float:
    """Harmonic mean of precision and recall over words, each word counted as often as it occurs."""
    predicted, true = normalize_answer(prediction).split(), normalize_answer(truth).split()
    num_same = sum((collections.Counter(predicted) & collections.Counter(true)).values())
    return Counts(len(true), len(predicted), num_same).scores()["f1"]


def _normalize_characters(text: str) -> str:
    return text.lower().strip().translate(_WITHOUT_CMRCS_PUNCTUATION)


def _score_characters(characters: str) -> Scoring:
    """The scoring by CMRC's rules, where each of `characters` (ranges for a regular expression) counts by itself."""
    single = re.compile(f"([{characters}])")

    def units(text: str) -> list[str]:
        parts = single.split(_normalize_characters(text))
        return " ".join(part if single.match(part) else _SEPARATED.sub(r" \1 ", part) for part in parts).split()

    def f1_of_run(prediction: str, truth: str) -> float:
        predicted, true = units(prediction), units(truth)
        matcher = difflib.SequenceMatcher(None, predicted, true, autojunk=False)
        common = matcher.find_longest_match(0, len(predicted), 0, len(true))
        return Counts(len(true), len(predicted), common.size).scores()["f1"]

    return Scoring(
        _normalize_characters,
        f1_of_run,
        "F1 counts characters, by the rules of CMRC 2018: the answers are in text without spaces",
    )


WORDS = Scoring(normalize_answer, f1)


def choose_scoring(examples: Sequence[Example]) -> Scoring:
    """CMRC's rules if most letters of the accepted answers belong to scripts without spaces, else SQuAD's."""
    answers = "".join(answer.text for example in examples for answer in example.answers or ())
    num_letters = sum(map(str.isalpha, answers))
    for characters in (_CHINESE, _WITHOUT_SPACES):
        if 2 * len(re.findall(f"[{characters}]", answers)) > num_letters:
            return _score_characters(characters)
    return WORDS


def score(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, float]:
    """The scores of version 1.1, {"exact_match", "f1"}, for questions with answers and one prediction for each."""
    truths = {example.question_id: [answer.text for answer in example.answers or ()] for example in examples}
    scoring = choose_scoring(examples)
    return {
        "exact_match": _mean(_best_scores(truths, predictions, scoring.exact_match).values()),
        "f1": _mean(_best_scores(truths, predictions, scoring.f1).values()),
    }


def score_version_2(
    examples: Sequence[Example], predictions: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """The scores of version 2.0, for one prediction and null odds per question; "" predicts that there is no answer.

    Returns: "exact_match" and "f1" over all questions, whose number is "total"; the same as "HasAns_exact",
      "HasAns_f1", "HasAns_total" over the questions with an answer, and as "NoAns_..." over those without (left out if
      there are none); and the best scores that any threshold of the null odds would give, "best_exact" and "best_f1",
      with the thresholds, "best_exact_thresh" and "best_f1_thresh".
    """
    scoring = choose_scoring(examples)
    truths = {example.question_id: _accepted(example, scoring) for example in examples}
    exact = _best_scores(truths, predictions, scoring.exact_match)
    f1_scores = _best_scores(truths, predictions, scoring.f1_version_2)
    has_answer = {example.question_id: bool(example.answers) for example in examples}
    result: dict[str, float] = {}
    for name, ids in (
        ("", list(truths)),
        ("HasAns_", [id_ for id_ in truths if has_answer[id_]]),
        ("NoAns_", [id_ for id_ in truths if not has_answer[id_]]),
    ):
        if ids:
            result[f"{name}exact" if name else "exact_match"] = _mean(exact[id_] for id_ in ids)
            result[f"{name}f1"] = _mean(f1_scores[id_] for id_ in ids)
            result[f"{name}total"] = len(ids)
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

    Starts by predicting no answer to any question, and then replaces that by the questions' own predictions in order of
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


def _accepted(example: Example, scoring: Scoring) -> list[str]:
    """The accepted answers that do not normalise to nothing, or [""] if there is none."""
    return [answer.text for answer in example.answers or () if scoring.normalize(answer.text)] or [""]


def _best_scores(
    truths: Mapping[str, Sequence[str]], predictions: Mapping[str, str], compare: Callable[[str, str], float]
) -> dict[str, float]:
    return {id_: max(compare(predictions[id_], truth) for truth in texts) for id_, texts in truths.items()}


def _mean(scores: Iterable[float]) -> float:
    values = list(scores)
    return 100.0 * sum(values) / len(values)
