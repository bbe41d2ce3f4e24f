"""Reads questions with choices: SWAG's CSV, and JSON lines with the fields of published data sets.

    the context         context, sent1, ctx_a, article
    before each choice  question, sent2, ctx_b, question_stem; without a context it is the context
    the choices         endings, choices, options, or ending0, ending1 ...
    the right one       label, answer, answerKey: its number from 0, its letter, or the label that the file gives it

The fields of RACE's files, which hold lists of questions, and the nested ones of ARC and CommonsenseQA are known, too.
SWAG's full files have no right one among numbered endings, but a ``gold-ending`` and three or four distractors; three
are used.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.tasks.records import JSON_SUFFIXES, json_objects, read_csv, whole_characters

NAME_A_FILE = "name a .csv file with SWAG's columns, or JSON lines (.jsonl) with a context and its choices"
_CONTEXTS = ("context", "sent1", "ctx_a", "article")
_STARTS = ("question", "sent2", "ctx_b", "question_stem")
_CHOICES = ("endings", "choices", "options")
_NUMBERED = re.compile(r"(ending|answer)\d+")
_FULL = ("gold-ending", "distractor-0", "distractor-1", "distractor-2")
_LABELS = ("label", "answer", "answerKey")
_NONE = ("None", "", "-1")  # what labels are where they are not published
_NUM_NAMED = 3  # a line names so many questions that were left out


class _Fault(Exception):
    """What is wrong with a question."""


class Question(NamedTuple):
    context: str
    choices: list[str]  # each with what stands before it
    label: int | None  # number of the right one


class Questions(NamedTuple):
    """The content of a file, in its order; all have the same number of choices, and all have labels or none."""

    path: Path
    questions: list[Question]
    left_out: str  # a line about what was left out, or ""

    @property
    def num_choices(self) -> int:
        return len(self.questions[0].choices)

    @property
    def has_labels(self) -> bool:
        return self.questions[0].label is not None

    def describe(self) -> str:
        """What was left out, and a line with the number of questions."""
        return f"{self.left_out}{self.path}: {len(self.questions):,} questions with {self.num_choices} choices each"


def read_questions(path: Path, *, needs_labels: bool, max_bad_records: int = 0, limit: int | None = None) -> Questions:
    """All questions of a file, or the first `limit`.

    Args:
      needs_labels: whether the right choices must be known.
      max_bad_records: how many questions with a fault are left out.

    Raises:
      UserError: the file has no question, is not UTF-8 or of an unknown form, or more questions have a fault.
    """
    check_file(path, NAME_A_FILE)
    good: list[Question] = []
    bad: list[str] = []
    for line, fields in _records(path):
        try:
            question = _question(fields)
            _check(question, good[0] if good else question, needs_labels)
            good.append(question)
        except _Fault as fault:
            bad.append(f"line {line}: {fault}")
        if len(bad) > max_bad_records:
            raise UserError(
                f"{path}, {bad[-1]}; correct it, or leave up to N such questions out with --max_bad_records=N"
            )
        if len(good) == limit:
            break
    if not good:
        raise UserError(f"{path} holds no question that can be used; {NAME_A_FILE}")
    named = "; ".join(bad[:_NUM_NAMED]) + ("; ..." if len(bad) > _NUM_NAMED else "")
    return Questions(path, good, f"{path}: {len(bad):,} question(s) left out: {named}\n" if bad else "")


def _check(question: Question, first: Question, needs_labels: bool) -> None:
    """Raises `_Fault` if the question does not go with the first one of its file."""
    if len(question.choices) != len(first.choices):
        raise _Fault(f"{len(question.choices)} choices, but {len(first.choices)} in the questions before")
    if needs_labels and question.label is None:
        raise _Fault(f"the right choice is missing; training and scoring need one of {', '.join(_LABELS)}")
    if (question.label is None) != (first.label is None):
        raise _Fault(f"the right choice is {'missing' if question.label is None else 'known'}, unlike before")


def _records(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The fields of each question, with its line."""
    if path.suffix.lower() in JSON_SUFFIXES:
        for line, content in json_objects(path):
            yield from ((line, fields) for fields in _flat(content))
    elif path.suffix.lower() == ".csv":
        header: list[str] = []
        for record in read_csv(path, ","):
            if header:
                yield record.line, dict(zip(header, record.fields)) if len(record.fields) == len(header) else {}
            header = header or record.fields
    else:
        raise UserError(f"{path}: its name says nothing about its form; {NAME_A_FILE}")


