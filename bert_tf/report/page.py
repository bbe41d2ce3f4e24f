"""Renders the report: fills the template page.html with runs, and formats their numbers."""

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
from bert_tf.report.runs import Run, differing_settings, read_runs
from bert_tf.run.events import is_number
from bert_tf.run.goodput import write_time


def write_report(
    run_folders: Sequence[str | Path], output: str | Path, title: str = "BERT training report", comparing: bool = False
) -> None:
    """Writes one self-contained HTML page about the runs; an older page is replaced atomically.

    Args:
      run_folders: pre-training phases in order, and fine-tuning runs; missing folders are left out.
      comparing: draws the runs over each other, and shows where their settings differ.

    Raises OSError where the page cannot be written; an older page stays as it was.
    """
    from plotly.offline import get_plotlyjs  # imported late, because nothing else needs it

    runs = read_runs(run_folders)
    now, plotly_js = datetime.datetime.now().timestamp(), get_plotlyjs()
    page = _template().render(title=title, runs=runs, comparing=comparing, now=now, plotly_js=plotly_js)
    # The bytes of a file name that are not UTF-8 are lone surrogates, which no page may hold.
    write_text(Path(output), page.encode("utf-8", "replace").decode())


def _template() -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=True, trim_blocks=True)
    functions = (Chart, differing_settings, draw, flop_rate, rank_rates, state, time_shares)
    environment.globals.update({function.__name__: function for function in functions}, ln=math.log)
    formats: dict[str, Callable[..., Any]] = {"count": "{:,.0f}".format, "number": float, "value": write_value}
    formats.update(time=write_time, clock=_clock)
    environment.filters.update({name: _of_number(write) for name, write in formats.items()})
    environment.filters.update(json=json.dumps, shell=shlex.quote)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _of_number(write: Callable[..., Any]) -> Callable[..., Any]:
    """A template filter that formats finite numbers by `write` and gives "" for everything else."""
    return lambda value, **how: write(value, **how) if is_number(value) and math.isfinite(value) else ""


def _clock(time_unix: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time_unix).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def state(run: Run) -> tuple[str, str]:
    """(colour, text) for a run's state."""
    planned = run.count("total_updates") or run.count("num_train_steps") or run.last_update
    progress = f"{run.last_update:,} of {planned:,} updates"
    if run.events["end"]:
        reason = run.events["end"][-1].get("reason")
        done = ("c3", f"finished, {run.last_update:,} updates")
        return done if reason == "done" else ("c2", f"stopped ({reason}) after {progress}")
    return ("c1", f"under way or interrupted, {progress}") if run.events["start"] else ("muted", "has not begun")


def flop_rate(run: Run) -> str:
    """The model's FLOP/s, and the fraction of the device's peak (MFU)."""
    tflops, utilisation = run.median("model_tflops"), run.median("mfu")
    parts = [] if utilisation is None else [f"MFU {write_value(utilisation, percent=True)}"]
    if tflops is not None:
        parts.insert(0, f"{tflops:,.3g} TFLOP/s" if tflops >= 0.1 else f"{1000 * tflops:,.3g} GFLOP/s")
    return ", ".join(parts)


def time_shares(run: Run) -> str:
    """How the updates' time is divided; leaves out the first report, which includes compilation."""
    names = ("compute", "input", "all_reduce", "host")
    secs = dict.fromkeys(names, 0.0)
    for event in run.events["train"][1:] or run.events["train"]:
        for name in names:
            factors: list[Any] = [event.get("update_secs"), event.get(f"{name}_share")]
            secs[name] += math.prod(factors) if all(map(is_number, factors)) else 0.0
    total = sum(secs.values())
    shares = {name: write_value(part / total, percent=True) for name, part in secs.items() if part and total}
    return ", ".join(f"{name.replace('_', '-')} {share}" for name, share in shares.items())


def rank_rates(run: Run) -> str:
    """Sequences/s of the median rank and of the slowest, as they would be if they waited for no other; its host."""
    middle, most, num_ranks = run.median("rank_secs_median"), run.median("rank_secs_max"), run.count("num_ranks")
    reports = [event for event in run.events["train"] if {"slowest_rank", "slowest_host"} <= event.keys()]
    if not (middle and most and num_ranks and reports):
        return ""
    per_rank = run.count("global_batch_size") / num_ranks
    slowest = collections.Counter(f"rank {event['slowest_rank']} on {event['slowest_host']}" for event in reports)
    ((name, times),) = slowest.most_common(1)
    share = write_value(times / len(reports), percent=True)
    return (
        f"without waiting {write_value(per_rank / middle)} sequences/s on the median rank, "
        f"{write_value(per_rank / most)} on the slowest; it is {name} in {share} of the reports"
    )
