"""Reads SQuAD's JSON (versions 1.1 and 2.0) into checked examples.

A file contains articles, an article contains paragraphs, and a paragraph one context and its questions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError, contrast
from bert_tf.base.fields import KIND_NAMES, UnreadFields
from bert_tf.base.files import check_file, read_json_object
from bert_tf.text.basic_tokenizer import Casing, tokenize_words

NAME_A_FILE = "name a SQuAD file such as train-v1.1.json"
_FORMAT_ADVICE = (
    "SQuAD's format is one object, data > paragraphs > qas; docs/fine_tuning.md shows how to convert rows with a "
    "question each, as Hugging Face's datasets writes them"
)
_NO_ANSWER = (
    "pass --version_2_with_negative if that is meant (SQuAD 2.0); a file that is only to be predicted has no field "
    "'answers'"
)
# The format's fields, of objects at any depth; title, version and plausible_answers are known but not read.
_KNOWN_FIELDS = frozenset(
    "version data title paragraphs context qas id question answers text answer_start is_impossible "
    "plausible_answers".split()
)
_KIND_NAMES: dict[Any, str] = {**KIND_NAMES, (str, int): "a text or a whole number"}
# What tools count in answer_start: characters as in Python, or code units of the encoding of their language's strings.
_UNITS = {"characters": "utf-32-le", "UTF-16 code units": "utf-16-le", "bytes of UTF-8": "utf-8"}
# Google's reader splits a context into words only at these spaces. Other Unicode spaces stay inside a word; the
# tokenizer splits there later.
_SPACES = " \t\r\n\u202f"
_WORD = re.compile(f"[^{_SPACES}]+")


class Answer(NamedTuple):
    """An accepted answer: its text and the position of its first character in the context."""

    text: str
    start: int


class Example(NamedTuple):
    """One question.

    Attributes:
      answers: all accepted answers; empty if there is none in the context (version 2.0);
        None if the file does not say (a test set to be predicted).
    """

    question_id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None

    @property
    def is_impossible(self) -> bool:
        """Whether the file says that the context contains no answer."""
        return self.answers is not None and not self.answers


def answer_range(example: Example) -> tuple[int, int] | None:
    """Where the answer used for training, the example's first one, starts and ends (exclusive) in the context.

    If its text occurs at answer_start, that is the range. Otherwise, as in Google's reader, the text is searched for in
    the words that hold the characters from answer_start to answer_start + length of the text; of several occurrences
    the one nearest to answer_start counts. White space may differ in both cases. None: the text is in neither.
    """
    assert example.answers
    answer, context = example.answers[0], example.context
    text, start = answer.text.strip(), answer.start
    if not text or not 0 <= start < len(context):
        return None
    if context.startswith(text, start):
        return start, start + len(text)
    pattern = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({pattern})").match(context, start)
    if not match:
        (begin, _), (_, end) = (_word_at(context, position) for position in (start, start + len(answer.text) - 1))
        # A lookahead, so that overlapping occurrences are all considered.
        occurrences = re.compile(rf"(?=({pattern}))").finditer(context, begin, end)
        match = min(occurrences, key=lambda occurrence: abs(occurrence.start() - start), default=None)
    return match.span(1) if match else None


def _word_at(context: str, position: int) -> tuple[int, int]:
    """(start, end) of the word at `position`; at white space that of the word before it or, without one, the first."""
    end = len(context[: position + 1].rstrip(_SPACES))
    match = _WORD.search(context, max(context.rfind(space, 0, end) for space in _SPACES) + 1)
    assert match  # no context is without a word
    return match.span()


def _guess_unit(examples: list[Example]) -> str:
    """What a file's `answer_start` counts: the unit by which most answers fit, if more than half of them do, else
    characters."""
    num_fits = {unit: sum(_answer_fits(example, encoding) for example in examples) for unit, encoding in _UNITS.items()}
    best = max(num_fits, key=num_fits.__getitem__)  # if several are equal, the first, which is characters
    return best if 2 * num_fits[best] > sum(bool(example.answers) for example in examples) else "characters"


def _answer_fits(example: Example, encoding: str) -> bool:
    """Whether the context has the first answer at `answer_start`, counted in code units of `encoding`."""
    if not example.answers:
        return False
    text, start = example.answers[0]
    answer, context = text.encode(encoding, "replace"), example.context.encode(encoding, "replace")
    return start >= 0 and context.startswith(answer, start * len("a".encode(encoding)))


def read_examples(
    path: str | Path, *, version_2_with_negative: bool = False, unread: UnreadFields | None = None
) -> list[Example]:
    """The questions of a SQuAD file, in the file's order.

    Args:
      path: JSON file in the format of SQuAD 1.1 or 2.0.
      version_2_with_negative: whether questions without an answer are allowed.
      unread: counts the fields that are not SQuAD's and hold text.

    Raises:
      UserError: not a file, not JSON, a missing or wrong field (the message says where), a repeated id, no question,
        or a question without an answer if that is not allowed.
    """
    path = Path(path)
    check_file(path, NAME_A_FILE)
    content = read_json_object(path, f"download it again if that was interrupted, or {NAME_A_FILE}; {_FORMAT_ADVICE}")
    examples: list[Example] = []
    location_by_id: dict[str, str] = {}
    for location, example in _questions(content, str(path), unread or UnreadFields()):
        if earlier := location_by_id.get(example.question_id):
            raise UserError(f"{location}: id {example.question_id!r} is already used at {earlier}; give each its own")
        location_by_id[example.question_id] = location
        if example.is_impossible and not version_2_with_negative:
            raise UserError(f"{location}: question {example.question_id!r} has no answer; {_NO_ANSWER}")
        examples.append(example)
    if not examples:
        raise UserError(f"{path} holds no question; it must be a SQuAD file such as train-v1.1.json")
    return examples


def require_answers(examples: Sequence[Example], path: str | Path, remedy: str) -> None:
    """Raises `UserError` if a question has no field for answers."""
    if unknown := next((example for example in examples if example.answers is None), None):
        raise UserError(f"{path}: question {unknown.question_id!r} has no field 'answers'; {remedy}")


def sound_answers(examples: list[Example], path: str | Path) -> tuple[list[Example], str]:
    """The questions of `path` that can be trained on, and a line about those left out ("" if there are none).

    Left out are empty questions, answers that `answer_range` does not find or the tokenizer would drop and, in a file
    whose answer_start counts code units, answers after a character of several units.

    Raises: UserError if more are left out than questions with an answer remain, which means that the file is in another
      format, or if a question has no field for answers.
    """
    require_answers(examples, path, "a file without the answers can only be predicted")
    unit, sound, bad = _guess_unit(examples), list[Example](), BadRecords(len(examples), "question")
    for example in examples:
        if fault := _fault(example, unit):
            bad.add(f"{example.question_id!r} {fault}")
        else:
            sound.append(example)
    note = f"{path}: {bad.describe()}"
    if bad.num_left_out > sum(bool(example.answers) for example in sound):
        raise UserError(
            f"{note}, more than half of those with an answer; correct the file; answer_start counts characters from 0 "
            "(docs/fine_tuning.md)"
        )
    return sound, note if bad.num_left_out else ""


def _fault(example: Example, unit: str) -> str:
    """Why a question with known answers cannot be trained on; "" if it can. `unit`: what answer_start counts."""
    context = example.context
    if not example.question.strip():
        return "is empty"
    if not example.answers:
        return ""
    text, start = example.answers[0]
    before, unit_size = context[: max(start, 0)], len("a".encode(_UNITS[unit]))
    if len(before.encode(_UNITS[unit], "replace")) != unit_size * len(before):
        return f"has an answer_start in {unit}, of which a character before it has several"
    if (span := answer_range(example)) is None:
        forms = [unicodedata.normalize("NFC", part) for part in (text, context)]
        if text not in context and forms[0] in forms[1]:
            return (
                f"has the answer {text!r:.80} in another Unicode form (NFC, NFD) than the context; bring both to one "
                "with unicodedata.normalize, and answer_start with them"
            )
        answer, in_context = contrast(text, context[len(before) :][: len(text)])
        return f"has the answer {answer} at {start}, where the context has {in_context}"
    if not tokenize_words(context[slice(*span)], Casing.from_flags(True)):
        return f"has the answer {text!r:.80}, of which the tokenizer leaves nothing"
    return ""


def _field(item: Any, name: str, kind: Any, location: str) -> Any:
    """The field `name` of `item`. Raises: UserError if `item` is no object, or the field not of this `kind`."""
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(
            f"{location}: the field {name!r} must be {_KIND_NAMES[kind]}, not {value!r:.80}; {_FORMAT_ADVICE}"
        )
    return value


def _items(
    parent: Any, name: str, location: str, unread: UnreadFields, between: str = "."
) -> Iterator[tuple[str, Any]]:
    """The elements of the list `name` of `parent`, each with its location in the file, for messages."""
    for number, item in enumerate(_field(parent, name, list, location)):
        if isinstance(item, dict):
            unread.add(item, _KNOWN_FIELDS)
        yield f"{location}{between}{name}[{number}]", item


def _questions(content: dict[str, Any], path: str, unread: UnreadFields) -> Iterator[tuple[str, Example]]:
    """All questions of a file, each with its location."""
    unread.add(content, _KNOWN_FIELDS)
    for article_location, article in _items(content, "data", path, unread, ": "):
        for location, paragraph in _items(article, "paragraphs", article_location, unread):
            context = _field(paragraph, "context", str, location)
            if not _WORD.search(context):
                raise UserError(f"{location}: field 'context' is empty; a question needs a text to be answered from")
            for question_location, question in _items(paragraph, "qas", location, unread):
                question_id = str(_field(question, "id", (str, int), question_location))
                text = _field(question, "question", str, question_location)
                answers = _answers(question, question_location, unread)
                yield question_location, Example(question_id, text, context, answers)


def _answers(question: dict[str, Any], location: str, unread: UnreadFields) -> tuple[Answer, ...] | None:
    is_impossible = question.get("is_impossible")
    if "answers" not in question and is_impossible in (None, False):
        return None
    answers = []
    for item_location, item in _items({"answers": [], **question}, "answers", location, unread):
        answer = Answer(_field(item, "text", str, item_location), _field(item, "answer_start", int, item_location))
        if not is_impossible or answer.text.strip():  # for no answer some tools write one without text
            answers.append(answer)
    if is_impossible not in (None, not answers):
        raise UserError(
            f"{location}: is_impossible is {is_impossible!r:.40}, but it has {len(answers)} answers; correct one of "
            "them ('plausible_answers' are not read)"
        )
    return tuple(answers)
