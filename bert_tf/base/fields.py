"""Records as JSON objects: parsing them, and noting which of their fields are read, and which with text are not."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bert_tf.base.errors import UserError, contrast

# Control characters, halves of UTF-16 pairs, and characters that cannot be seen: soft hyphen, zero-width space, marks
# of direction and byte order. The joiners U+200C and U+200D are not among them, which change how letters look.
_INVISIBLE = re.compile(r"[\0-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
_MAX_DEPTH = 100
KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
KIND_NAMES |= {list: "a list", dict: "an object"}


def read_object(text: str, where: str, remedy: str, *, is_strict: bool = False) -> dict[str, Any]:
    """Parses a text that is a JSON object.

    Args:
      is_strict: refuses NaN and Infinity, which are not JSON. Python writes them where a table has no value, so lines
        of data may have them.

    Raises: UserError, which begins with `where`: the text is no JSON object, and the error ends with `remedy`; or an
      object in it has a field twice, and programs differ in which of the two counts.
    """
    parse = _finite if is_strict else float
    try:
        content = json.loads(text, object_pairs_hook=_unique_fields, parse_float=parse, parse_constant=parse)
        if isinstance(content, dict) and _is_deep(content):  # what reads it may call itself for each level
            raise ValueError(f"its lists and objects lie more than {_MAX_DEPTH} deep in each other")
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise UserError(f"{where} holds no JSON object, but {str(content)[:40]!r}; {remedy}")
    return content


def _is_deep(content: Any) -> bool:
    """Whether lists and objects lie in each other more than `_MAX_DEPTH` deep."""
    level = [content]
    for _ in range(_MAX_DEPTH):
        items = (item.values() if isinstance(item, dict) else item for item in level)
        level = [part for parts in items for part in parts if isinstance(part, (dict, list))]
    return bool(level)


def checked_fields(content: Any, kinds: Mapping[str, type]) -> dict[str, Any]:
    """The fields of these names and types, of an object that a program has written; a whole number is a float, too.

    Raises: ValueError if one is missing or of another type.
    """
    for name, kind in kinds.items():
        value = content.get(name) if isinstance(content, dict) else None
        if type(value) not in ((float, int) if kind is float else (kind,)):
            raise ValueError(f"names no {name}, or not as {KIND_NAMES[kind]}")
    return {name: content[name] for name in kinds}


def _unique_fields(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = first_repeated(name for name, _ in pairs)
        raise UserError(f"the field {name!r} occurs twice in an object, and must have one value; take one away")
    return fields


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a JSON number")
    return value


def fault_of_label(label: str) -> str:
    """What is wrong with a text as a label; "" if nothing is."""
    if not label.strip():
        return "a label must not be empty"
    if character := _INVISIBLE.search(label):
        return (
            f"U+{ord(character[0]):04X} in a label is a control character, half of a UTF-16 pair, or cannot be seen; "
            "take it out"
        )
    return ""


def first_repeated(names: Iterable[str]) -> str | None:
    """The first of the names that occur twice; None if there is none."""
    return next((name for name, count in collections.Counter(names).items() if count > 1), None)


class Fields(dict[str, Any]):
    """The fields of a record by name.

    Attributes:
      read_names: the names of the fields that `read_one_of` has read.
    """

    def __init__(self, content: Mapping[str, Any]):
        super().__init__(content)
        self.read_names: set[str] = set()

    def read_one_of(self, names: Sequence[str], remedy: str = "keep one of them") -> Any:
        """The value of whichever of these fields is present and not null; None if none is.

        An empty text counts only if there is no other value.

        Raises: ValueError, which ends with `remedy`, if two of the fields are present and differ.
        """
        present = [name for name in names if self.get(name) is not None]
        present = [name for name in present if self[name] != ""] or present
        if other := next((name for name in present if str(self[name]) != str(self[present[0]])), None):
            first, second = contrast(self[present[0]], self[other])
            raise ValueError(f"{present[0]!r} is {first} and {other!r} is {second}, but only one can be read; {remedy}")
        self.read_names.update(present)
        return self[present[0]] if present else None


class UnreadFields:
    """Counts the fields of a file's records that hold text and are not read, so that none is passed over in silence."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, fields: Mapping[str, Any], read: Collection[str]) -> None:
        """Counts the `fields` of a record that hold text and are not among `read`."""
        self._counts.update(name for name, value in fields.items() if name not in read and _holds_text(value))

    def describe(self) -> str:
        """Names the unread fields with the number of records that have each; "" if there are none."""
        names = ", ".join(f"{name!r} ({count:,})" for name, count in self._counts.items())
        return f"fields with text that are not read: {names}" if names else ""


def _holds_text(value: Any) -> bool:
    """Whether a JSON value is a text with a letter, or contains one."""
    if isinstance(value, str):
        return any(map(str.isalpha, value))
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds_text, items))
