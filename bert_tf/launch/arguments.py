"""Positional arguments: their names, defaults, types and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.values import parse_number, parse_whole
from bert_tf.config import AUTO

Values = dict[str, Any]


class Argument(NamedTuple):
    """One positional argument: its default as it would be typed, and how text becomes a value."""

    name: str
    default: str
    parse: Callable[[str], Any]


# Far more than any recipe uses; a larger number is mistyped.
_LARGEST = 100_000_000


def whole(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = parse_whole(text)
        if not minimum <= value <= _LARGEST:
            raise ValueError
        return value

    parse.__doc__ = f"a whole number of at least {minimum}, and at most {_LARGEST:,}"
    return parse


def size_or_auto(text: str) -> int | str:
    """a whole number of at least 1, or auto (the accumulation argument then counts a rank's sequences)"""
    return AUTO if text == AUTO else whole(1)(text)


def positive(most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = parse_number(text)
        if not 0 < value <= most:
            raise ValueError
        return value

    parse.__doc__ = f"a number above 0, and at most {most:g}"
    return parse


def share(text: str) -> float:
    """a number of at least 0, and below 1"""
    value = parse_number(text)
    if not 0 <= value < 1:
        raise ValueError
    return value


def one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError
        return text

    parse.__doc__ = "one of " + ", ".join(choices)
    parse.words = frozenset(choices)  # type: ignore[attr-defined]
    return parse


def text(value: str) -> str:
    """not empty"""
    if not value:
        raise ValueError
    return value


def parse_arguments(arguments: Sequence[Argument], typed: Sequence[str]) -> Values:
    """Values by name, defaults for those at the end that were not typed.

    Raises:
      UserError: too many, or one that has the wrong type or is out of range.
    """
    if len(typed) > len(arguments):
        raise UserError(
            f"{len(typed)} arguments, but there are {len(arguments)}: "
            f"{' '.join(argument.name for argument in arguments)}; the surplus begins with "
            f"{typed[len(arguments)]!r}"
        )
    values: Values = {}
    for position, argument in enumerate(arguments):
        given = typed[position] if position < len(typed) else argument.default
        try:
            values[argument.name] = argument.parse(given)
        except ValueError:
            raise UserError(
                f"{argument.name} (position {position + 1}) is {given!r}: must be {argument.parse.__doc__}"
                f"{_misplaced(arguments, typed)}"
            ) from None
    return values


def _misplaced(arguments: Sequence[Argument], typed: Sequence[str]) -> str:
    """A hint at the first word (fp16, true, large) that stands at another argument's place, or nothing.

    NVIDIA's scripts for other frameworks have the same arguments in other orders.
    """
    places = {
        word: place
        for place, argument in enumerate(arguments, 1)
        for word in getattr(argument.parse, "words", ())
        if word[0].isalpha()  # a number such as SQuAD's 1.1 may be anything
    }
    for position, given in enumerate(typed, 1):
        place = places.get(given, position)
        if place != position:
            surplus = position - place
            values = f"{abs(surplus)} value(s) {'too many' if surplus > 0 else 'missing'} before it"
            order = " ".join(argument.name for argument in arguments)
            name = arguments[place - 1].name
            return f"; {given!r} is a value of {name} (position {place}), and there are {values}. The order: {order}"
    return ""


def describe_arguments(arguments: Sequence[Argument], typed: Sequence[str]) -> list[str]:
    """A line for each argument with the text that was typed, or its default."""
    shown = [*typed, *(f"{argument.default} (default)" for argument in arguments[len(typed) :])]
    return [f"{argument.name} = {text}" for argument, text in zip(arguments, shown)]
