"""Cleans a paragraph up from which pieces were removed: what stood around them is left."""

from __future__ import annotations

import re

# For text in which white space is single spaces. Patterns that begin with a fixed character are several
# times faster than others, so the first ones tell whether the last is worth applying.
_COMMAS = ",;:，、；：،؛"
# "[...]" leaves words out, and "(-)-" begins the name of a substance: these are text.
_EMPTY = rf"(?!\.\.\.[)\]]|[–-]\)-)[ {_COMMAS}.–-]*[)\]）]"
_EMPTY_PARENTHESES_INSIDE = tuple(re.compile(opening + _EMPTY) for opening in (r"\(", r"\[", "（"))
_EMPTY_PARENTHESES = re.compile(rf" ?[(\[（]{_EMPTY}")
# By the opening bracket: the commas that a removed piece has left behind it, and whether and where some are left
# before the closing one.
_COMMAS_INSIDE = {
    opening: (
        re.compile(rf"{re.escape(opening)} ?(?:[{_COMMAS}] ?)+"),
        re.compile(rf"{re.escape(closing)}(?<=[{_COMMAS} ]{re.escape(closing)})"),
        re.compile(rf"(?<![{_COMMAS} ])[{_COMMAS} ]+(?={re.escape(closing)})"),
    )
    for opening, closing in ("()", "（）")
}
_REPEATED_COMMAS = re.compile(r",(?: ?,)+")
_SPACE_BEFORE_STOP = re.compile(r" ([,.;:!?)])(?=[ )\"'”]|$)")


def tidy(paragraph: str) -> str:
    """Cleans up after removed pieces: empty parentheses, repeated commas, stray spaces."""
    paragraph = " ".join(paragraph.split())
    if any(inside.search(paragraph) for inside in _EMPTY_PARENTHESES_INSIDE):
        paragraph = _EMPTY_PARENTHESES.sub("", paragraph)
    paragraph = _REPEATED_COMMAS.sub(",", paragraph)
    for opening in "(（" if "（" in paragraph else "(":
        leading, comma_before_closing, trailing = _COMMAS_INSIDE[opening]
        paragraph = leading.sub(opening, paragraph)
        if comma_before_closing.search(paragraph):
            paragraph = trailing.sub("", paragraph)
        paragraph = paragraph.replace(f"{opening} ", opening)
    return _SPACE_BEFORE_STOP.sub(r"\1", paragraph).strip()