def _flat(content: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The fields of each question in an object."""
    question, several = content.get("question"), content.get("questions")
    if isinstance(question, dict):  # of ARC and CommonsenseQA
        yield {**content, **question, "question": question.get("stem")}
    elif isinstance(several, list):  # of RACE
        lists = [values if isinstance(values, list) else [] for values in map(content.get, ("options", "answers"))]
        for question, options, answer in itertools.zip_longest(several, *lists):
            yield {**content, "question": question, "options": options, "answer": answer}
    else:
        yield content


def _question(fields: Mapping[str, Any]) -> Question:
    """Raises `_Fault` if the fields are none of a question."""
    if not fields:
        raise _Fault("no fields, or not as many as in the header")
    shown = f"the fields are {', '.join(map(repr, fields)):.120}"
    texts, names = _choices(fields)
    before = [_first(fields, known) for known in (_CONTEXTS, _STARTS)]
    context, start = before if before[0] is not None else (before[1], "")
    if context is None:
        raise _Fault(f"no context; it must be called {', '.join(_CONTEXTS)}, or question without one; {shown}")
    if len(texts) < 2:
        named = ", ".join(_CHOICES)
        raise _Fault(f"{len(texts)} choice(s); they must be called {named}, or ending0, ending1 ...; {shown}")
    context, start, *texts = (_text(value) for value in (context, start or "", *texts))
    if not all(text.strip() for text in texts):
        raise _Fault(f"choice {[bool(text.strip()) for text in texts].index(False)} (from 0) is empty")
    label = 0 if _FULL[0] in fields else _label(_first(fields, _LABELS), names, len(texts))
    return Question(context, [f"{start} {text}" if start else text for text in texts], label)


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _choices(fields: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """The choices, and the labels that the file gives them, if any."""
    choices = _first(fields, _CHOICES)
    if choices is None:
        names = _FULL if _FULL[0] in fields else [name for name in fields if _NUMBERED.fullmatch(name)]
        return [fields.get(name) for name in names], []
    if isinstance(choices, dict):  # as Hugging Face has those of ARC
        columns = [values for values in map(choices.get, ("text", "label")) if isinstance(values, list)]
        choices = [{"text": text, "label": label} for text, label in zip(*columns)] if len(columns) == 2 else choices
    if not isinstance(choices, list):
        raise _Fault(f"the choices are {choices!r:.60}: must be a list of texts")
    if choices and all(isinstance(choice, dict) for choice in choices):
        return [choice.get("text") for choice in choices], [str(choice.get("label")) for choice in choices]
    return choices, []


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Fault(f"{value!r:.60} where a text must be")
    return whole_characters(value)


def _label(value: Any, names: Sequence[str], num_choices: int) -> int | None:
    """The number of the right choice; None: not known."""
    text = str(value)
    if text in names:
        return names.index(text)
    if text in _NONE:
        return None
    numbers = [str(number) for number in range(num_choices)]
    letters = list(string.ascii_uppercase[:num_choices])
    for known in (numbers, letters):
        if text in known and not names:
            return known.index(text)
    expected = ", ".join(map(repr, names)) or f"0 to {numbers[-1]}, or A to {letters[-1]}"
    raise _Fault(f"the right choice is {value!r:.40}, but the choices are {expected}")
