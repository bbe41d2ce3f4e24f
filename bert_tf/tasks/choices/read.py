"""Reads questions with choices: SWAG's CSV, and JSON lines with the fields of published data sets.

docs/fine_tuning.md has the table of the fields. Of the three or four distractors in SWAG's full files three are used.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.fields import Fields, UnreadFields
from bert_tf.base.files import check_file
from bert_tf.tasks.records import JSON_SUFFIXES, as_text, json_objects, read_csv

NAME_A_FILE = "name a .csv file with SWAG's columns, or JSON lines (.jsonl) with a context and its choices"
_CONTEXTS = ("context", "sent1", "ctx_a", "article", "passage", "text", "paragraph", "story")
_STARTS = ("question", "sent2", "ctx_b", "question_stem")  # what stands before each choice
_CHOICES = ("endings", "choices", "options")
_NUMBERED = re.compile(r"(ending|answer)\d+")
_FULL = ("gold-ending", "distractor-0", "distractor-1", "distractor-2")
_LABELS = ("label", "answer", "answerKey")
_NONE = ("None", "", "-1")  # what labels are where they are not published


class Question(NamedTuple):
    context: str
    choices: list[str]  # each with what stands before it
    label: int | None  # number of the right one; None: not known


def read_questions(
    path: Path, *, needs_labels: bool, max_bad_records: int = 0, limit: int | None = None
) -> tuple[list[Question], str]:
    """All questions of a file, or the first `limit`, and a line about them. All have as many choices as the first.

    Args:
      needs_labels: whether the right choices must be known.
      max_bad_records: how many questions with a fault are left out.

    Raises:
      UserError: the file has no question, is not UTF-8 or of an unknown form, or more questions have a fault.
    """
    check_file(path, NAME_A_FILE)
    good: list[Question] = []
    bad = BadRecords(max_bad_records, "question", str(path))
    unread = UnreadFields()
    for line, fields in itertools.islice(_records(path), limit and limit + max_bad_records):
        try:
            good.append(_question(fields, good, needs_labels, unread))
        except ValueError as fault:
            bad.add(f"line {line}: {fault}")
    if not good:
        raise UserError(f"{path} holds no question that can be used; {NAME_A_FILE}")
    way_out = f"; what is to be the context must be called {', '.join(_CONTEXTS)}"
    notes = [bad.describe(), (named := unread.describe()) and named + way_out]
    size = f"{path}: {len(good):,} questions with {len(good[0].choices)} choices each"
    return good[:limit], "; ".join(filter(None, [size, *notes]))


def _records(path: Path) -> Iterator[tuple[int, Fields]]:
    """The fields of each question, with its line; none for a line with more or fewer than the header."""
    suffix = path.suffix.lower()
    if suffix in JSON_SUFFIXES:
        yield from ((line, fields) for line, content in json_objects(path) for fields in _flat(content))
    elif suffix == ".csv":
        header: list[str] = []
        for line, fields, _ in read_csv(path, ","):
            if header:
                yield line, Fields(dict(zip(header, fields)) if len(fields) == len(header) else {})
            header = header or fields
    else:
        raise UserError(f"{path}: its name says nothing about its form; {NAME_A_FILE}")


def _flat(content: dict[str, Any]) -> Iterator[Fields]:
    """The fields of each question in an object."""
    question, several = content.get("question"), content.get("questions")
    if isinstance(question, dict):  # of ARC and CommonsenseQA
        content.update(question, question=question.pop("stem", None))
        yield Fields(content)
    elif isinstance(several, list):  # of RACE
        lists = [values if isinstance(values, list) else [] for values in map(content.get, ("options", "answers"))]
        shared = {name: value for name, value in content.items() if name not in ("questions", "options", "answers")}
        for question, options, answer in itertools.zip_longest(several, *lists):
            yield Fields({**shared, "question": question, "options": options, "answer": answer})
    else:
        yield Fields(content)


def _question(fields: Fields, before: Sequence[Question], needs_labels: bool, unread: UnreadFields) -> Question:
    """Raises ValueError if the fields are not those of a question like those `before`."""
    if not fields:
        raise ValueError("no fields, or not as many as in the header")
    shown = f"the fields are {', '.join(map(repr, fields)):.120}"
    context, start = fields.first(_CONTEXTS), fields.first(_STARTS)
    if context is None:
        context, start = start, None
    if context is None:
        raise ValueError(f"no context; it must be called {', '.join(_CONTEXTS)}, or question without one; {shown}")
    texts, names = _choices(fields, unread)
    if len(texts) < 2:
        called = ", ".join((*_CHOICES, "or ending0, ending1 ..."))
        raise ValueError(f"{len(texts)} choice(s); they must be called {called}; {shown}")
    context, start, *texts = (as_text(value, "a text") for value in (context, start or "", *texts))
    if not all(text.strip() for text in texts):
        raise ValueError(f"choice {[bool(text.strip()) for text in texts].index(False)} (from 0) is empty")
    if before and len(texts) != len(before[0].choices):
        raise ValueError(f"{len(texts)} choices, but {len(before[0].choices)} in the questions before")
    label = 0 if _FULL[0] in fields else _label(fields.first(_LABELS), names, len(texts))
    if needs_labels and label is None:
        raise ValueError(f"the right choice is missing; training and scoring need one of {', '.join(_LABELS)}")
    unread.add(fields, fields.read)
    return Question(context, [f"{start} {text}" if start else text for text in texts], label)


def _choices(fields: Fields, unread: UnreadFields) -> tuple[list[Any], list[str]]:
    """The choices, and the labels that the file gives them, if any."""
    choices = fields.first(_CHOICES)
    if choices is None:
        names = _FULL if _FULL[0] in fields else [name for name in fields if _NUMBERED.fullmatch(name)]
        return [fields.first([name]) for name in names], []
    if isinstance(choices, dict):  # as Hugging Face has those of ARC
        columns = [values for values in map(choices.get, ("text", "label")) if isinstance(values, list)]
        choices = [{"text": text, "label": label} for text, label in zip(*columns)] if len(columns) == 2 else choices
    if not isinstance(choices, list):
        raise ValueError(f"the choices are {choices!r:.60}: must be a list of texts")
    if choices and all(isinstance(choice, dict) for choice in choices):
        for choice in choices:
            unread.add(choice, ("text", "label"))
        return [choice.get("text") for choice in choices], [str(choice.get("label")) for choice in choices]
    return choices, []


def _label(value: Any, names: Sequence[str], num_choices: int) -> int | None:
    """The number of the right choice; None: not known."""
    text, numbers, letters = str(value), list(map(str, range(num_choices))), string.ascii_uppercase[:num_choices]
    for known in (names,) if names else (numbers, list(letters)):
        if text in known:
            return known.index(text)
    if text in _NONE:
        return None
    expected = ", ".join(map(repr, names)) or f"0 to {numbers[-1]}, or A to {letters[-1]}"
    raise ValueError(f"the right choice is {value!r:.40}, but the choices are {expected}")
