"""What a run is like, in words and figures for a reader."""

from __future__ import annotations

import datetime
import math
from typing import Any

from bert_tf.report.runs import Run, number
from bert_tf.report.scales import write_value


def state(run: Run) -> tuple[str, str]:
    """(CSS class, words) for where a run stands."""
    if run.is_done:
        return "done", f"finished, {run.last_update:,} updates"
    progress = f"{run.last_update:,} of {run.total_updates:,} updates"
    if run.end:
        return "stopped", f"stopped ({run.end.get('reason')}) after {progress}"
    if not run.starts:
        return "waiting", "has not begun"
    return "running", f"under way or interrupted, {progress}"


def is_pretrained(run: Run) -> bool:
    return bool(run.setting("init_checkpoint"))


def origin(run: Run) -> str:
    return "from the checkpoint" if is_pretrained(run) else "from random weights"


def median_rate(run: Run) -> float | None:
    return median_of(run, "throughput_train")


def median_of(run: Run, name: str) -> float | None:
    """The median of a rate, without the first report, which holds the compilation."""
    rates = [y for _, y in run.series(name) if math.isfinite(y)]
    if len(rates) > 1:
        rates = rates[1:]
    return sorted(rates)[len(rates) // 2] if rates else None


def time_shares(run: Run) -> str | None:
    """Where the time of the updates went; the first report holds the compilation and does not count."""
    reports = [event for event in run.train[1:] or run.train if number(event.get("update_secs"))]
    weights = [number(event["update_secs"]) or 0.0 for event in reports]
    parts = []
    for name, word in (("compute", "compute"), ("input", "input"), ("all_reduce", "all-reduce"), ("host", "host")):
        shares = [number(event.get(f"{name}_share")) for event in reports]
        if not shares or any(share is None or not math.isfinite(share) for share in shares):
            return None
        mean = sum(share * weight for share, weight in zip(shares, weights) if share) / sum(weights)
        parts.append(f"{word} {write_value(mean, 'percent')}")
    return ", ".join(parts)


def speed(run: Run, with_rate: bool = False) -> str:
    parts = []
    rate = median_rate(run)
    if with_rate:
        if rate is None:
            return "-"
        parts.append(f"{write_value(rate, 'number')} sequences/s")
    flops = number(run.setting("flops_per_sequence"))
    rows = rate / (run.last("instances_per_row") or 1.0) if rate else None
    tflops = rows * flops / 1e12 if rows and flops else run.last("model_tflops")
    if tflops is not None:
        small = tflops < 0.1
        parts.append(f"{1000 * tflops if small else tflops:,.3g} {'GT'[not small]}FLOP/s")
    utilisation = run.last("mfu")
    if utilisation is not None:
        parts.append(f"MFU {write_value(utilisation, 'percent')}")
    return ", ".join(parts) or "median of the reports"


def duration(secs: float) -> tuple[str, str]:
    """(figure, unit) of a time, to be read at a glance."""
    if secs < 100:
        return f"{secs:.0f}", "s"
    if secs < 100 * 60:
        return f"{secs / 60:.{int(secs < 600)}f}", "min"
    return f"{secs / 3600:,.1f}", "h"


def count(value: Any) -> str | None:
    value = number(value)
    return None if value is None or not math.isfinite(value) else f"{value:,.0f}"


def share(value: Any) -> str | None:
    value = number(value)
    return None if value is None else write_value(value, "percent")


def clock(time_unix: float | None) -> str | None:
    if time_unix is None:
        return None
    try:
        time = datetime.datetime.fromtimestamp(time_unix).astimezone()
    except (OverflowError, ValueError, OSError):  # no time, but a number all the same
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S %Z")
