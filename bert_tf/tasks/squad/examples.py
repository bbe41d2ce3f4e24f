"""Reads SQuAD's JSON (versions 1.1 and 2.0) into checked examples.

A file contains articles, an article paragraphs, a paragraph one context and its questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import BadRecords, UserError, contrast
from bert_tf.base.fields import UnreadFields
from bert_tf.base.files import check_file, read_json_object
from bert_tf.text.basic_tokenizer import Casing, tokenize_words

NAME_A_FILE = "name a SQuAD file such as train-v1.1.json"
_ROWS = (
    "SQuAD's format is one object, data > paragraphs > qas; docs/fine_tuning.md shows how to convert rows with a "
    "question each, as Hugging Face's datasets writes them"
)
_NO_ANSWER = (
    "pass --version_2_with_negative if that is meant (SQuAD 2.0); a file that is only to be predicted has no field "
    "'answers'"
)
# Of an object at any depth; the title, the version and plausible answers are not read.
_SQUADS_FIELDS = frozenset(
    "version data title paragraphs context qas id question answers text answer_start is_impossible "
    "plausible_answers".split()
)
_KINDS = {list: "a list", str: "a text", int: "a whole number", (str, int): "a text or a whole number"}
# How tools count answer_start: with Python's characters, or in code units of the encoding that their language's strings
# have.
_UNITS = {"characters": "utf-32-le", "UTF-16 code units": "utf-16-le", "bytes of UTF-8": "utf-8"}
# The characters on which Google's reader splits a context into words. Other Unicode spaces stay
# inside their word; the tokenizer splits there later.
_WORD = re.compile("[^ \t\r\n\u202f]+")


class Answer(NamedTuple):
    """A marked answer: its text and the position of its first character in the context."""

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
    """Where the answer used for training, the first of those given, starts and ends (exclusive) in the context.

    If the text stands at answer_start, it is that one. Otherwise the rule of Google's reader decides: the words from
    answer_start to the answer's end, as many characters further, must contain it; of several occurrences there the
    one nearest to answer_start counts. In both, white space may differ. None: there is no answer by these rules.
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
        # Looking ahead, so that occurrences may overlap.
        occurrences = re.compile(rf"(?=({pattern}))").finditer(context, begin, end)
        match = min(occurrences, key=lambda each: abs(each.start() - start), default=None)
    return match.span(1) if match else None


def _word_at(context: str, position: int) -> tuple[int, int]:
    """Where the word begins and ends that holds a character; at white space the word before it, or the first one."""
    words = [match.span() for match in _WORD.finditer(context)]
    return max([word for word in words if word[0] <= position] or words[:1])


def _unit_of(examples: list[Example]) -> str:
    """What a file's `answer_start` counts: code units only if most answers, and more than by characters, stand so."""
    fits = {unit: sum(_stands_at_its_place(each, encoding) for each in examples) for unit, encoding in _UNITS.items()}
    best = max(fits, key=fits.__getitem__)  # of equal ones the first, characters
    return best if 2 * fits[best] > sum(bool(example.answers) for example in examples) else "characters"


def _stands_at_its_place(example: Example, encoding: str) -> bool:
    """Whether the first answer does, if `answer_start` counts code units of `encoding`."""
    if not example.answers:
        return False
    text, start = example.answers[0]
    answer, context = (each.encode(encoding, "replace") for each in (text, example.context))
    return start >= 0 and context.startswith(answer, start * len("a".encode(encoding)))


def read_examples(
    path: str | Path, *, version_2_with_negative: bool = False, unread: UnreadFields | None = None
) -> list[Example]:
    """Reads the questions of a SQuAD file, in its order.

    Args:
      path: JSON file in the format of SQuAD 1.1 or 2.0.
      version_2_with_negative: whether questions without an answer are allowed.
      unread: counts the fields that hold text and are none of SQuAD's.

    Raises:
      UserError: not a file, not JSON, a missing or wrong field (named with its place), a repeated
        id, or a question without an answer if that is not allowed.
    """
    check_file(Path(path), NAME_A_FILE)
    content = read_json_object(Path(path), f"download it again if that was interrupted, or {NAME_A_FILE}; {_ROWS}")
    examples: list[Example] = []
    seen: dict[str, str] = {}
    for location, example in _questions(content, str(path), unread or UnreadFields()):
        if example.question_id in seen:
            before = seen[example.question_id]
            raise UserError(f"{location}: id {example.question_id!r} is already used at {before}; give each its own")
        seen[example.question_id] = location
        if example.is_impossible and not version_2_with_negative:
            raise UserError(f"{location}: question {example.question_id!r} has no answer; {_NO_ANSWER}")
        examples.append(example)
    if not examples:
        raise UserError(f"{path} holds no question; it must be a SQuAD file such as train-v1.1.json")
    return examples


