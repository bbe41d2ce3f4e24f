"""The report's charts as Plotly figures (plain data); page.html defines the colours and the layout that all share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from bert_tf.report.runs import Point, Run, whole

Item = dict[str, Any]  # a part of a figure, by Plotly's names

MAX_POINTS = 400  # per line: a screen cannot show many more
SMOOTH_FROM, NUM_MEANS = 90, 60  # a series this long also gets a line of so many means
DASHES = ("solid", "dash", "dot", "dashdot")  # of overlaid runs, four colours each
TOO_LARGE = 1e30  # values from here on are marked as not finite: they have overflowed or are about to


@dataclasses.dataclass
class Chart:
    """A metric of several runs, one after the other on a common axis of updates or, `overlaid`, all from update 0.

    Phases that follow each other have a colour for each kind of value, overlaid runs one for each run.
    """

    title: str
    metric: str
    held_out_metric: str = ""
    percent: bool = False
    smooth: bool = True
    from_zero: bool = False
    reference: tuple[float, str] | None = None  # height and name of a dashed line
    usual: float | None = None  # the chart is left out if all values equal this
    overlaid: bool = False


def draw(chart: Chart, runs: Sequence[Run]) -> Item | None:
    """Plotly's `data` and `layout`; None if there is nothing to draw."""
    traces: list[Item] = []
    shapes: list[Item] = []
    annotations: list[Item] = []
    end, y_format = 0, ".3~p" if chart.percent else ",.6~g"  # in d3's notation, for the axis and hover texts
    for index, run in enumerate(runs):
        start = 0 if chart.overlaid else end
        end = max(end, start + max(run.last_update, 1))
        name, colour, dash = "training" if chart.held_out_metric else chart.title.lower(), "var(--c1)", "solid"
        held_out, dots_colour = "held-out text", "var(--c2)"
        if chart.overlaid:
            name = held_out = run.label
            colour = dots_colour = f"var(--c{index % 4 + 1})"
            dash = DASHES[index // 4 % len(DASHES)]
        else:
            _add_phase(run, start, shapes, annotations)
        look: Item = {"hovertemplate": f"%{{y:{y_format}}} ({escape(run.label)}, update %{{customdata:,}})"}
        dots = {**look, **_markers("circle", dots_colour)}
        look.update(mode="lines", line={"color": colour, "dash": dash})
        points = run.series(chart.metric)
        if chart.smooth and len(points) >= SMOOTH_FROM:
            means = {"hoverinfo": "skip", "hovertemplate": None, "customdata": None}
            traces.append({**_trace(name, start, smoothed(points)), **look, **means})
            look.update(line={"color": colour, "dash": dash, "width": 1}, opacity=0.4)
        traces.append({**_trace(name, start, thin_out(points)), **look})
        traces.append({**_trace(held_out, start, thin_out(run.series(chart.held_out_metric))), **dots})
        broken = [(x, 1.0) for x, y in points if not abs(y) < TOO_LARGE]
        resumed = [(update, 0.0) for update in run.restarts if not chart.overlaid]
        for what, marks, dots in (
            ("not finite", broken[:: len(broken) // 40 + 1], _markers("x", "var(--c2)")),
            ("resumed", resumed, _markers("triangle-up", "var(--muted)")),
        ):
            dots.update(yaxis="y2", hovertemplate=what + " at update %{customdata:,}<extra></extra>")
            traces.append({**_trace(what, start, marks), **dots})
    traces = [trace for trace in traces if trace["x"]]
    values = {y for trace in traces if "yaxis" not in trace for y in trace["y"] if y is not None}
    if not values - {chart.usual}:
        return None
    if chart.reference:
        height, text = chart.reference
        label = {"text": text, "textposition": "middle", "yanchor": "bottom" if chart.percent else "top"}
        place = {"x0": 0, "x1": 1, "xref": "paper", "y0": height, "y1": height}
        shapes.append({**place, "line": {"dash": "dash"}, "label": label})
    ends: list[Item] = []  # labels with the last values, beside the ends of the lines
    for trace in traces:
        if trace["customdata"] and "yaxis" not in trace and trace["x"][-1] > 0.97 * end and trace["y"][-1] is not None:
            font = {"size": 11, "color": (trace.get("line") or trace["marker"])["color"]}
            text = f"<b>{write_value(trace['y'][-1], chart.percent)}</b>"
            ends.append({"x": 1, "xref": "paper", "xshift": 4, "y": trace["y"][-1], "text": text, "font": font})
    if len(ends) == 2:  # one above the other, however close they are
        for item, anchor in zip(sorted(ends, key=lambda item: item["y"]), ("top", "bottom")):
            item["yanchor"] = anchor
    annotations += ends if len(ends) <= 2 or not chart.overlaid else []
    named: set[str] = set()
    for item in (*traces, *(shape for shape in shapes if "name" in shape)):
        item.update(legendgroup=item["name"], showlegend=item["name"] not in named)
        named.add(item["name"])
    y_axis = {"rangemode": "tozero" if chart.from_zero else "normal", "tickformat": y_format}
    layout = {"xaxis": {"range": [0, end]}, "yaxis": y_axis, "shapes": shapes, "annotations": annotations}
    return {"data": traces, "layout": layout}


def _trace(name: str, start: int, points: Sequence[tuple[float, float]]) -> Item:
    """A line with gaps where a value is not finite. Names are escaped: Plotly reads texts as HTML."""
    heights = [float(f"{y:.6g}") if abs(y) < TOO_LARGE else None for _, y in points]
    updates = [x for x, _ in points]
    return {"name": escape(name), "x": [x + start for x in updates], "y": heights, "customdata": updates}


def _markers(symbol: str, colour: str) -> Item:
    return {"mode": "markers", "marker": {"symbol": symbol, "color": colour}, "cliponaxis": False}


def _add_phase(run: Run, start: int, shapes: list[Item], annotations: list[Item]) -> None:
    """Marks a run: a line at its start, its name, and a coloured background for the warm-up."""
    place = {"x0": start, "y0": 0, "y1": 1, "yref": "paper"}
    if start:
        shapes.append({**place, "x1": start, "line": {"dash": "dot"}})
    if (warmup := min(whole(run.setting("warmup_steps")), run.last_update)) > 0:
        look = {"name": "warm-up", "type": "rect", "fillcolor": "var(--warmup)", "line": {"width": 0}, "layer": "below"}
        shapes.append({**place, "x1": start + warmup, **look})
    length = run.setting("max_seq_length")
    text = f"<b>{escape(run.label)}</b>" + (f"<br>length {escape(str(length))}" if length else "")
    annotations.append({"x": start, "y": 1, "yref": "paper", "yanchor": "bottom", "text": text})


def thin_out(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """About `limit` points that look like all: each bucket's lowest, highest and first gap, and both ends."""
    if len(points) <= limit:
        return list(points)
    kept = {0, len(points) - 1}
    for bucket in np.array_split(np.arange(len(points)), limit // 2 - 1):
        kept.update([index for index in bucket if not abs(points[index][1]) < TOO_LARGE][:1])
        drawable = sorted((points[index][1], index) for index in bucket if abs(points[index][1]) < TOO_LARGE)
        kept.update(index for _, index in drawable[:1] + drawable[-1:])
    return [points[index] for index in sorted(kept)]


def smoothed(points: Sequence[Point]) -> list[tuple[float, float]]:
    """`NUM_MEANS` means of neighbouring finite points."""
    finite = np.array([point for point in points if abs(point[1]) < TOO_LARGE]).reshape(-1, 2)
    return [tuple(bucket.mean(axis=0).tolist()) for bucket in np.array_split(finite, NUM_MEANS) if len(bucket)]


def write_value(value: float, percent: bool = False) -> str:
    """A value with three or four significant digits."""
    if percent:
        return f"{100 * value:.3g} %"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.{3 if abs(value) < 1e-3 else 4}g}"
