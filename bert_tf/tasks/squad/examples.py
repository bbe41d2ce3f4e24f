"""Reads SQuAD's JSON (versions 1.1 and 2.0) into checked examples.

A file contains articles, an article paragraphs, a paragraph one context and its questions. What a
question needs from its context (words and their places) is computed once per paragraph and shared.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file, read_json_object
from bert_tf.text.basic_tokenizer import Casing, tokenize_words

NAME_A_FILE = "name a SQuAD file such as train-v1.1.json"
_ROWS = (
    "SQuAD's format is one object, data > paragraphs > qas; docs/fine_tuning.md shows how to convert rows with a "
    "question each, as Hugging Face's datasets writes them"
)
# An error message names at most this many questions with a wrong answer.
_NUM_NAMED = 6
# If more of the questions than this have a wrong answer, the file is refused.
_LARGEST_WRONG_SHARE = 0.5
# How tools count answer_start: with Python's characters, or in code units of the encoding that their language's strings
# have.
_UNITS = {"characters": "utf-32-le", "UTF-16 code units": "utf-16-le", "bytes of UTF-8": "utf-8"}
# The characters on which Google's reader splits a context into words. Other Unicode spaces stay
# inside their word; the tokenizer splits there later.
_WORD = re.compile("[^ \t\r\n\u202f]+")


class Paragraph:
    """A context and its words.

    Attributes:
      context: the text as in the file.
      words: its parts between white space.
      word_starts: position of each word's first character in `context`.
    """

    def __init__(self, context: str):
        self.context = context
        self.words: list[str] = []
        self.word_starts: list[int] = []
        for match in _WORD.finditer(context):
            self.words.append(match.group())
            self.word_starts.append(match.start())

    def word_at(self, character: int) -> int:
        """The number of the word that contains position `character`; at white space, of the word before it."""
        return max(bisect.bisect_right(self.word_starts, character) - 1, 0)


@dataclasses.dataclass(frozen=True)
class Answer:
    """A marked answer: its text and the position of its first character in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Example:
    """One question.

    Attributes:
      answers: all accepted answers; empty if there is none in the context (version 2.0);
        None if the file does not say (a test set to be predicted).
    """

    question_id: str
    question: str
    paragraph: Paragraph
    answers: tuple[Answer, ...] | None

    @property
    def is_impossible(self) -> bool:
        """Whether the file says that the context contains no answer."""
        return self.answers is not None and not self.answers


def answer_range(example: Example) -> tuple[int, int]:
    """Where the answer used for training, the first of those given, starts and ends (exclusive) in the context.

    If the text stands at answer_start, it is that one. Otherwise the rule of Google's reader decides: the words from
    answer_start to the answer's end, as many characters further, must contain it; of several occurrences there the
    one nearest to answer_start counts. In both, white space may differ.

    Raises: UserError if there is no answer by these rules, or if the tokenizer leaves nothing of it.
    """
    assert example.answers
    answer, paragraph = example.answers[0], example.paragraph
    match = _find_answer(answer, paragraph)
    if match is None:
        raise UserError(
            f"question {example.question_id!r}: the words at answer_start={answer.start} do not contain the answer "
            f"{answer.text!r} ({_describe_mismatch(paragraph.context, answer)}); answer_start counts characters (not "
            "bytes) from 0"
        )
    if not tokenize_words(paragraph.context[slice(*match)], Casing.of(True)):
        raise UserError(
            f"question {example.question_id!r}: the tokenizer leaves nothing of the answer {answer.text!r}; an answer "
            "needs visible characters"
        )
    return match


def _find_answer(answer: Answer, paragraph: Paragraph) -> tuple[int, int] | None:
    context, text = paragraph.context, answer.text.strip()
    if not text or not 0 <= answer.start < len(context):
        return None
    if context.startswith(text, answer.start):
        return answer.start, answer.start + len(text)
    pattern = r"\s+".join(map(re.escape, text.split()))
    match = re.compile(rf"\s*({pattern})").match(context, answer.start)
    if not match:
        first, last = map(paragraph.word_at, (answer.start, answer.start + len(answer.text) - 1))
        begin, end = paragraph.word_starts[first], paragraph.word_starts[last] + len(paragraph.words[last])
        # Looking ahead, so that occurrences may overlap.
        occurrences = re.compile(rf"(?=({pattern}))").finditer(context, begin, end)
        match = min(occurrences, key=lambda each: abs(each.start() - answer.start), default=None)
    return match.span(1) if match else None


