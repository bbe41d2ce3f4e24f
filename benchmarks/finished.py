"""What a long benchmark has finished, so that it can be interrupted at any moment and goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError

Line = dict[str, Any]


class Finished:
    """A file of JSON lines: the facts that hold for all, then a line for each finished row.

    A row whose line is deleted is run again. Several processes may add lines.

    Raises: UserError if the file was begun with other facts.
    """

    def __init__(self, file: Path, facts: Mapping[str, Any]):
        self._file, self.facts = file, facts
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            self._append({"facts": facts})
        facts_before = self._read()[0]["facts"]
        changed = [name for name in facts if facts_before.get(name) != facts[name]]
        if changed:
            raise UserError(f"{file} holds results with another {', '.join(changed)}; take another folder")

    @property
    def lines(self) -> list[Line]:
        return self._read()[1:]

    def find(self, row: Any) -> Line | None:
        """The line of a row, which is a list or dictionary as JSON has it."""
        return next((line for line in self.lines if line["row"] == row), None)

    def add(self, row: Any, outcome: Mapping[str, Any]) -> Line:
        line = {"row": row, **outcome}
        self._append(line)
        return line

    def _read(self) -> list[Line]:
        return [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]

    def _append(self, line: Line) -> None:
        with open(self._file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
