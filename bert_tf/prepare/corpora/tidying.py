"""Cleans a paragraph up from which pieces were removed: what stood around them is left."""

from __future__ import annotations

import re
from typing import NamedTuple

# For text in which white space is single spaces. Patterns that begin with a fixed character are several
# times faster than others, so the first ones tell whether the last is worth applying.
_COMMAS = ",;:，、；：،؛"
# "[...]" leaves words out, and "(-)-" begins the name of a substance: these are text.
_EMPTY = rf"(?!\.\.\.[)\]]|[–-]\)-)[ {_COMMAS}.–-]*[)\]）]"
_EMPTY_PARENTHESES_INSIDE = tuple(re.compile(opening + _EMPTY) for opening in (r"\(", r"\[", "（"))
_EMPTY_PARENTHESES = re.compile(rf" ?[(\[（]{_EMPTY}")


class _Parentheses(NamedTuple):
    """A kind of parentheses, and the commas that a removed piece leaves inside them."""

    opening: str
    closing: str
    leading_commas: re.Pattern[str]
    space_or_comma_before_closing: re.Pattern[str]
    trailing_commas: re.Pattern[str]

    @classmethod
    def make(cls, opening: str, closing: str) -> _Parentheses:
        first, last = map(re.escape, (opening, closing))
        leading = re.compile(rf"{first} ?(?:[{_COMMAS}] ?)+")
        before = re.compile(rf"{last}(?<=[{_COMMAS} ]{last})")
        return cls(opening, closing, leading, before, re.compile(rf"(?<![{_COMMAS} ])[{_COMMAS} ]+{last}"))

    def tidy(self, paragraph: str) -> str:
        paragraph = self.leading_commas.sub(self.opening, paragraph)
        if self.space_or_comma_before_closing.search(paragraph):
            paragraph = self.trailing_commas.sub(self.closing, paragraph)
        return paragraph.replace(f"{self.opening} ", self.opening)


_PARENTHESES, _WIDE_PARENTHESES = _Parentheses.make("(", ")"), _Parentheses.make("（", "）")
_REPEATED_COMMAS = re.compile(r",(?: ?,)+")
_SPACE_BEFORE_STOP = re.compile(r" ([,.;:!?)])(?=[ )\"'”]|$)")


def tidy(paragraph: str) -> str:
    """Cleans up after removed pieces: empty parentheses, repeated commas, stray spaces."""
    paragraph = " ".join(paragraph.split())
    if any(inside.search(paragraph) for inside in _EMPTY_PARENTHESES_INSIDE):
        paragraph = _EMPTY_PARENTHESES.sub("", paragraph)
    paragraph = _PARENTHESES.tidy(_REPEATED_COMMAS.sub(",", paragraph))
    if "（" in paragraph:
        paragraph = _WIDE_PARENTHESES.tidy(paragraph)
    return _SPACE_BEFORE_STOP.sub(r"\1", paragraph).strip()
