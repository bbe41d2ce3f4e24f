"""Reads run folders for the report, also of interrupted runs with incomplete files."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.run.goodput import Goodput, measure_goodput

Event = dict[str, Any]
Point = tuple[int, float]  # update, value

LARGEST_COUNT = 1e15  # whole numbers up to here are exact as floats; nothing we count is larger


# Of an evaluation.
_NOT_SCORES = ("update", "time_unix", "global_step", "throughput_val")
# In config.json, what is no setting, or follows from one.
_NOT_SETTINGS = (
    "command counts dllog_path evaluation_data first_file input_files manifest_sha256 model_dir sources".split()
)


@dataclasses.dataclass
class Run:
    """One run folder: its configuration and the history of its present state.

    `train` and `evaluations` hold each update once, in order. Updates that were logged but lost, because the run was
    resumed from an earlier checkpoint, are left out.
    """

    folder: Path
    config: dict[str, Any]
    starts: list[Event] = dataclasses.field(default_factory=list)
    train: list[Event] = dataclasses.field(default_factory=list)
    evaluations: list[Event] = dataclasses.field(default_factory=list)
    warnings: list[Event] = dataclasses.field(default_factory=list)
    end: Event | None = None
    elapsed_secs: float = 0.0  # without pauses between a stop and the next start
    last_time_unix: float | None = None
    goodput: Goodput | None = None  # None where nothing has been trained
    label: str = ""  # set by `read_runs`, unique among the report's runs

    @property
    def is_classifying(self) -> bool:
        return self.setting("task_name") is not None

    @property
    def is_question_answering(self) -> bool:
        by_scores = any("f1" in event for event in self.evaluations)
        return not self.is_classifying and (self.setting("phase") == "squad" or by_scores)

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of the last evaluation."""
        event = self.evaluations[-1] if self.evaluations else {}
        names = [name for name in event if name not in _NOT_SCORES and not name.startswith("latency_")]
        return {name: y for name in names if (y := number(event[name])) is not None}

    @property
    def is_pretraining(self) -> bool:
        return not self.is_question_answering and self.setting("max_predictions_per_seq") is not None

    @property
    def origin(self) -> str:
        return "from the checkpoint" if self.setting("init_checkpoint") else "from random weights"

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting from config.json, or from the run's start events."""
        for source in (self.config.get("settings"), self.config.get("identity"), self.config, *reversed(self.starts)):
            if isinstance(source, Mapping) and source.get(name) is not None:
                return source[name]
        return default

    @property
    def last_update(self) -> int:
        events = [*self.train[-1:], *self.evaluations[-1:], *self.starts[-1:], self.end or {}]
        return max(whole(event.get("update")) for event in events)

    @property
    def restarts(self) -> list[int]:
        """Updates at which the run was resumed, if it has made further updates since."""
        return [x for start in self.starts[1:] if (x := whole(start.get("update"))) < self.last_update]

    def series(self, name: str) -> list[Point]:
        """(update, value) of a metric, NaN and infinities included. Training and evaluation share no metric names."""
        events = (event for event in self.train + self.evaluations if name in event)
        return [(whole(event.get("update")), y) for event in events if (y := number(event[name])) is not None]

    def last(self, name: str) -> float | None:
        """The last finite value of a metric."""
        return next((y for _, y in reversed(self.series(name)) if math.isfinite(y)), None)

    def median(self, name: str) -> float | None:
        """The median of a metric without its first report, which includes compilation."""
        rates = [y for _, y in self.series(name) if math.isfinite(y)]
        return statistics.median_high(rates[1:] or rates) if rates else None


def read_runs(folders: Iterable[str | Path]) -> list[Run]:
    """The runs of the folders that exist, with labels that tell them apart."""
    runs = [read_run(folder) for folder in folders if Path(folder).is_dir()]
    for run in runs:
        name = run.folder.resolve().name.replace("_", " ").capitalize().replace("Squad", "SQuAD")
        run.label = f"{name}, {run.origin}" if run.is_question_answering else name
    num_of_label = collections.Counter(run.label for run in runs)
    alike = [run for run in runs if num_of_label[run.label] > 1]
    above = os.path.commonpath([run.folder.resolve() for run in alike]) if alike else ""
    for run in alike:
        run.label += f" ({os.path.relpath(run.folder.resolve(), above)})"
    return runs


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Name -> values, in the order of the runs, of what config.json has otherwise in one of them; None: not there."""
    settings = [dict(_flatten(run.config)) for run in runs]
    names = dict.fromkeys(name for flat in settings for name in flat)
    values = {name: [flat.get(name) for flat in settings] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _flatten(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings in all sections, each under its own name."""
    for name, value in config.items():
        if isinstance(value, Mapping) and name not in _NOT_SETTINGS:
            yield from _flatten(value)
        elif name not in _NOT_SETTINGS and value is not None:
            yield name, value


def read_run(folder: str | Path) -> Run:
    """Reads a run folder; files may be missing and lines incomplete."""
    paths = (Path(folder) / "config.json", Path(folder) / "metrics.jsonl")
    config, metrics = (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in paths)
    run = Run(Path(folder), _json_object(config))
    histories: dict[Any, dict[int, Event]] = {"train": {}, "evaluation": {}}
    events = [_json_object(line) for line in metrics.splitlines()]  # empty where a kill cut a line short
    run.goodput = measure_goodput(events)
    for event in events:
        update, kind, time = whole(event.get("update")), event.get("event"), number(event.get("time_unix"))
        if kind in ("train", "evaluation"):
            histories[kind][update] = event
        elif kind == "warning":
            run.warnings.append(event)
        elif kind == "end":
            run.end = event
        elif kind == "start":
            run.starts.append(event)
            run.end = None
            for name, history in histories.items():
                histories[name] = {key: value for key, value in history.items() if key <= update}
        if time is not None and math.isfinite(time):
            run.elapsed_secs += time - run.last_time_unix if run.last_time_unix and kind != "start" else 0.0
            run.last_time_unix = time
    run.train, run.evaluations = ([history[key] for key in sorted(history)] for history in histories.values())
    return run


def number(value: Any) -> float | None:
    """A number, also from the texts "NaN" and "Infinity", which JSON files hold for them; else None."""
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(value: Any) -> int:
    """A count; 0 for anything else."""
    count = number(value)
    return int(count) if count is not None and abs(count) < LARGEST_COUNT else 0


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
