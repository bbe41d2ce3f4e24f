"""The fields of a file's records: which of them are read, and which hold text that nothing reads."""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from typing import Any


class Fields(dict[str, Any]):
    """The fields of a record by name.

    Attributes:
      read: the names of those that `first` was asked for and has found.
    """

    def __init__(self, content: Mapping[str, Any]):
        super().__init__(content)
        self.read: set[str] = set()

    def first(self, names: Sequence[str]) -> Any:
        """The value of the first of these fields that is there and not null; None if there is none."""
        name = next((name for name in names if self.get(name) is not None), None)
        self.read |= {name} if name else set()
        return self[name] if name else None


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
