"""The share of a run's time spent on updates that count, from the events in metrics.jsonl. No TensorFlow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from bert_tf.run.events import Event, is_number

# Events after the last of these (evaluation and predictions) are not part of the training.
_OF_TRAINING = ("train", "checkpoint")


class Goodput(NamedTuple):
    """How a training's time was spent, in seconds, from its first start to its last report or checkpoint."""

    wall_secs: float
    useful_secs: float  # updates that are part of the result, without compilation
    repeated_secs: float  # updates that were logged but had to be repeated, because the run resumed before them
    saving_secs: float  # while updates waited for a checkpoint
    pause_secs: float  # between the last event of one start and the first of the next
    num_restarts: int

    @property
    def running_secs(self) -> float:
        return self.wall_secs - self.pause_secs

    @property
    def useful_share(self) -> float:
        return min(self.useful_secs / self.wall_secs, 1.0)

    def describe(self) -> str:
        """The useful share, and what took the rest, as text."""
        parts = {
            "updates lost and repeated": self.repeated_secs,
            "waiting for checkpoints": self.saving_secs,
            "between starts": self.pause_secs,
        }
        rest = self.wall_secs - self.useful_secs - sum(parts.values())
        parts["starting, compiling and the rest"] = max(rest, 0.0)
        shares = [f"{name} {secs / self.wall_secs:.1%}" for name, secs in parts.items() if secs]
        starts = f"{self.num_restarts + 1} start{'s' if self.num_restarts else ''}"
        return f"{self.useful_share:.1%} of {write_time(self.wall_secs)} in {starts}; {', '.join(shares)}"


def write_time(secs: float) -> str:
    return f"{secs / 3600:,.1f} h" if secs >= 3600 else f"{secs / 60:.1f} min"


class _Report(NamedTuple):
    num_updates: int  # since the previous report
    update_secs: float
    is_first: bool  # the first report of a start, which includes compilation

    def secs(self, usual_secs: float) -> float:
        """Time of the updates without compilation: an update of a first report counts at most `usual_secs`."""
        return self.num_updates * (min(self.update_secs, usual_secs) if self.is_first else self.update_secs)


def measure_goodput(events: Sequence[Event]) -> Goodput | None:
    """The goodput of a run, from its events; None if nothing has been trained.

    Times that are missing or not numbers are ignored. The time between a killed start's last event and the next start
    counts as a pause.
    """
    timed = list(events)
    while timed and timed[-1]["event"] not in _OF_TRAINING:
        timed.pop()
    reports: dict[int, _Report] = {}  # by update, ascending
    repeated: list[_Report] = []
    saving = pauses = 0.0
    num_starts, is_first = 0, True
    for before, event in zip([{}, *timed], timed):
        kind, update = event["event"], event["update"]
        if kind == "start":
            num_starts, is_first = num_starts + 1, True
            if before:
                pauses += max(event["time_unix"] - before["time_unix"], 0.0)
            repeated += [report for number, report in reports.items() if number > update]
            reports = {number: report for number, report in reports.items() if number <= update}
            if num_starts == 1:
                reports[update] = _Report(0, 0.0, is_first=True)  # where a run resumes whose earlier log is lost
        elif kind == "train" and _is_time(event.get("update_secs")):
            num_updates = update - max(reports, default=0)
            reports[update] = _Report(max(num_updates, 0), event["update_secs"], is_first)
            is_first = False
        elif kind == "checkpoint" and _is_time(event.get("secs")):
            saving += event["secs"]
    wall = timed[-1]["time_unix"] - timed[0]["time_unix"] if timed else 0.0
    if wall <= 0 or not any(report.num_updates for report in reports.values()):
        return None
    usual = [report.update_secs for report in (*reports.values(), *repeated) if not report.is_first]
    usual_secs = statistics.median(usual) if usual else math.inf
    useful_secs, repeated_secs = (
        sum(report.secs(usual_secs) for report in kind) for kind in (reports.values(), repeated)
    )
    return Goodput(wall, useful_secs, repeated_secs, saving, pauses, max(num_starts - 1, 0))


def _is_time(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)
