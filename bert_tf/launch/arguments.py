"""Positional arguments: their names, defaults, types and ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.values import parse_number, parse_whole
from bert_tf.config import AUTO

Values = dict[str, Any]


class Kind(NamedTuple):
    """How the text of an argument becomes a value."""

    rule: str  # what must be typed
    convert: Callable[[str], Any]  # raises ValueError for a text that is not such a value
    is_valid: Callable[[Any], bool]
    words: Sequence[str] = ()  # the only allowed texts; empty: texts are not restricted

    def parse(self, text: str) -> Any:
        """The value of a text. Raises ValueError if the text does not follow the rule."""
        value = self.convert(text)
        if not self.is_valid(value):
            raise ValueError
        return value


class Argument(NamedTuple):
    """One positional argument, with its default as it would be typed."""

    name: str
    default: str
    kind: Kind


# Far more than any recipe uses; a larger number is a typing error.
_LARGEST = 100_000_000
TEXT = Kind("not empty", str, bool)
SHARE = Kind("a number of at least 0, and below 1", parse_number, lambda value: 0 <= value < 1)
SIZE_OR_AUTO = Kind(
    "a whole number of at least 1, or auto (the accumulation argument then counts a rank's sequences)",
    lambda text: AUTO if text == AUTO else parse_whole(text),
    lambda value: value == AUTO or 1 <= value <= _LARGEST,
)


def whole(minimum: int) -> Kind:
    rule = f"a whole number of at least {minimum}, and at most {_LARGEST:,}"
    return Kind(rule, parse_whole, lambda value: minimum <= value <= _LARGEST)


def positive(most: float) -> Kind:
    return Kind(f"a number above 0, and at most {most:g}", parse_number, lambda value: 0 < value <= most)


def one_of(*choices: str) -> Kind:
    return Kind(f"one of {', '.join(choices)}", str, choices.__contains__, choices)


def parse_arguments(arguments: Sequence[Argument], typed: Sequence[str]) -> Values:
    """Values by name, with defaults for arguments at the end that were not typed.

    Raises:
      UserError: there are too many, or one has the wrong type or is out of range.
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
            values[argument.name] = argument.kind.parse(given)
        except ValueError:
            raise UserError(
                f"{argument.name} (position {position + 1}) is {given!r}: must be {argument.kind.rule}"
                f"{_misplaced(arguments, typed)}"
            ) from None
    return values


def _misplaced(arguments: Sequence[Argument], typed: Sequence[str]) -> str:
    """A hint about the first word (fp16, true, large) in another argument's position; empty if there is none.

    NVIDIA's scripts for other frameworks have the same arguments in other orders.
    """
    places = {
        word: place
        for place, argument in enumerate(arguments, 1)
        for word in argument.kind.words
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
    """A line for each argument, with the text that was typed or the default."""
    shown = [*typed, *(f"{argument.default} (default)" for argument in arguments[len(typed) :])]
    return [f"{argument.name} = {text}" for argument, text in zip(arguments, shown)]
