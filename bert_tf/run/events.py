"""Reads the events that telemetry writes to metrics.jsonl, one JSON object per line. Does not import TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]  # with at least `event`, `update` and `time_unix`

METRICS = "metrics.jsonl"
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # strict JSON has no such numbers, so they are written as text
_LATEST = 1e10  # seconds since 1970: the year 2286


def read_events(run_folder: str | Path) -> list[Event]:
    """All events of a run, in the order of writing; none if there is no such file. Raises OSError.

    A line that is not an event, for example one cut short by a kill, is left out.
    """
    path = Path(run_folder) / METRICS
    if not path.is_file():  # not written yet, or a device
        return []
    with path.open(encoding="utf-8", errors="replace") as file:
        return [event for event in map(_event, file) if event]


def is_number(value: Any) -> bool:
    """NaN and infinities are numbers, too."""
    return isinstance(value, (int, float))


def json_object(text: str) -> dict[str, Any]:
    """The JSON object in `text`; an empty one if there is none."""
    try:
        value = json.loads(text, parse_int=_whole)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _event(line: str) -> Event | None:
    event = json_object(line)
    is_event = type(event.get("update")) is int and is_number(event.get("time_unix"))
    if not (is_event and isinstance(event.get("event"), str) and 0 <= event["time_unix"] <= _LATEST):
        return None
    return {name: float(value) if value in _NOT_FINITE else value for name, value in event.items()}


def _whole(digits: str) -> int | float:
    """An int, or a float from 19 digits on: no count or time is that large, and some calculations fail on such ints."""
    return int(digits) if len(digits) < 19 else float(digits)
