"""Renders the report: fills the template page.html with runs and formats their numbers."""

from __future__ import annotations

import collections
import datetime
import json
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from bert_tf.base.files import write_text
from bert_tf.report.figures import Chart, draw, write_value
from bert_tf.report.runs import RunRecord, differing_settings, read_runs
from bert_tf.run.events import is_number


def write_page(folders: Sequence[str | Path], output: str | Path, title: str = "", comparing: bool = False) -> None:
    """Writes one self-contained HTML page; an OSError leaves an existing page as it was.

    `folders` are pre-training phases in order, and fine-tuning runs; missing ones are left out. `comparing` overlays
    the runs and shows where their settings differ.
    """
    from plotly.offline import get_plotlyjs  # imported late, because nothing else needs it

    runs = read_runs(folders)
    now, plotly_js = datetime.datetime.now().timestamp(), get_plotlyjs()
    title = title or (f"{len(runs)} runs compared" if comparing else "BERT training report")
    page = _template().render(title=title, runs=runs, comparing=comparing, now=now, plotly_js=plotly_js)
    # A file name's bytes that are not UTF-8 are lone surrogates, which cannot be written.
    write_text(Path(output), page.encode("utf-8", "replace").decode())


def _template() -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=True, trim_blocks=True)
    functions = (Chart, differing_settings, draw, rank_rates, state, time_shares)
    environment.globals.update({function.__name__: function for function in functions}, ln=math.log)
    formats = {"count": "{:,.0f}".format, "number": float, "value": write_value, "time": _time, "clock": _clock}
    environment.filters.update({name: _of_number(write) for name, write in formats.items()})
    environment.filters.update(json=json.dumps, shell=shlex.quote)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _of_number(write: Any) -> Callable[..., Any]:
    """A template filter that formats finite numbers with `write` and gives "" for everything else."""
    return lambda value, **how: write(value, **how) if is_number(value) and math.isfinite(value) else ""


def _time(secs: float) -> str:
    return f"{secs / 3600:,.1f} h" if secs >= 3600 else f"{secs / 60:.1f} min"


def _clock(time_unix: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time_unix).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def state(run: RunRecord) -> tuple[str, str]:
    """A colour and a text for a run's state."""
    planned = run.count("total_updates") or run.count("num_train_steps") or run.last_update
    progress = f"{run.last_update:,} of {planned:,} updates"
    if not run.events["end"]:
        return ("c1", f"under way or interrupted, {progress}") if run.events["start"] else ("muted", "has not begun")
    if (reason := run.events["end"][-1].get("reason")) == "done":
        return "c3", f"finished, {run.last_update:,} updates"
    return "c2", f"stopped ({reason}) after {progress}"


def time_shares(run: RunRecord) -> str:
    """How the updates' time is divided, without the first report, which includes compilation."""
    reports, secs = run.events["train"][1:] or run.events["train"], {}
    for name in ("compute", "input", "all_reduce", "host"):
        factors: list[Any] = [(event.get("update_secs"), event.get(f"{name}_share")) for event in reports]
        secs[name.replace("_", "-")] = sum(math.prod(pair) for pair in factors if all(map(is_number, pair)))
    total = sum(secs.values())
    parts = {name: write_value(part / total, percent=True) for name, part in secs.items() if part and total}
    return ", ".join(f"{name} {share}" for name, share in parts.items())


def rank_rates(run: RunRecord) -> str:
    """Sequences/s of the median rank and of the slowest without waiting for others, and the slowest rank's host."""
    middle, most, num_ranks = run.median("rank_secs_median"), run.median("rank_secs_max"), run.count("num_ranks")
    reports = [event for event in run.events["train"] if {"slowest_rank", "slowest_host"} <= event.keys()]
    if not (middle and most and num_ranks and reports):
        return ""
    slowest = collections.Counter(f"rank {event['slowest_rank']} on {event['slowest_host']}" for event in reports)
    ((name, times),) = slowest.most_common(1)
    rates = [write_value(run.count("global_batch_size") / num_ranks / secs) for secs in (middle, most)]
    return (
        f"without waiting {rates[0]} sequences/s on the median rank, {rates[1]} on the slowest; "
        f"it is {name} in {write_value(times / len(reports), percent=True)} of the reports"
    )
