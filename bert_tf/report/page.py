"""Renders the report: fills the template page.html with runs, and formats their numbers."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import json
import math
import shlex
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from bert_tf.base.files import write_text
from bert_tf.config import BertConfig
from bert_tf.memory.plan import PROGRAM, Workload, predict
from bert_tf.report.figures import Chart, draw, write_value
from bert_tf.report.runs import Run, differing_settings, number, read_runs, whole


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
    phases = [run for run in runs if run.is_pretraining]
    answering = sorted((run for run in runs if run.is_question_answering), key=lambda run: run.origin, reverse=True)
    text = _template().render(
        title=title,
        runs=runs,
        phases=phases,
        answering=answering,
        classifying=[run for run in runs if run.is_classifying],
        comparing=comparing,
        differences=differing_settings(runs),
        scores={name: [run for run in answering if run.last(name) is not None] for name in ("f1", "exact_match")},
        now=datetime.datetime.now().timestamp(),
        plotly_js=get_plotlyjs(),
    )
    write_text(Path(output), text)


@functools.lru_cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(undefined=jinja2.ChainableUndefined, autoescape=True, trim_blocks=True)
    functions = (Chart, draw, flop_rate, planned_memory, rank_rates, state, time_shares, workload, write_value)
    environment.globals.update({function.__name__: function for function in functions}, ln=math.log)
    filters: dict[str, Callable[[float], Any]] = {"count": "{:,.0f}".format, "number": float, "value": write_value}
    filters.update(percent=lambda value: write_value(value, percent=True), duration=_duration, clock=_clock)
    environment.filters.update({name: _of_number(write) for name, write in filters.items()})
    environment.filters.update(json=json.dumps, shell=shlex.quote)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _of_number(write: Callable[[float], Any]) -> Callable[[Any], Any]:
    """A template filter that formats finite numbers by `write` and gives "" for everything else."""

    def written(value: Any) -> Any:
        value = None if isinstance(value, jinja2.Undefined) else number(value)
        return write(value) if value is not None and math.isfinite(value) else ""

    return written


def _duration(secs: float) -> str:
    if secs < 100:
        return f"{secs:.0f} s"
    return f"{secs / 60:.{int(secs < 600)}f} min" if secs < 6000 else f"{secs / 3600:,.1f} h"


def _clock(time_unix: float) -> str:
    return f"{datetime.datetime.fromtimestamp(min(max(time_unix, 0), 2**32)).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def state(run: Run) -> tuple[str, str]:
    """(colour, text) for a run's state."""
    planned = whole(run.setting("total_updates", run.setting("num_train_steps"))) or run.last_update
    progress = f"{run.last_update:,} of {planned:,} updates"
    if run.end and run.end.get("reason") == "done":
        return "c3", f"finished, {run.last_update:,} updates"
    if run.end:
        return "c2", f"stopped ({run.end.get('reason')}) after {progress}"
    return ("c1", f"under way or interrupted, {progress}") if run.starts else ("muted", "has not begun")


def flop_rate(run: Run) -> str:
    """The model's FLOP/s, and the fraction of the device's peak (MFU)."""
    tflops, utilisation = run.median("model_tflops"), run.median("mfu")
    parts = [] if utilisation is None else [f"MFU {write_value(utilisation, percent=True)}"]
    if tflops is not None:
        parts.insert(0, f"{tflops:,.3g} TFLOP/s" if tflops >= 0.1 else f"{1000 * tflops:,.3g} GFLOP/s")
    return ", ".join(parts)


def workload(run: Run) -> Workload | None:
    """What the run trains, from its config.json; None for another program's or a damaged one."""
    try:
        settings, config = run.config["settings"], BertConfig.from_dict(run.config["bert_config"])
        work = Workload.from_flags(settings, config, run.setting("num_ranks", 1))
        return dataclasses.replace(work, micro_batch_size=settings["train_batch_size"])
    except (LookupError, TypeError, ValueError):
        return None


def planned_memory(run: Run) -> float | None:
    """Bytes that the memory plan, which knows nothing of packed rows, foretells for what `memory_peak_mib` counts."""
    work = workload(run)
    if work is None or run.setting("packing"):
        return None
    return predict(work).total + (PROGRAM if run.config.get("device") == "CPU" else 0)


def time_shares(run: Run) -> str:
    """How the updates' time is divided; leaves out the first report, which includes compilation."""
    reports = [(event, number(event.get("update_secs")) or 0.0) for event in run.train[1:] or run.train]
    total_secs = sum(secs for _, secs in reports) or 1.0
    parts = {}
    for name in ("compute", "input", "all_reduce", "host"):
        parts[name] = sum(secs * (number(event.get(f"{name}_share")) or 0.0) for event, secs in reports) / total_secs
    return ", ".join(f"{name.replace('_', '-')} {write_value(share, True)}" for name, share in parts.items() if share)


def rank_rates(run: Run) -> str:
    """Sequences/s of the median rank and of the slowest, as they would be if they waited for no other; its host."""
    reports = [event for event in run.train[1:] or run.train if "slowest_rank" in event]
    per_rank = whole(run.setting("global_batch_size")) / max(whole(run.setting("num_ranks")), 1)
    names = ("rank_secs_median", "rank_secs_max")
    middle, most = (statistics.median(number(event.get(name)) or 0.0 for event in reports or [{}]) for name in names)
    if not middle or not most:
        return ""
    counts = collections.Counter(f"rank {event['slowest_rank']} on {event.get('slowest_host')}" for event in reports)
    (slowest, times), *_ = counts.most_common(1)
    share = write_value(times / len(reports), percent=True)
    return (
        f"without waiting {write_value(per_rank / middle)} sequences/s on the median rank, "
        f"{write_value(per_rank / most)} on the slowest; it is {slowest} in {share} of the reports"
    )
