"""The events of a run in metrics.jsonl, one JSON object per line. Does not import TensorFlow."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from bert_tf.base.fields import checked_fields
from bert_tf.base.files import naming_unreadable

Event = dict[str, Any]  # with at least `event`, `update` and `time_unix`

METRICS = "metrics.jsonl"
# The reasons in the "end" event of a finished run: it has reached its last update, or its score got no better.
DONE, CONVERGED = "done", "early_stopping"
# `last_event` looks for the newest line in this many bytes at the end of the file.
_TAIL_BYTES = 1 << 20
_END_OF_TIME = 1 << 36  # a time after the year 4000, in seconds since 1970, is none
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def strict(value: Any) -> Any:
    """The value for strict JSON: non-finite numbers, also in nested dicts, become "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, dict):
        return {name: strict(item) for name, item in value.items()}
    return json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value


def append_line(path: Path, line: str) -> None:
    """Appends a line; begins a new one if a kill or a full disk has cut off the line before. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:  # closed after each line, so that a full disk is an error of this line
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                line = "\n" + line
        file.write(f"{line}\n".encode())


def read_events(run_folder: str | Path) -> list[Event]:
    """All events of a run, in the order of writing; empty if there is no file. Raises UserError if it cannot be read.

    A line that is not an event, for example one cut short by a kill, is left out.
    """
    path = Path(run_folder) / METRICS
    if not path.is_file():  # not written yet, or a device
        return []
    with naming_unreadable(path), path.open(encoding="utf-8", errors="replace") as file:
        return [event for event in map(_event, file) if event]


def last_event(run_folder: str | Path) -> Event | None:
    """The newest event of a run, without reading the whole file; None if there is none. Raises as `read_events`."""
    path = Path(run_folder) / METRICS
    if not path.is_file():
        return None
    with naming_unreadable(path), path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
        lines = file.read().decode(errors="replace").splitlines()
    return next(filter(None, map(_event, reversed(lines))), None)


def is_number(value: Any) -> bool:
    """Whether it is a number, NaN and infinities included; an integer too large to be one of ours is none."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 64)


def _event(line: str) -> Event | None:
    try:
        event = json.loads(line)
        numbers = checked_fields(event, {"event": str, "update": int, "time_unix": float})
    except (ValueError, RecursionError):
        return None
    if not (is_number(numbers["update"]) and abs(numbers["time_unix"]) < _END_OF_TIME):
        return None
    return {name: float(value) if value in _NOT_FINITE else value for name, value in event.items()}