def _in_characters(examples: list[Example], path: str | Path) -> tuple[list[Example], str]:
    """The examples with each first answer's start in characters, and a note if the file counts it otherwise.

    It counts in the unit in which most of its answers, and more than in any other, stand at their place; otherwise in
    characters.
    """
    starts: dict[str, list[int]] = {}
    fits: dict[str, int] = {}
    for unit, encoding in _UNITS.items():
        starts[unit] = [_place(example, encoding) for example in examples]
        fits[unit] = sum(
            example.paragraph.context.startswith(example.answers[0].text, max(start, 0))
            for example, start in zip(examples, starts[unit])
            if example.answers
        )
    best = max(fits, key=fits.__getitem__)
    if fits[best] == fits["characters"] or 2 * fits[best] <= sum(bool(example.answers) for example in examples):
        return examples, ""
    converted = [
        dataclasses.replace(example, answers=(Answer(example.answers[0].text, start), *example.answers[1:]))
        if example.answers
        else example
        for example, start in zip(examples, starts[best])
    ]
    others = f"{fits[best]:,} answers stand at their place so, and {fits['characters']:,} if it counts characters"
    return converted, f"{path}: answer_start is taken to count {best}, not characters: {others}"


def _place(example: Example, encoding: str) -> int:
    """The first answer's start in characters, if the file counts code units of `encoding`; -1 if it has none."""
    start, context = example.answers[0].start if example.answers else -1, example.paragraph.context
    if start < 0 or context.isascii() or encoding == _UNITS["characters"]:
        return start
    before = context.encode(encoding, "replace")[: start * len("a".encode(encoding))]
    return len(before.decode(encoding, "ignore"))


def _describe_mismatch(context: str, answer: Answer) -> str:
    """Says what the context has at an answer's position, and where the answer's text really is."""
    if not answer.text.strip():
        return "an answer's text must not be empty"
    first = context.find(answer.text)
    elsewhere = f"its first occurrence is at {first}" if first >= 0 else "it is nowhere in the context"
    if not 0 <= answer.start < len(context):
        return f"the context has {len(context)} characters; {elsewhere}"
    return f"the context has {context[answer.start : answer.start + len(answer.text)]!r}; {elsewhere}"


def read_examples(path: str | Path, *, version_2_with_negative: bool = False) -> list[Example]:
    """Reads the questions of a SQuAD file, in its order.

    Args:
      path: JSON file in the format of SQuAD 1.1 or 2.0.
      version_2_with_negative: whether questions without an answer are allowed.

    Raises:
      UserError: not a file, not JSON, a missing or wrong field (named with its place), a repeated
        id, or a question without an answer if that is not allowed.
    """
    check_file(Path(path), NAME_A_FILE)
    content = read_json_object(Path(path), f"download it again if that was interrupted, or {NAME_A_FILE}; {_ROWS}")
    examples: list[Example] = []
    seen: dict[str, str] = {}
    for location, example in _questions(content, str(path)):
        if example.question_id in seen:
            raise UserError(
                f"{location}: id {example.question_id!r} is already used at {seen[example.question_id]}; "
                "answers are identified by it, so every question needs its own"
            )
        seen[example.question_id] = location
        if example.is_impossible and not version_2_with_negative:
            raise UserError(
                f"{location}: question {example.question_id!r} has no answer; pass "
                "--version_2_with_negative if that is meant (SQuAD 2.0), or use a SQuAD 1.1 file; a file that is only "
                "to be predicted has no field 'answers'"
            )
        examples.append(example)
    if not examples:
        raise UserError(f"{path} holds no question; it must be a SQuAD file such as train-v1.1.json")
    return examples


