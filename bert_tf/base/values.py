"""Parses typed numbers and switches more strictly than Python's own conversions."""

from __future__ import annotations

import math
import re

_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_switch(text: str) -> bool:
    """Raises ValueError for anything but 1, 0, true, false, yes and no, in any case."""
    if text.lower() not in _SWITCHES:
        raise ValueError("must be 1, 0, true, false, yes or no")
    return _SWITCHES[text.lower()]


def parse_whole(text: str) -> int:
    """Raises ValueError for what is no whole number, such as 1_0, which `int` takes for 10, and for over 18 digits."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("must be a whole number, of 18 digits at most")
    return int(text)


def parse_count(text: str) -> int:
    """Raises ValueError for what is no whole number, or a negative one."""
    if parse_whole(text) < 0:
        raise ValueError("must not be negative")
    return parse_whole(text)


def parse_number(text: str) -> float:
    """Raises ValueError for what is no decimal number, or one beyond a float's; inf and nan are none."""
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ValueError("must be a number")
    return float(text)
