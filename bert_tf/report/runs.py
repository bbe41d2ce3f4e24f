"""Reads run folders for the report: whatever is there, however a run was cut short."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Event = dict[str, Any]

LARGEST_COUNT = 1e15  # whole numbers up to here are exact as floats; nothing we count is larger


@dataclasses.dataclass
class Run:
    """One run folder: its configuration and the history that led to its present state.

    `train` and `evaluations` are ordered by update and hold each update once, the last time it was
    reached. What was logged beyond the checkpoint from which a run was resumed is gone from them,
    because the run itself forgot it.
    """

    folder: Path
    config: dict[str, Any]
    starts: list[Event]
    train: list[Event]
    evaluations: list[Event]
    warnings: list[Event]
    end: Event | None
    elapsed_secs: float
    last_time_unix: float | None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def label(self) -> str:
        return self.name.replace("_", " ").capitalize().replace("Squad", "SQuAD")

    @property
    def is_pretraining(self) -> bool:
        """Whether it trained the masked-language model, as told by what it measured."""
        pretraining = ("mlm_loss", "masked_lm_loss", "masked_lm_accuracy")
        if any(name in event for event in self.train + self.evaluations for name in pretraining):
            return True
        return not self.is_question_answering and self.setting("max_predictions_per_seq") is not None

    @property
    def is_question_answering(self) -> bool:
        task = str(self.setting("task", self.setting("phase", "")))
        return task == "squad" or any("f1" in event for event in self.evaluations)

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting from the configuration, or from what the run said when it started."""
        sections = (self.config.get("settings"), self.config.get("identity"), self.config)
        for source in (*sections, *reversed(self.starts)):
            if isinstance(source, Mapping) and source.get(name) is not None:
                return source[name]
        return default

    def section(self, name: str) -> dict[str, Any]:
        value = self.config.get(name)
        return dict(value) if isinstance(value, Mapping) else {}

    @property
    def data_counts(self) -> dict[str, Any]:
        counts = self.section("data").get("counts")
        return dict(counts) if isinstance(counts, Mapping) else {}

    @property
    def total_updates(self) -> int:
        """Where the run ends, or where it has got to if nobody wrote that down."""
        planned = self.setting("total_updates", self.setting("num_train_steps"))
        return whole(planned) or self.last_update

    @property
    def last_update(self) -> int:
        events = [*self.train[-1:], *self.evaluations[-1:], *self.starts[-1:]]
        if self.end:
            events.append(self.end)
        return max((whole(event.get("update")) for event in events), default=0)

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.end.get("reason") == "done"

    @property
    def restarts(self) -> list[int]:
        """Updates at which the run was taken up again and got further."""
        updates = [whole(start.get("update")) for start in self.starts[1:]]
        return [update for update in updates if update < self.last_update]

    def series(self, name: str) -> list[tuple[float, float]]:
        """(update, value) of a training metric; NaN and infinities are kept, absent ones not."""
        return _series(self.train, name)

    def held_out(self, name: str) -> list[tuple[float, float]]:
        """(update, value) of an evaluation metric."""
        return _series(self.evaluations, name)

    def last(self, name: str) -> float | None:
        """The last finite value of a training metric."""
        return last_finite(self.series(name))

    def last_held_out(self, name: str) -> float | None:
        return last_finite(self.held_out(name))


def read_run(folder: str | Path) -> Run:
    """Reads what a run folder holds; nothing in it has to exist, and no line has to be whole."""
    folder = Path(folder)
    events = _read_events(folder / "metrics.jsonl")
    starts: list[Event] = []
    train: dict[int, Event] = {}
    evaluations: dict[int, Event] = {}
    warnings: list[Event] = []
    end: Event | None = None
    for event in events:
        update = whole(event.get("update"))
        kind = event.get("event")
        if kind == "start":
            starts.append(event)
            end = None
            train = {key: value for key, value in train.items() if key <= update}
            evaluations = {key: value for key, value in evaluations.items() if key <= update}
        elif kind == "train":
            train[update] = event
        elif kind == "evaluation":
            evaluations[update] = event
        elif kind == "warning":
            warnings.append(event)
        elif kind == "end":
            end = event
    times = [time for event in events if (time := number(event.get("time_unix"))) is not None]
    return Run(
        folder=folder,
        config=_read_object(folder / "config.json"),
        starts=starts,
        train=[train[key] for key in sorted(train)],
        evaluations=[evaluations[key] for key in sorted(evaluations)],
        warnings=warnings,
        end=end,
        elapsed_secs=_elapsed_secs(events),
        last_time_unix=times[-1] if times else None,
    )


def number(value: Any) -> float | None:
    """A number, also from the texts "NaN" and "Infinity" that stand for them in JSON."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def whole(value: Any) -> int:
    """A count; 0 for what is none."""
    count = number(value)
    return int(count) if count is not None and abs(count) < LARGEST_COUNT else 0


def last_finite(points: list[tuple[float, float]]) -> float | None:
    return next((y for _, y in reversed(points) if math.isfinite(y)), None)


def num_parameters(config: Mapping[str, Any]) -> int | None:
    """Weights of the encoder with pooler, by Google's field names; None where one is missing.

    109,482,240 for BERT-Base and 335,141,888 for BERT-Large with 30,522 pieces.
    """
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    width, inner, num_layers, vocab_size = (whole(config.get(name)) for name in names)
    if min(width, inner, num_layers, vocab_size) < 1:
        return None
    num_positions = whole(config.get("max_position_embeddings", 512))
    rows = vocab_size + num_positions + whole(config.get("type_vocab_size", 2))
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
    return rows * width + 2 * width + num_layers * layer + width * width + width


def _series(events: list[Event], name: str) -> list[tuple[float, float]]:
    points = ((number(event.get("update")), number(event.get(name))) for event in events)
    return [(x, y) for x, y in points if x is not None and math.isfinite(x) and y is not None]


def _elapsed_secs(events: list[Event]) -> float:
    """Time in which the run was running: the pauses between its starts do not count."""
    total = latest = 0.0
    started: float | None = None
    for event in events:
        time = number(event.get("time_unix"))
        if time is None:
            continue
        if event.get("event") == "start" or started is None:
            total += latest - started if started is not None else 0.0
            started = time
        latest = time
    return total + (latest - started if started is not None else 0.0)


def _read_events(path: Path) -> list[Event]:
    """Lines that are not whole JSON objects, as a kill leaves them, are left out."""
    events = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}
