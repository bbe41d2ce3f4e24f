"""What a long benchmark has finished, so that it can be interrupted at any moment and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import write_text

Line = dict[str, Any]


class Finished:
    """A file of JSON lines: what holds for all of them, then one for each `row`. Deleted lines are made again.

    Raises: UserError if the file was begun with other facts.
    """

    def __init__(self, file: Path, facts: Mapping[str, Any]):
        self._file, self.facts, self.lines = file, facts, list[Line]()
        if not file.exists():
            return
        first, *self.lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        changed = [name for name in facts if first.get("facts", {}).get(name) != facts[name]]
        if changed:
            raise UserError(f"{file} holds what was made with another {', '.join(changed)}; take another folder")

    def find(self, row: Any) -> Line | None:
        """The line of a row, which is a list or dictionary as JSON has it."""
        return next((line for line in self.lines if line["row"] == row), None)

    def add(self, row: Any, outcome: Mapping[str, Any]) -> Line:
        self.lines.append({"row": row, **outcome})
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._file, "".join(json.dumps(each) + "\n" for each in ({"facts": self.facts}, *self.lines)))
        return self.lines[-1]
