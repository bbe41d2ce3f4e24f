"""Words of a text with the characters that each of their letters comes from.

The same rules as in `basic_tokenizer`, one character at a time: much slower, so results should be cached.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from bert_tf.text.basic_tokenizer import Casing, split_at_punctuation, split_words

_ASCII_WORD = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9 ]")


class WordSpans(NamedTuple):
    """A word and, for each of its characters, where the characters of the text that it comes from start and end."""

    word: str
    starts: list[int]
    ends: list[int]  # exclusive


class _Letter(NamedTuple):
    char: str
    start: int
    end: int


def spans_of_words(text: str, casing: Casing) -> Iterator[WordSpans]:
    """The words of ``tokenize_words(text, casing)``, with their characters' places in `text`."""
    if text.isascii() and text.isprintable():  # the common case: characters keep their number
        for match in _ASCII_WORD.finditer(casing.apply(text)):
            first, end = match.span()
            yield WordSpans(match[0], list(range(first, end)), list(range(first + 1, end + 1)))
        return
    for letters in _split(text):
        word = "".join(letter.char for letter in letters)
        cased = _apply(letters, casing)
        first = 0
        for part in split_at_punctuation(word, casing):
            # White space may come from decomposing; no part begins or ends with it.
            while cased[first].char.isspace():
                first += 1
            of_part = cased[first : first + len(part)]
            assert part == "".join(letter.char for letter in of_part)
            first += len(part)
            yield WordSpans(part, [letter.start for letter in of_part], [letter.end for letter in of_part])


@functools.lru_cache(maxsize=1 << 16)
def _words_with(char: str) -> list[str]:
    return split_words(f"a{char}b")


def _split(text: str) -> Iterator[list[_Letter]]:
    """The words of `split_words`: each character is part of a word, dropped, a separator, or a word by itself."""
    word: list[_Letter] = []
    for index, char in enumerate(text):
        letter, words = _Letter(char, index, index + 1), _words_with(char)
        if len(words) > 1 and word:
            yield word
            word = []
        if len(words) == 3:
            yield [letter]
        elif words == [f"a{char}b"]:
            word.append(letter)
    if word:
        yield word


def _apply(letters: list[_Letter], casing: Casing) -> list[_Letter]:
    """`Casing.apply`, letter by letter; the characters of accents that go belong to the letter before them."""
    if casing.lower_case:
        lower = iter("".join(letter.char for letter in letters).lower())
        # The length of a character's lower case does not depend on the characters around it.
        letters = [letter._replace(char=next(lower)) for letter in letters for _ in letter.char.lower()]
    if not casing.strip_accents:
        return letters
    parts = [letter._replace(char=part) for letter in letters for part in unicodedata.normalize("NFD", letter.char)]
    kept: list[_Letter] = []
    for letter in _in_canonical_order(parts):
        if unicodedata.category(letter.char) != "Mn":
            kept.append(letter)
        elif kept:
            kept[-1] = kept[-1]._replace(end=max(kept[-1].end, letter.end))
    return kept


def _in_canonical_order(letters: list[_Letter]) -> list[_Letter]:
    """Sorts each run of combining marks by their classes, as NFD does."""
    ordered: list[_Letter] = []
    marks: list[_Letter] = []
    for letter in letters:
        if unicodedata.combining(letter.char):
            marks.append(letter)
            continue
        ordered += sorted(marks, key=lambda mark: unicodedata.combining(mark.char))
        ordered.append(letter)
        marks = []
    return ordered + sorted(marks, key=lambda mark: unicodedata.combining(mark.char))
