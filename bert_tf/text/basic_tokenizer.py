"""Text to words: steps 1 to 5 of the rules that `wordpiece` lists."""

from __future__ import annotations

import string
import unicodedata
from typing import Union

CAPITAL_SIGMA = "\u03a3".encode()

_CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_ALWAYS_DROPPED = frozenset((0, 0xFFFD))


class _Cleaning(dict[int, Union[int, str, None]]):
    """Steps 1 and 2 for `str.translate`: characters are classified when they first occur."""

    def __missing__(self, code_point: int) -> int | str | None:
        char = chr(code_point)
        new: int | str | None = code_point
        if code_point in _ALWAYS_DROPPED or (unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"):
            new = None
        elif is_ideograph(char):
            new = f" {char} "
        self[code_point] = new
        return new


class _PunctuationApart(dict[int, Union[int, str]]):
    """Step 5 for `str.translate`, filled in the same way."""

    def __missing__(self, code_point: int) -> int | str:
        char = chr(code_point)
        is_alone = char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")
        new = self[code_point] = f" {char} " if is_alone else code_point
        return new


# Both tables grow with the characters that occur: about a thousand in most texts.
_CLEANING = _Cleaning()
_PUNCTUATION_APART = _PunctuationApart()


def is_ideograph(char: str) -> bool:
    """Whether step 2 makes this character a word of its own."""
    code_point = ord(char)
    return any(first <= code_point <= last for first, last in _CJK_BLOCKS)


def split_words(text: str) -> list[str]:
    """Steps 1 to 3: cleaned text split at white space, each ideograph a word of its own."""
    # Printable ASCII, the common case, holds nothing that the table changes.
    if not (text.isascii() and text.isprintable()):
        text = text.translate(_CLEANING)
    return text.split()


def _strip_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def to_lower_case(text: str) -> str:
    """Step 4, for a word or a whole text."""
    text = text.lower()
    return text if text.isascii() else _strip_accents(text)


def split_at_punctuation(word: str, do_lower_case: bool) -> list[str]:
    """Steps 4 and 5 on one word from `split_words`."""
    if do_lower_case:
        word = to_lower_case(word)
    if word.isalnum():
        return [word]
    return word.translate(_PUNCTUATION_APART).split()


class BasicTokenizer:
    """Text to words: steps 1 to 5 of the rules in `wordpiece`."""

    def __init__(self, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`; with `do_lower_case` lower-cased and without accents."""
        return [part for word in split_words(text) for part in split_at_punctuation(word, self.do_lower_case)]
