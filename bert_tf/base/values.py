"""Parses numbers and switches that users type more strictly than Python's own conversions."""

from __future__ import annotations

import math
import re

_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_switch(text: str) -> bool:
    """Parses a switch. Raises ValueError for anything but 1, 0, true, false, yes and no, in any case."""
    if text.lower() not in _SWITCHES:
        raise ValueError("must be 1, 0, true, false, yes or no")
    return _SWITCHES[text.lower()]


def parse_whole(text: str) -> int:
    """Parses a whole number of up to 18 digits. Raises ValueError for others, such as 1_0, which `int` takes for 10."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("must be a whole number, of 18 digits at most")
    return int(text)


def parse_count(text: str) -> int:
    """Parses a whole number that is not negative. Raises ValueError for others."""
    if parse_whole(text) < 0:
        raise ValueError("must not be negative")
    return parse_whole(text)


def parse_number(text: str) -> float:
    """Parses a decimal number. Raises ValueError for others, for inf and nan, and for numbers too large for a float."""
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ValueError("must be a number")
    return float(text)
