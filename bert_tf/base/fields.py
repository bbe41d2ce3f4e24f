"""Records of fields: objects of JSON, which of their fields are read, and which hold text that nothing reads."""

from __future__ import annotations

import collections
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bert_tf.base.errors import UserError, contrast

_UNSEEN = re.compile(r"[\0-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, halves of UTF-16 pairs


def read_object(text: str, where: str, remedy: str, *, is_finite: bool = False) -> dict[str, Any]:
    """The object of JSON in a text.

    Args:
      is_finite: whether it must be strict JSON, which has no NaN and Infinity. Python writes them where a table has no
        value, so lines of data may have them.

    Raises: UserError, which begins with `where` and ends with `remedy`, where it is none, or an object in it has a
      field twice: programs differ in which of the two counts.
    """
    parse = _finite if is_finite else float
    try:
        content = json.loads(text, object_pairs_hook=_each_once, parse_float=parse, parse_constant=parse)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid JSON ({error}); {remedy}") from None
    if not isinstance(content, dict):
        raise UserError(f"{where} holds no JSON object, but {str(content)[:40]!r}; {remedy}")
    return content


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name = repeated(name for name, _ in pairs)
        raise UserError(f"the field {name!r} occurs twice in an object, and must have one value; take one away")
    return fields


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number of JSON")
    return value


def fault_of_label(label: str) -> str:
    """What is wrong with a text as a label, wherever it comes from; "" if nothing is."""
    is_seen = label.strip() and not _UNSEEN.search(label)
    return "" if is_seen else "a label must not be empty, nor hold control characters or half of a UTF-16 pair"


def repeated(names: Iterable[str]) -> str | None:
    """The first of the names that occur twice; None if there is none."""
    return next((name for name, count in collections.Counter(names).items() if count > 1), None)


class Fields(dict[str, Any]):
    """The fields of a record by name.

    Attributes:
      read: the names of those that `one_of` was asked for and has found.
    """

    def __init__(self, content: Mapping[str, Any]):
        super().__init__(content)
        self.read: set[str] = set()

    def one_of(self, names: Sequence[str], remedy: str = "keep one of them") -> Any:
        """The value of that one of these fields that is there and not null; None if there is none.

        An empty text counts only where all others are missing.

        Raises: ValueError, which ends with `remedy`, where two of them are there and differ.
        """
        given = [name for name in names if self.get(name) is not None]
        given = [name for name in given if self[name] != ""] or given
        if other := next((name for name in given if str(self[name]) != str(self[given[0]])), None):
            first, second = contrast(self[given[0]], self[other])
            fault = f"{given[0]!r} is {first} and {other!r} is {second}"
            raise ValueError(f"{fault}, but only one can be read; {remedy}")
        self.read.update(given)
        return self[given[0]] if given else None


class UnreadFields:
    """Counts the fields of a file's records that hold text and are not read, so that none is passed over in silence."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()

    def add(self, fields: Mapping[str, Any], read: Collection[str]) -> None:
        """Counts those of a record whose names are not among `read`."""
        self._counts.update(name for name, value in fields.items() if name not in read and _holds_text(value))

    def describe(self) -> str:
        """Names them with the number of records that have each; "" if there are none."""
        named = ", ".join(f"{name!r} ({count:,})" for name, count in self._counts.items())
        return f"fields with text that are not read: {named}" if named else ""


def _holds_text(value: Any) -> bool:
    """Whether there is a letter in it, or in anything that it holds."""
    if isinstance(value, str):
        return any(map(str.isalpha, value))
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_holds_text, inside))