def sound_answers(examples: list[Example], path: str | Path) -> tuple[list[Example], str]:
    """The questions of `path` that can be trained on, and a line about those that cannot ("" if there are none).

    Those are left out whose answer `answer_range` does not find, and empty questions. If they are more than half of the
    questions with an answer, the file is in another format. Of each answer used, the start is made to count characters.

    Raises: UserError, which tells their number, if there are so many, or if a question has no field for answers.
    """
    examples, note = _in_characters(examples, path)
    sound: list[Example] = []
    wrong: list[tuple[str, UserError]] = []
    for example in examples:
        if example.answers is None:
            raise UserError(
                f"{path}: question {example.question_id!r} has no field 'answers'; training needs the answers, "
                "and a file without them can only be predicted"
            )
        try:
            if not example.question.strip():
                raise UserError(f"question {example.question_id!r} is empty")
            if example.answers:
                answer_range(example)
            sound.append(example)
        except UserError as error:
            wrong.append((example.question_id, error))
    if not wrong:
        return sound, note
    message = f"{path}: {wrong[0][1]}"
    if len(wrong) > 1:
        others = ", ".join(repr(question_id) for question_id, _ in wrong[1:_NUM_NAMED])
        more = ", ..." if len(wrong) > _NUM_NAMED else ""
        message = (
            f"{path}: {len(wrong):,} of {len(examples):,} questions are empty or have a wrong answer; "
            f"{wrong[0][1]}; the others are {others}{more}"
        )
    if len(wrong) > _LARGEST_WRONG_SHARE * (len(wrong) + sum(bool(example.answers) for example in sound)):
        raise UserError(message)
    return sound, "\n".join(filter(None, [note, f"left out of training: {message}"]))


def describe_empty_questions(examples: list[Example], path: str | Path) -> str:
    """A line about the empty questions of a file to be predicted, which are answered, too; "" if there are none."""
    empty = [example.question_id for example in examples if not example.question.strip()]
    return (
        f"{path}: {len(empty):,} empty question(s), answered like the others; the first is {empty[0]!r}"
        if empty
        else ""
    )


def _field(item: Any, name: str, kind: type | tuple[type, ...], location: str) -> Any:
    if not isinstance(item, dict):
        raise UserError(f"{location}: must be a JSON object with a field {name!r}, not {type(item).__name__}")
    if name not in item:
        raise UserError(f"{location}: field {name!r} is missing; SQuAD's format requires it")
    value = item[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise UserError(f"{location}: field {name!r} must be {kinds}, not {type(value).__name__}")
    return value


def _questions(content: Any, path: str) -> Iterator[tuple[str, Example]]:
    """All questions of a file, each with its place in it for messages."""
    for a, article in enumerate(_field(content, "data", list, path)):
        if isinstance(article, dict) and {"context", "question"} <= article.keys():
            raise UserError(f"{path}: data[{a}] is a row with a question and its context; {_ROWS}")
        for p, item in enumerate(_field(article, "paragraphs", list, f"{path}: data[{a}]")):
            location = f"{path}: data[{a}].paragraphs[{p}]"
            paragraph = Paragraph(_field(item, "context", str, location))
            if not paragraph.words:
                raise UserError(f"{location}: field 'context' is empty; a question needs a text to be answered from")
            for q, question in enumerate(_field(item, "qas", list, location)):
                where = f"{location}.qas[{q}]"
                question_id = str(_field(question, "id", (str, int), where))
                text = _field(question, "question", str, where)
                yield where, Example(question_id, text, paragraph, _answers(question, where))


def _answers(question: dict[str, Any], location: str) -> tuple[Answer, ...] | None:
    is_impossible = question.get("is_impossible")
    if not isinstance(is_impossible, (bool, type(None))):
        raise UserError(f"{location}: is_impossible is {is_impossible!r:.40}: must be true or false")
    if "answers" not in question:
        return () if is_impossible else None
    answers = tuple(
        Answer(
            _field(answer, "text", str, f"{location}.answers[{i}]"),
            _field(answer, "answer_start", int, f"{location}.answers[{i}]"),
        )
        for i, answer in enumerate(_field(question, "answers", list, location))
    )
    if is_impossible is False and not answers:
        raise UserError(
            f'{location}: has no answer and yet "is_impossible": false; one of them is wrong (a file that is only to '
            "be predicted has no field 'answers')"
        )
    if is_impossible and not any(answer.text.strip() for answer in answers):
        return ()  # some tools write an answer without text
    if is_impossible:
        raise UserError(
            f"{location}: has is_impossible and yet an answer; one of them is wrong "
            "(answers that only look right belong under 'plausible_answers')"
        )
    return answers
