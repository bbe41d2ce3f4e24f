"""Text to words, steps 1 to 5 of the rules in `wordpiece`, and the characters that a word comes from."""

from __future__ import annotations

import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from typing import NamedTuple, Optional


def spans_of_words(text: str, casing: Casing) -> Iterator[tuple[str, list[int], list[int]]]:
    """The words of ``tokenize_words(text, casing)``, each with two lists: where in `text` the characters that each of
    its letters comes from start, and where they end (exclusive).

    Letters are counted character by character: which letters a character becomes may depend on its neighbours (a sigma
    at the end of a word), but not how many.
    """
    starts: list[int] = []
    ends: list[int] = []
    for index, char in enumerate(text):
        num_letters, is_lost_accent = _count_letters(char, casing)
        starts += [index] * num_letters
        ends += [index + 1] * num_letters
        if is_lost_accent and index in ends[-1:]:  # an accent belongs to the character before it
            ends[-1] = index + 1
    first = 0
    for word in tokenize_words(text, casing):
        end = first + len(word)
        yield word, starts[first:end], ends[first:end]
        first = end
    assert first == len(starts)


@functools.lru_cache(maxsize=1 << 16)
def _count_letters(char: str, casing: Casing) -> tuple[int, bool]:
    """How many letters of words a character becomes, and whether it is an accent that is removed."""
    num_letters = sum(map(len, tokenize_words(char, casing)))
    return num_letters, not num_letters and split_words(char) != []


_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_ALWAYS_DROPPED = "\0\ufffd"


class Casing(NamedTuple):
    """What is removed from text before its words are looked up in a vocabulary."""

    lower_case: bool
    strip_accents: bool  # removes category Mn after NFD: accents, but also vowel signs, and Hangul becomes its letters

    @classmethod
    def from_flags(cls, do_lower_case: bool, strip_accents: bool | None = None) -> Casing:
        """`strip_accents` None: the same as `do_lower_case`, as in Google's code."""
        return cls(do_lower_case, do_lower_case if strip_accents is None else strip_accents)

    def flags(self) -> dict[str, bool]:
        """The values by the names of the flags, as manifests, runs and exports record them."""
        return {"do_lower_case": self.lower_case, "strip_accents": self.strip_accents}

    def __str__(self) -> str:
        return ", ".join(f"{flag}={int(value)}" for flag, value in self.flags().items())

    def apply(self, text: str) -> str:
        """Step 4, for a word or a whole text."""
        if self.lower_case:
            text = text.lower()
        if not self.strip_accents or text.isascii():
            return text
        return "".join(char for char in unicodedata.normalize("NFD", text) if unicodedata.category(char) != "Mn")


class _Translation(dict[int, Optional[str]]):
    """A table for `str.translate`: a character's replacement, or None for nothing, is computed when it first occurs.

    It grows with the different characters that occur, to about a thousand entries in most texts.
    """

    def __init__(self, compute: Callable[[str], str | None]):
        super().__init__()
        self._compute = compute

    def __missing__(self, code_point: int) -> str | None:
        new = self[code_point] = self._compute(chr(code_point))
        return new


def _clean(char: str) -> str | None:
    """Steps 1 and 2."""
    if char in _ALWAYS_DROPPED or (unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"):
        return None
    return f" {char} " if is_ideograph(char) else char


def _set_punctuation_apart(char: str) -> str:
    """Step 5."""
    is_alone = char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")
    return f" {char} " if is_alone else char


_CLEANING, _PUNCTUATION_APART = _Translation(_clean), _Translation(_set_punctuation_apart)


def is_ideograph(char: str) -> bool:
    """Whether step 2 makes this character a separate word."""
    return bool(_IDEOGRAPH.match(char))


def split_words(text: str) -> list[str]:
    """Steps 1 to 3: cleaned text split at white space, each ideograph as a separate word."""
    # The table changes only unprintable characters, ideographs and U+FFFD.
    if not text.isprintable() or not text.isascii() and ("\ufffd" in text or _IDEOGRAPH.search(text)):
        text = text.translate(_CLEANING)
    return text.split()


def split_at_punctuation(word: str, casing: Casing) -> list[str]:
    """Steps 4 and 5, for one word from `split_words`."""
    word = casing.apply(word)
    if word.isalnum():
        return [word]
    return word.translate(_PUNCTUATION_APART).split()


def tokenize_words(text: str, casing: Casing) -> list[str]:
    """The words of `text`: steps 1 to 5."""
    return [part for word in split_words(text) for part in split_at_punctuation(word, casing)]
