"""The report's charts as Plotly figures (plain data); page.html defines the colours and the common layout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from bert_tf.report.runs import Point, RunRecord

Item = dict[str, Any]  # a part of a figure, with Plotly's names

MAX_POINTS = 400  # per line: a screen cannot show many more
SMOOTH_FROM, NUM_MEANS = 90, 60  # a series of at least this length also gets a line of this many means
DASHES = ("solid", "dash", "dot", "dashdot")  # for overlaid runs, with four colours each


@dataclasses.dataclass
class Chart:
    """A metric of several runs, one after the other on a common axis of updates or, if `overlaid`, all from update 0.

    Runs in sequence have a colour for each kind of value, overlaid runs one for each run.
    """

    title: str
    metric: str
    held_out_metric: str = ""
    percent: bool = False
    smooth: bool = True
    from_zero: bool = False
    reference: tuple[float, str] | None = None  # height of a dashed line, and its name, which the caption mentions
    usual: float | None = None  # the chart is left out if all values equal this
    overlaid: bool = False


def draw(chart: Chart, runs: Sequence[RunRecord]) -> Item | None:
    """Plotly's `data` and `layout`; None if there is nothing to draw."""
    traces: list[Item] = []
    shapes: list[Item] = []
    annotations: list[Item] = []
    end, y_format = 0, ".3~p" if chart.percent else ",.6~g"  # in d3's notation, for the axis and the hover texts
    for index, run in enumerate(runs):
        start = 0 if chart.overlaid else end
        end = max(end, start + max(run.last_update, 1))
        if chart.overlaid:
            name = held_out = run.label
            colour = dots_colour = f"var(--c{index % 4 + 1})"
            dash = DASHES[index // 4 % len(DASHES)]
        else:
            name, held_out = "training" if chart.held_out_metric else chart.title.lower(), "held-out text"
            colour, dots_colour, dash = "var(--c1)", "var(--c2)", "solid"
            _add_phase(run, start, shapes, annotations)
        hover = f"%{{y:{y_format}}} ({escape(run.label)}, update %{{customdata:,}})"
        look: Item = {"mode": "lines", "line": {"color": colour, "dash": dash}}
        points, points_held_out = run.series(chart.metric), run.series(chart.held_out_metric)
        if chart.smooth and len(points) >= SMOOTH_FROM:
            traces.append({**_trace(name, start, smoothed(points)), **look, "hoverinfo": "skip"})
            look = {"mode": "lines", "line": {"color": colour, "dash": dash, "width": 1}, "opacity": 0.4}
        traces.append({**_trace(name, start, thin_out(points)), **look, "hovertemplate": hover})
        look = {"mode": "markers", "marker": {"color": dots_colour}, "cliponaxis": False}
        traces.append({**_trace(held_out, start, points_held_out), **look, "hovertemplate": hover})
        broken = [start + x for x, y in points if not math.isfinite(y)]
        look = {"name": "not finite", "line": {"color": "var(--c2)", "width": 2}}
        shapes += [_upright(x, x, 0.95, 1.0, **look) for x in broken[:: len(broken) // 40 + 1]]
    traces = [trace for trace in traces if trace["x"]]
    if not {y for trace in traces for y in trace["y"]} - {chart.usual, None}:
        return None
    if chart.reference:
        height, _ = chart.reference
        shapes.append({"x0": 0, "x1": 1, "xref": "paper", "y0": height, "y1": height, "line": {"dash": "dash"}})
    if annotations and annotations[-1]["x"] > 0.6 * end:  # the last run's name would run out of the chart at its right
        annotations[-1].update(x=end, xanchor="right")
    named: set[str] = set()
    for item in (*traces, *(shape for shape in shapes if "name" in shape)):
        item.update(legendgroup=item["name"], showlegend=item["name"] not in named)
        named.add(item["name"])
    y_axis = {"rangemode": "tozero" if chart.from_zero else "normal", "tickformat": y_format}
    layout = {"xaxis": {"range": [0, end]}, "yaxis": y_axis, "shapes": shapes, "annotations": annotations}
    return {"data": traces, "layout": layout}


def _trace(name: str, start: int, points: Sequence[tuple[float, float]]) -> Item:
    """A line with gaps where values are not finite. Names are escaped, because Plotly reads texts as HTML."""
    heights = [float(f"{y:.6g}") if math.isfinite(y) else None for _, y in points]
    updates = [x for x, _ in points]
    return {"name": escape(name), "x": [x + start for x in updates], "y": heights, "customdata": updates}


def _upright(x0: int, x1: int, y0: float, y1: float, **look: Any) -> Item:
    """A line, or an area, between two heights of the chart."""
    return {"x0": x0, "x1": x1, "y0": y0, "y1": y1, "yref": "paper", **look}


def _add_phase(run: RunRecord, start: int, shapes: list[Item], annotations: list[Item]) -> None:
    """Marks a run: a line at its start, its name, a coloured background for the warm-up, and ticks where it resumed."""
    if start:
        shapes.append(_upright(start, start, 0.0, 1.0, line={"dash": "dot"}))
    if (warmup := min(run.count("warmup_steps"), run.last_update)) > 0:
        look = {"type": "rect", "fillcolor": "var(--warmup)", "line": {"width": 0}, "layer": "below"}
        shapes.append(_upright(start, start + warmup, 0.0, 1.0, name="warm-up", **look))
    shapes += [_upright(start + x, start + x, 0.0, 0.05, name="resumed", line={"width": 2}) for x in run.restarts]
    length = run.setting("max_seq_length")
    text = f"<b>{escape(run.label)}</b>" + (f"<br>length {escape(str(length))}" if length else "")
    annotations.append({"x": start, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text})


def thin_out(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """About `limit` points that look like all: both ends, and each bucket's lowest and highest; gaps are highest."""
    if len(points) <= limit:
        return list(points)
    kept = {0, len(points) - 1}
    for bucket in np.array_split(np.arange(len(points)), limit // 2 - 1):
        by_height = sorted(bucket, key=lambda index: (not math.isfinite(points[index][1]), points[index][1]))
        kept.update((by_height[0], by_height[-1]))
    return [points[index] for index in sorted(kept)]


def smoothed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """At most `NUM_MEANS` means of neighbouring finite points."""
    finite = np.array([point for point in points if math.isfinite(point[1])]).reshape(-1, 2)
    return [tuple(bucket.mean(axis=0).tolist()) for bucket in np.array_split(finite, NUM_MEANS) if len(bucket)]


def write_value(value: float, percent: bool = False) -> str:
    """A value with three or four significant digits."""
    if percent:
        return f"{100 * value:.3g} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.{3 if abs(value) < 1e-3 else 4}g}"
