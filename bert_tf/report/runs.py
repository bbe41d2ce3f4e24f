"""Reads run folders for the report, including those of interrupted runs with incomplete files."""

from __future__ import annotations

import collections
import dataclasses
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.run.events import METRICS, Event, is_number, read_events
from bert_tf.run.run_folder import CONFIG, read_config

Point = tuple[int, float]  # update, value

# Prefixes of an evaluation's fields that are not scores.
_NOT_SCORES = ("update", "time_unix", "global_step", "throughput", "latency", "evaluation_secs")
# Fields of config.json that are not settings, or follow from settings.
_NOT_SETTINGS = (
    "command counts dllog_path evaluation_data first_file input_files manifest_sha256 model_dir planned sources".split()
)


@dataclasses.dataclass
class RunRecord:
    """One run folder: its configuration, and the events that led to its present state.

    Updates that were logged but lost, because the run was resumed from an earlier checkpoint, are left out.
    """

    folder: Path
    config: dict[str, Any]
    events: Mapping[str, list[Event]]  # by kind; no "end" while the run is under way
    last_time_unix: float | None
    wall_secs: float  # from the first event to the last; steps back of the clock count as no time
    label: str = ""  # set by `read_runs`, unique among the report's runs

    @property
    def task(self) -> str:
        """What is learned: "classifying", "answering" or "pretraining"; "" if unknown."""
        if (name := self.setting("task_name")) is not None:
            return "answering" if name == "squad" else "classifying"
        return "pretraining" if self.setting("max_predictions_per_seq") is not None else ""

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of the last evaluation."""
        return _scores(self.events["evaluation"][-1]) if self.events["evaluation"] else {}

    @property
    def main_score(self) -> str:
        """The score by which checkpoints are compared; "" if unknown."""
        return str(self.setting("main_score", "f1" if "f1" in self.scores else ""))

    @property
    def origin(self) -> str:
        return "from the checkpoint" if self.setting("init_checkpoint") else "from random weights"

    def setting(self, name: str, default: Any = None) -> Any:
        """A setting from config.json, or from the run's start events."""
        sections = (self.config.get("settings", {}), self.config.get("identity", {}), self.config)
        sources = (source for source in (*sections, *reversed(self.events["start"])) if isinstance(source, Mapping))
        return next((source[name] for source in sources if source.get(name) is not None), default)

    def count(self, name: str) -> int:
        """A setting that is a count; 0 if there is none."""
        value = self.setting(name)
        return value if isinstance(value, int) and is_number(value) else 0

    @property
    def last_update(self) -> int:
        kinds = ("start", "train", "evaluation", "end")
        return max((event["update"] for kind in kinds for event in self.events[kind][-1:]), default=0)

    @property
    def restarts(self) -> list[int]:
        """Updates at which the run was resumed, if it has made further updates since."""
        return [start["update"] for start in self.events["start"][1:] if start["update"] < self.last_update]

    def series(self, name: str) -> list[Point]:
        """(update, value) of a metric, including NaN and infinities. Training and evaluation share no metric names."""
        trained, scored = (
            [(event["update"], event[name]) for event in self.events[kind] if is_number(event.get(name))]
            for kind in ("train", "evaluation")
        )
        return trained + sorted(dict(scored).items())  # the best weights are scored again at the end

    def last_value(self, name: str) -> float | None:
        """The last finite value of a metric."""
        return next((y for _, y in reversed(self.series(name)) if math.isfinite(y)), None)

    def median(self, name: str) -> float | None:
        """The median of a metric, without its first report, which includes compilation."""
        rates = [y for _, y in self.series(name) if math.isfinite(y)]
        return statistics.median_high(rates[1:] or rates) if rates else None


def _scores(evaluation: Event) -> dict[str, float]:
    return {name: y for name, y in evaluation.items() if is_number(y) and not name.startswith(_NOT_SCORES)}


def check_run_folder(folder: Path) -> None:
    """Raises `UserError` if there is no run in the folder."""
    if not read_events(folder) or read_config(folder) is None:
        subfolders = sorted(str(file.parent) for file in folder.glob(f"*/{METRICS}"))
        hint = f", here {' or '.join(subfolders)}" if subfolders else ""
        fault = f"it has no {METRICS} with events, or no {CONFIG}"
        raise UserError(f"{folder}: not a run folder: {fault}; name the --model_dir of a run{hint}")


def read_runs(folders: Iterable[str | Path]) -> list[RunRecord]:
    """The runs of the folders that exist, with labels that tell them apart."""
    runs = [read_run(folder) for folder in folders if Path(folder).is_dir()]
    for run in runs:
        name = run.folder.resolve().name.replace("_", " ").capitalize().replace("Squad", "SQuAD")
        run.label = f"{name}, {run.origin}" if run.task == "answering" else name
    label_counts = collections.Counter(run.label for run in runs)
    ambiguous = [run for run in runs if label_counts[run.label] > 1]
    common_folder = os.path.commonpath([run.folder.resolve() for run in ambiguous]) if ambiguous else ""
    for run in ambiguous:
        run.label += f" ({os.path.relpath(run.folder.resolve(), common_folder)})"
    return runs


def differing_settings(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The settings in config.json that differ between runs: name -> each run's value, None if it has none."""
    settings = [dict(_flatten(run.config)) for run in runs]
    names = dict.fromkeys(name for flat in settings for name in flat)
    values = {name: [flat.get(name) for flat in settings] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _flatten(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings in all sections, by name, without the names of the sections."""
    for name, value in config.items():
        if name not in _NOT_SETTINGS and value is not None:
            yield from _flatten(value) if isinstance(value, Mapping) else [(name, value)]


def read_run(folder: str | Path) -> RunRecord:
    """Reads a run folder; files may be missing and lines incomplete."""
    events, by_kind = read_events(folder), collections.defaultdict[str, list[Event]](list)
    later: list[Event] = []  # the last evaluation by a program that was started later
    for event in events:
        if event["event"] == "evaluation" and by_kind["end"]:
            later = [event] if _scores(event) else later
            continue
        if event["event"] == "start":
            by_kind["end"] = []
            for kind in ("train", "evaluation"):  # drops updates that the start did not resume
                by_kind[kind] = [past for past in by_kind[kind] if past["update"] <= event["update"]]
        by_kind[event["event"]].append(event)
    # It may be of other data, so it counts only for a run that scored nothing by itself.
    by_kind["evaluation"] = by_kind["evaluation"] or later
    times = [event["time_unix"] for event in events]
    wall_secs = sum(max(0.0, after - before) for before, after in zip(times, times[1:]))
    return RunRecord(Path(folder), read_config(Path(folder)) or {}, by_kind, times[-1] if times else None, wall_secs)
