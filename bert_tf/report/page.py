"""Renders the report: fills the template page.html with runs, their numbers, and charts as Plotly figures.

Figures are plain data; page.html defines the colours and the common layout.
"""

from __future__ import annotations

import collections
import datetime
import json
import math
import shlex
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from bert_tf.base.files import write_text
from bert_tf.report.runs import Point, RunRecord, differing_settings, read_runs
from bert_tf.run.events import is_number

Item = dict[str, Any]  # a part of a figure, with Plotly's names

MAX_POINTS = 400  # per line: a screen cannot show many more
SMOOTH_FROM, NUM_MEANS = 90, 60  # a series of at least this length also gets a line of this many means
DASHES = ("solid", "dash", "dot", "dashdot")  # for overlaid runs, with four colours each


def draw(
    runs: Sequence[RunRecord],
    title: str,
    metric: str,
    *,
    held_out_metric: str = "",
    percent: bool = False,
    smooth: bool = True,
    from_zero: bool = False,
    reference: float | None = None,
    usual: float | None = None,
    overlaid: bool = False,
) -> Item | None:
    """A chart of a metric of several runs, as Plotly's `data` and `layout`; None if there is nothing to draw.

    Args:
      runs: one after the other on a common axis of updates, with a colour for each kind of value; or, if `overlaid`,
        all from update 0 with a colour for each run.
      reference: height of a dashed line.
      usual: the chart is left out if all values equal this.
    """
    traces: list[Item] = []
    shapes: list[Item] = []
    annotations: list[Item] = []
    end, y_format = 0, ".3~p" if percent else ",.6~g"  # in d3's notation, for the axis and the hover texts
    for index, run in enumerate(runs):
        start = 0 if overlaid else end
        end = max(end, start + max(run.last_update, 1))
        if overlaid:
            name = held_out = run.label
            colour = dots_colour = f"var(--c{index % 4 + 1})"
            dash = DASHES[index // 4 % len(DASHES)]
        else:
            name, held_out = "training" if held_out_metric else title.lower(), "held-out text"
            colour, dots_colour, dash = "var(--c1)", "var(--c2)", "solid"
            _add_phase(run, start, shapes, annotations)
        hover = f"%{{y:{y_format}}} ({escape(run.label)}, update %{{customdata:,}})"
        look: Item = {"mode": "lines", "line": {"color": colour, "dash": dash}}
        points = run.series(metric)
        if smooth and len(points) >= SMOOTH_FROM:
            traces.append(_trace(name, start, smoothed(points), **look, hoverinfo="skip"))
            look = {"mode": "lines", "line": {**look["line"], "width": 1}, "opacity": 0.4}
        traces.append(_trace(name, start, thin_out(points), **look, hovertemplate=hover))
        look = {"mode": "lines+markers", "line": {"width": 1}, "marker": {"color": dots_colour}, "cliponaxis": False}
        traces.append(_trace(held_out, start, run.series(held_out_metric), **look, hovertemplate=hover))
        broken = [start + x for x, y in points if not math.isfinite(y)]
        look = {"name": "not finite", "line": {"color": "var(--c2)", "width": 2}}
        shapes += [_upright(x, 0.95, 1.0, **look) for x in broken[:: len(broken) // 40 + 1]]
    traces = [trace for trace in traces if trace["x"]]
    if not {y for trace in traces for y in trace["y"]} - {usual, None}:
        return None
    if reference is not None:
        shapes.append({"x0": 0, "x1": 1, "xref": "paper", "y0": reference, "y1": reference, "line": {"dash": "dash"}})
    if annotations and annotations[-1]["x"] > 0.6 * end:  # the last run's name would reach beyond the right edge
        annotations[-1].update(x=end, xanchor="right")
    legend_names: set[str] = set()
    for item in (*traces, *(shape for shape in shapes if "name" in shape)):
        item.update(legendgroup=item["name"], showlegend=item["name"] not in legend_names)
        legend_names.add(item["name"])
    y_axis = {"rangemode": "tozero" if from_zero else "normal", "tickformat": y_format}
    layout = {"xaxis": {"range": [0, end]}, "yaxis": y_axis, "shapes": shapes, "annotations": annotations}
    return {"data": traces, "layout": layout}


def _trace(name: str, start: int, points: Sequence[tuple[float, float]], **look: Any) -> Item:
    """A line with gaps where values are not finite. Names are escaped, because Plotly reads texts as HTML."""
    heights = [float(f"{y:.6g}") if math.isfinite(y) else None for _, y in points]
    updates = [x for x, _ in points]
    return {"name": escape(name), "x": [x + start for x in updates], "y": heights, "customdata": updates, **look}


def _upright(x: int, y0: float, y1: float, **look: Any) -> Item:
    """A shape between two heights, as shares of the chart's: a vertical line, or an area if `look` has another `x1`."""
    return {"x0": x, "x1": x, "y0": y0, "y1": y1, "yref": "paper", **look}


def _add_phase(run: RunRecord, start: int, shapes: list[Item], annotations: list[Item]) -> None:
    """Marks a run: a line at its start, its name, a coloured background for the warm-up, and ticks where it resumed."""
    if start:
        shapes.append(_upright(start, 0.0, 1.0, line={"dash": "dot"}))
    if (warmup := min(run.count("warmup_steps"), run.last_update)) > 0:
        look = {"type": "rect", "fillcolor": "var(--warmup)", "line": {"width": 0}, "layer": "below"}
        shapes.append(_upright(start, 0.0, 1.0, x1=start + warmup, name="warm-up", **look))
    shapes += [_upright(start + x, 0.0, 0.05, name="resumed", line={"width": 2}) for x in run.restarts]
    length = run.setting("max_seq_length")
    text = f"<b>{escape(run.label)}</b>" + (f"<br>length {escape(str(length))}" if length else "")
    annotations.append({"x": start, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text})


def thin_out(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """About `limit` points that draw the same line: both ends, and each bucket's lowest and highest, or a gap in it."""
    if len(points) <= limit:
        return list(points)
    heights, indices = np.array([y if math.isfinite(y) else math.inf for _, y in points]), {0, len(points) - 1}
    for bucket in np.array_split(np.arange(len(points)), limit // 2 - 1):
        indices.update((bucket[heights[bucket].argmin()], bucket[heights[bucket].argmax()]))
    return [points[index] for index in sorted(indices)]


def smoothed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """At most `NUM_MEANS` means of neighbouring finite points."""
    finite = np.array([point for point in points if math.isfinite(point[1])]).reshape(-1, 2)
    return [tuple(bucket.mean(axis=0).tolist()) for bucket in np.array_split(finite, NUM_MEANS) if len(bucket)]


def write_value(value: float, percent: bool = False) -> str:
    """A value with three or four significant digits."""
    if percent:
        return f"{100 * value:.3g} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.{3 if abs(value) < 1e-3 else 4}g}"


def write_page(folders: Sequence[str | Path], output: str | Path, title: str = "", comparing: bool = False) -> None:
    """Writes one self-contained HTML page; an OSError leaves an existing page as it was.

    `folders` are those of pre-training phases in order, and of fine-tuning runs; missing ones are left out. `comparing`
    overlays the runs and shows where their settings differ.
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
    functions = (differing_settings, draw, figure_name, rank_rates, state, time_shares)
    environment.globals.update({function.__name__: function for function in functions}, ln=math.log)
    formats = {"count": "{:,.0f}".format, "number": float, "value": write_value, "time": _time, "clock": _clock}
    environment.filters.update({name: _number_filter(write) for name, write in formats.items()})
    environment.filters.update(json=json.dumps, shell=shlex.quote)
    return environment.from_string(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def _number_filter(write: Any) -> Callable[..., Any]:
    """A template filter that formats finite numbers with `write` and gives "" for everything else."""
    return lambda value, **options: write(value, **options) if is_number(value) and math.isfinite(value) else ""


def _time(secs: float) -> str:
    return f"{secs / 3600:,.1f} h" if secs >= 3600 else f"{secs / 60:.1f} min"


def _clock(time_unix: float) -> str:
    return f"{datetime.datetime.fromtimestamp(time_unix).astimezone():%Y-%m-%d %H:%M:%S %Z}"


# Parts of metrics' names -> what the page calls them, for training and evaluation alike.
_FIGURES = {
    **dict.fromkeys(("masked_lm", "mlm"), "MLM"),
    **dict.fromkeys(("next_sentence", "nsp"), "NSP"),
    "eval_loss": "total_loss",
    "train_accuracy": "accuracy",
    "f1": "F1",
    "exact_match": "exact match (EM)",
    "_": " ",
}


def figure_name(metric: str) -> str:
    """What the page calls a metric of training or evaluation."""
    metric = "total_loss" if metric == "loss" else metric
    for part, name in _FIGURES.items():
        metric = metric.replace(part, name)
    return metric


def state(run: RunRecord) -> tuple[str, str]:
    """A colour and a text for a run's state."""
    planned = run.count("total_updates") or run.last_update
    progress = f"{run.last_update:,} of {planned:,} updates"
    if not run.events["end"]:
        return ("c1", f"under way or interrupted, {progress}") if run.events["start"] else ("muted", "has not begun")
    if (reason := run.events["end"][-1].get("reason")) == "done":
        return "c3", f"finished, {run.last_update:,} updates"
    if reason == "early_stopping":
        return "c3", f"finished early, as its score got no better, after {progress}"
    return "c2", f"stopped ({reason}) after {progress}"


def time_shares(run: RunRecord) -> str:
    """How the updates' time is divided, without the first report, which includes compilation."""
    points, secs = run.series("update_secs"), {}
    update_secs = dict(points[1:] or points)
    for name in ("compute", "input", "all_reduce", "host"):
        shares = [(update, share) for update, share in run.series(f"{name}_share") if update in update_secs]
        secs[name.replace("_", "-")] = sum(update_secs[update] * share for update, share in shares)
    total = sum(secs.values())
    return ", ".join(f"{name} {write_value(part / total, percent=True)}" for name, part in secs.items() if part)


def rank_rates(run: RunRecord) -> str:
    """Sequences/s of the median and of the slowest rank, without their waiting for others, and the slowest's host."""
    reports = [event for event in run.events["train"] if "slowest_rank" in event]
    if not reports:
        return ""
    slowest = collections.Counter(f"rank {event['slowest_rank']} on {event['slowest_host']}" for event in reports)
    ((name, times),) = slowest.most_common(1)
    sequences = run.count("global_batch_size") / run.count("num_ranks")
    rates = [write_value(sequences / (run.median(f"rank_secs_{which}") or math.inf)) for which in ("median", "max")]
    return (
        f"without waiting {rates[0]} sequences/s on the median rank, {rates[1]} on the slowest; "
        f"it is {name} in {write_value(times / len(reports), percent=True)} of the reports"
    )
