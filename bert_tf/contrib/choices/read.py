"""Reads questions with choices: SWAG's CSV, and JSON lines with the fields of published data sets.

docs/fine_tuning.md has the table of the fields; --fields names those of other files. SWAG's full files have three or
four distractors, of which three are used.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.fields import Fields, UnreadFields, first_repeated
from bert_tf.base.files import check_file
from bert_tf.tasks.records import JSON_SUFFIXES, as_label, as_text, json_objects, notes_on_file, read_csv

NAME_A_FILE = "name a .csv file with SWAG's columns, or JSON lines (.jsonl) with a context and its choices"
_FULL_SWAG = ("gold-ending", "distractor-0", "distractor-1", "distractor-2")
# What a field is for -> its names in published data sets.
_FIELD_NAMES = {
    "context": ("context", "sent1", "ctx_a", "article", "passage", "text", "paragraph", "story"),
    "start": ("question", "sent2", "ctx_b", "question_stem"),  # stands before each choice
    "choices": (
        *("endings", "choices", "options"),
        *("ending0, ...", "answer0, ...", "gold-ending, ..."),  # which `_gather` makes
    ),
    "label": ("label", "answer", "answerKey", "number of gold-ending"),
}
_UNPUBLISHED = ("None", "", "-1", "[]")  # labels of data sets that do not publish them
_OTHER_FORMS = (
    "the questions are in a list 'questions' (RACE) or an object 'question' (ARC, CommonsenseQA, OpenBookQA): "
    "docs/fine_tuning.md says how to write them with a text 'question' in each line"
)
_NAME_FIELDS = (
    "name the fields with --fields=context=FIELD,start=FIELD,choices=FIELD,label=FIELD (for choices in fields of their "
    "own: 0=FIELD,1=FIELD)"
)


class Question(NamedTuple):
    context: str
    choices: list[str]  # each with the text that stands before it
    label: int | None  # number of the right choice; None: not known


def parse_fields(text: str | None) -> dict[str, str]:
    """The fields that --fields names, such as ``context=premise,0=choice1,1=choice2``, by role (of `_FIELD_NAMES`) or,
    where each choice has a field, by the choice's label.

    Raises: UserError if the text has another form, names anything twice, or a single choice.
    """
    pairs = [[part.strip() for part in pair.partition("=")[::2]] for pair in text.split(",")] if text else []
    field_of_role = dict(pairs)
    choices = field_of_role.keys() - _FIELD_NAMES.keys()
    is_whole = all(map(all, pairs)) and not any(map(first_repeated, zip(*pairs)))
    if not is_whole or len(choices) == 1 or (choices and "choices" in field_of_role):
        raise UserError(
            f"--fields={text}: must be {', '.join(_FIELD_NAMES)}, or for choices the label of each, then = and its "
            "field, with commas between, as in --fields=context=premise,0=choice1,1=choice2"
        )
    return field_of_role


def read_questions(
    path: Path, *, needs_labels: bool, fields: str | None = None, max_bad_records: int = 0, limit: int | None = None
) -> tuple[list[Question], str]:
    """All questions of a file, or the first `limit`, and lines about them. All have as many choices as the first.

    Args:
      needs_labels: whether the right choices must be known.
      fields: the text of --fields, which names the file's fields.
      max_bad_records: how many faulty questions may be left out.

    Raises:
      UserError: the file has no question, is not UTF-8 or of an unknown form, or more questions are faulty.
    """
    check_file(path, NAME_A_FILE)
    good: list[Question] = []
    bad = BadRecords(max_bad_records, "question", str(path))
    field_of_role, unread = parse_fields(fields), UnreadFields()
    for line, record in _records(path):
        try:
            question = _parse_question(record, field_of_role, unread)
            if good and len(question.choices) != len(good[0].choices):
                raise ValueError(f"{len(question.choices)} choices, but {len(good[0].choices)} in the questions before")
            if needs_labels and question.label is None:
                raise ValueError(f"the right choice is missing; training and scoring need it; {_NAME_FIELDS}")
        except ValueError as fault:
            bad.add(f"line {line}: {fault}")
            continue
        good.append(question)
        if len(good) == limit:
            break
    if not good:
        raise UserError(f"{path} holds no question that can be used; {NAME_A_FILE}")
    size = f"{len(good):,} questions with {len(good[0].choices)} choices each"
    return good, notes_on_file(path, size, bad.describe(), unread.describe())


def _records(path: Path) -> Iterator[tuple[int, Fields]]:
    """The line and the fields of each question; no fields for a line with more or fewer columns than the header."""
    if path.suffix.lower() in JSON_SUFFIXES:
        yield from ((line, Fields(content)) for line, content in json_objects(path))
    elif path.suffix.lower() == ".csv":
        lines = read_csv(path, ",")
        for line, header, _ in itertools.islice(lines, 1):
            if name := first_repeated(header):
                raise UserError(f"{path}, line {line}: the column {name!r} occurs twice; rename one of them")
            for number, values, _ in lines:
                yield number, Fields(dict(zip(header, values)) if len(values) == len(header) else {})
    else:
        raise UserError(f"{path}: its name says nothing about its form; {NAME_A_FILE}")


def _parse_question(fields: Fields, field_of_role: Mapping[str, str], unread: UnreadFields) -> Question:
    """The question in these fields. Raises ValueError if they are not those of a question."""
    if not fields:
        raise ValueError("no fields, or not as many as in the header")
    field_names = f"the fields are {', '.join(map(repr, fields)):.120}; {_NAME_FIELDS}"
    for role, name in field_of_role.items():
        if fields.get(name) is None and role != "label":
            raise ValueError(f"no field {name!r}, which --fields names; {field_names}")
    if isinstance(fields.get("questions"), list) or isinstance(fields.get("question"), dict):
        raise ValueError(_OTHER_FORMS)
    context, start, choices, label = (_find(fields, field_of_role, role) for role in _FIELD_NAMES)
    if context is None:
        context, start = start, None
    texts, labels = _texts_and_labels(choices or [], unread)
    if context is None or len(texts) < 2:
        raise ValueError(f"the context is {context!r:.40}, and there are {len(texts)} choices; {field_names}")
    if labels and (len(labels) != len(texts) or first_repeated(labels)):
        raise ValueError(f"{len(texts)} choices have the labels {', '.join(labels):.60}: each must have its own")
    context, start, *texts = (as_text(value, "a text") for value in (context, "" if start is None else start, *texts))
    if not all(map(str.strip, texts)):
        raise ValueError(f"one of the choices is empty: {texts!r:.80}")
    unread.add(fields, fields.read_names)
    choices = [f"{start} {text}" if start else text for text in texts]
    return Question(context, choices, _label(label, labels, len(texts)))


def _find(fields: Fields, field_of_role: Mapping[str, str], role: str) -> Any:
    """The value of the field that is the "context", "start", "choices" or "label"; None if there is none."""
    if role == "choices" and role not in field_of_role:
        if labels := [label for label in field_of_role if label not in _FIELD_NAMES]:
            return {label: fields.read_one_of([field_of_role[label]]) for label in labels}
        _gather(fields)
    names = [name for name in _FIELD_NAMES[role] if name not in field_of_role.values()]
    return fields.read_one_of([field_of_role[role]] if role in field_of_role else names, _NAME_FIELDS)


def _gather(fields: Fields) -> None:
    """Replaces the fields that hold one choice each by one field with a list."""
    for stem in ("ending", "answer"):
        names = [name for name in fields if re.fullmatch(f"{stem}[0-9]+", name) and fields[name] is not None]
        ordered = [f"{stem}{number}" for number in range(len(names))]
        if {*names} != {*ordered}:
            raise ValueError(f"the choices are {', '.join(names)}: they must count from 0; or {_NAME_FIELDS}")
        fields[f"{stem}0, ..."] = [fields.pop(name) for name in ordered] or None
    if _FULL_SWAG[0] in fields:
        fields["gold-ending, ..."] = [fields.pop(name, None) for name in _FULL_SWAG]
        fields["number of gold-ending"] = 0


def _texts_and_labels(choices: Any, unread: UnreadFields) -> tuple[list[Any], list[str]]:
    """The choices, and the labels that the file gives them, if any."""
    labels: list[Any] = []
    if isinstance(choices, dict):  # label -> text or, as in Hugging Face's files, two lists
        labels, texts = list(choices), list(choices.values())
        if {*choices} == {"label", "text"} and all(isinstance(content, list) for content in texts):
            labels, texts = choices["label"], choices["text"]
    elif not isinstance(choices, list):
        raise ValueError(f"the choices are {choices!r:.60}: must be a list of texts")
    elif not all(isinstance(choice, dict) for choice in choices):
        texts = choices
    else:
        for choice in choices:
            unread.add(choice, ("text", "label"))
        texts, labels = ([choice.get(name) for choice in choices] for name in ("text", "label"))
        labels = labels if any(label is not None for label in labels) else []
    return texts, [as_label(label, "a choice's label") for label in labels]


def _label(value: Any, labels: list[str], num_choices: int) -> int | None:
    """The number of the right choice; None: not known. Without `labels` it is named by number from 0 or letter."""
    names = labels or [*map(str, range(num_choices)), *string.ascii_uppercase[:num_choices]]
    name = str(value).strip()  # Hugging Face's script for SocialIQA leaves the line's end
    if name in names:
        return names.index(name) % num_choices
    if name in _UNPUBLISHED:
        return None
    raise ValueError(f"the right choice is {value!r:.40}, but the choices are {', '.join(names):.80}; {_NAME_FIELDS}")