def require_answers(examples: Sequence[Example], path: str | Path, remedy: str) -> None:
    """Raises `UserError` if the file does not say the answers to all questions."""
    if unknown := next((example for example in examples if example.answers is None), None):
        raise UserError(f"{path}: question {unknown.question_id!r} has no field 'answers'; {remedy}")


def sound_answers(examples: list[Example], path: str | Path) -> tuple[list[Example], str]:
    """The questions of `path` that can be trained on, and a line about those that cannot ("" if there are none).

    Those are left out whose answer `answer_range` does not find, or whose start depends on what the file counts, which
    is no characters; and empty questions. If they are more than half of the questions with an answer, the file is in
    another format.

    Raises: UserError, which tells their number, if there are so many; if a question has no field for answers.
    """
    require_answers(examples, path, "a file without the answers can only be predicted")
    unit, sound, bad = _unit_of(examples), list[Example](), BadRecords(len(examples), "question")
    for example in examples:
        if fault := _fault(example, unit):
            bad.add(f"{example.question_id!r} {fault}")
        else:
            sound.append(example)
    note = bad.num and f"{path}: {bad.describe()}"
    if bad.num > sum(bool(example.answers) for example in sound):
        remedy = "answer_start counts characters from 0: convert it, as docs/fine_tuning.md says"
        raise UserError(f"{note}, more than half of those with an answer; {remedy}")
    return sound, note or ""


def _fault(example: Example, unit: str) -> str:
    """Why a question with known answers cannot be trained on; "" if it can. `unit`: what answer_start counts."""
    context = example.context
    if not example.question.strip():
        return "is empty"
    if not example.answers:
        return ""
    text, start = example.answers[0]
    before, size = context[: max(start, 0)], len("a".encode(_UNITS[unit]))
    if len(before.encode(_UNITS[unit], "replace")) != size * len(before):
        return f"has an answer_start in {unit}, of which a character before it has several"
    if (span := answer_range(example)) is None:
        answer, in_context = contrast(text, context[len(before) :][: len(text)])
        return f"has the answer {answer} at {start}, where the context has {in_context}"
    if not tokenize_words(context[slice(*span)], Casing.from_flags(True)):
        return f"has the answer {text!r:.80}, of which the tokenizer leaves nothing"
    return ""


def _field(item: Any, name: str, kind: Any, location: str) -> Any:
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{location}: the field {name!r} must be {_KINDS[kind]}, not {value!r:.80}; {_ROWS}")
    return value


def _questions(content: Any, path: str, unread: UnreadFields) -> Iterator[tuple[str, Example]]:
    """All questions of a file, each with its place in it for messages."""
    articles = _field(content, "data", list, path)
    unread.add(content, _SQUADS_FIELDS)
    for a, article in enumerate(articles):
        paragraphs = _field(article, "paragraphs", list, f"{path}: data[{a}]")
        unread.add(article, _SQUADS_FIELDS)
        for p, item in enumerate(paragraphs):
            location = f"{path}: data[{a}].paragraphs[{p}]"
            context = _field(item, "context", str, location)
            unread.add(item, _SQUADS_FIELDS)
            if not _WORD.search(context):
                raise UserError(f"{location}: field 'context' is empty; a question needs a text to be answered from")
            for q, question in enumerate(_field(item, "qas", list, location)):
                where = f"{location}.qas[{q}]"
                question_id = str(_field(question, "id", (str, int), where))
                text = _field(question, "question", str, where)
                answers = _answers(question, where)
                for fields in (question, *(question.get("answers") or ())):
                    unread.add(fields, _SQUADS_FIELDS)
                yield where, Example(question_id, text, context, answers)


def _answers(question: dict[str, Any], location: str) -> tuple[Answer, ...] | None:
    is_impossible = question.get("is_impossible")
    if "answers" not in question and is_impossible in (None, False):
        return None
    answers = []
    for number, given in enumerate(_field({"answers": [], **question}, "answers", list, location)):
        where = f"{location}.answers[{number}]"
        answer = Answer(_field(given, "text", str, where), _field(given, "answer_start", int, where))
        if not is_impossible or answer.text.strip():  # some tools write an answer without text
            answers.append(answer)
    if is_impossible not in (None, not answers):
        counted = f"{len(answers)} answers; correct one of them ('plausible_answers' are not read)"
        raise UserError(f"{location}: is_impossible is {is_impossible!r:.40}, but it has {counted}")
    return tuple(answers)
