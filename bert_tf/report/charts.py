"""Line charts as SVG: axes, legend, phases, warm-up, held-out points, for the report and README."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bert_tf.report.scales import Point, nice_ticks, running_mean, thin_out, write_ticks, write_value

SMOOTH_FROM = 90  # reports from which on a mean is drawn over the single values
TOO_LARGE = 1e30  # to be drawn: what is larger has overflowed, or is about to
CHARACTER_WIDTH = 6.1  # average, at the font size of the charts; SVG cannot measure text here
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 56, 66, 48, 40

# {ink} and the like become CSS variables in the report and plain colours in a file of its own.
CHART_STYLE = """
.chart text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans",
  sans-serif; fill: {muted}; font-variant-numeric: tabular-nums; }
.chart .grid { stroke: {grid}; stroke-width: 1; }
.chart .axis { stroke: {muted}; stroke-width: 1; }
.chart .warmup { fill: {warmup}; }
.chart .phase { stroke: {muted}; stroke-width: 1; stroke-dasharray: 2 3; }
.chart .phase-name { font-weight: 600; fill: {ink}; }
.chart .reference { stroke: {muted}; stroke-width: 1.2; stroke-dasharray: 6 4; fill: none; }
.chart .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .raw { stroke-width: 1; opacity: .38; }
.chart .dot { stroke: {card}; stroke-width: 1.5; }
.chart .restart { fill: {muted}; }
.chart .broken { stroke: {c2}; stroke-width: 2; }
.chart .value { font-weight: 600; }
.chart .halo { paint-order: stroke; stroke: {card}; stroke-width: 4px; stroke-linejoin: round; }
"""
LIGHT_COLOURS = {
    "ink": "#18202b",
    "muted": "#5a6675",
    "grid": "#e7eaef",
    "card": "#ffffff",
    "warmup": "#fdf1dc",
    "c1": "#1f63c6",
    "c2": "#d0470c",
    "c3": "#13795b",
    "c4": "#7a3fb0",
}
DARK_COLOURS = {
    "ink": "#e8ebf0",
    "muted": "#a0abba",
    "grid": "#2b333f",
    "card": "#171c24",
    "warmup": "#292319",
    "c1": "#6aa5ff",
    "c2": "#ff8f57",
    "c3": "#4cc79b",
    "c4": "#c495f5",
}


@dataclasses.dataclass
class Series:
    """One curve: segments between which the line is broken (phases), or single dots."""

    label: str
    segments: list[list[Point]]
    colour: str  # c1 ... c4
    dots: bool = False
    smooth: bool = False

    @property
    def points(self) -> list[Point]:
        return [point for segment in self.segments for point in segment]


@dataclasses.dataclass
class Segment:
    """A stretch of the update axis that belongs to one phase."""

    first: float
    last: float
    name: str
    remark: str = ""

    @property
    def names(self) -> list[str]:
        """From long to short: the first that fits is written."""
        return [f"{self.name}{self.remark}", self.name, *self.name.split()[-1:]]


@dataclasses.dataclass
class Chart:
    title: str
    series: list[Series]
    segments: list[Segment]
    style: str = "number"  # how values are written: number, percent
    references: list[tuple[float, str]] = dataclasses.field(default_factory=list)
    warmups: list[Point] = dataclasses.field(default_factory=list)  # (first, last) update
    restarts: list[float] = dataclasses.field(default_factory=list)
    from_zero: bool = False

    @property
    def has_points(self) -> bool:
        return any(series.points for series in self.series)


def style_sheet(colours: dict[str, str]) -> str:
    """The charts' CSS with every {name} replaced by its colour."""
    text = CHART_STYLE
    for name, colour in colours.items():
        text = text.replace("{" + name + "}", colour)
    rules = [
        f".chart .line.{name} {{ stroke: {colours[name]}; }}\n"
        f".chart .dot.{name}, .chart .swatch.{name}, .chart .value.{name} "
        f"{{ fill: {colours[name]}; }}\n"
        for name in ("c1", "c2", "c3", "c4")
    ]
    return text + "".join(rules)


def draw(chart: Chart, width: int, height: int) -> str:
    """The chart as an ``<svg>`` element; what the pointer reads out lies in its data-chart."""
    return _Canvas(chart, width, height).draw()


def draw_file(charts: Sequence[Chart], width: int, height: int) -> str:
    """Charts side by side in one SVG file that stands alone, on a white ground."""
    inner = "".join(
        f'<svg x="{index * width}" y="34" width="{width}" height="{height}">'
        f"{draw(chart, width, height)}</svg>"
        f'<text x="{index * width + 18}" y="28" class="title">{escape(chart.title)}</text>'
        for index, chart in enumerate(charts)
    )
    full_width, full_height = width * len(charts), height + 42
    title = f".chart .title {{ font-size: 16px; font-weight: 600; fill: {LIGHT_COLOURS['ink']}; }}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{full_width}" '
        f'height="{full_height}" viewBox="0 0 {full_width} {full_height}">'
        f"<style>{style_sheet(LIGHT_COLOURS)}{title}</style>"
        f'<rect width="100%" height="100%" fill="#ffffff"/>{inner}</svg>\n'
    )


class _Canvas:
    """Maps updates and values to pixels and draws the layers from back to front."""

    def __init__(self, chart: Chart, width: int, height: int):
        self.chart, self.width, self.height = chart, width, height
        self.left, self.right = MARGIN_LEFT, width - MARGIN_RIGHT
        self.top, self.bottom = MARGIN_TOP, height - MARGIN_BOTTOM
        self.x_max = max((segment.last for segment in chart.segments), default=1.0) or 1.0
        values = [y for series in chart.series for _, y in series.points if abs(y) < TOO_LARGE]
        values += [value for value, _ in chart.references]
        values = values or [0.0, 1.0]
        low = 0.0 if chart.from_zero else min(values)
        self.y_ticks = nice_ticks(low, max(values), max((self.bottom - self.top) // 45, 3))
        self.y_min, self.y_max = self.y_ticks[0], self.y_ticks[-1]

    def x(self, update: float) -> float:
        return self.left + (self.right - self.left) * update / self.x_max

    def y(self, value: float) -> float:
        share = (value - self.y_min) / (self.y_max - self.y_min)
        return self.bottom - (self.bottom - self.top) * share

    def draw(self) -> str:
        chart = self.chart
        layers = [
            self._warmups(),
            self._axes(),
            self._phases(),
            self._references(),
            *(self._line(series) for series in chart.series if not series.dots),
            *(self._dots(series) for series in chart.series if series.dots),
            self._reference_names(),
            self._restarts(),
            self._last_values(),
            self._legend(),
        ]
        return (
            f'<svg class="chart" viewBox="0 0 {self.width} {self.height}" role="img" '
            f'aria-label="{escape(chart.title)}" data-chart="{escape(self._pointer_data())}">'
            f"{''.join(layers)}</svg>"
        )

    def _warmups(self) -> str:
        return "".join(
            f'<rect class="warmup" x="{self.x(first):.1f}" y="{self.top}" '
            f'width="{max(self.x(last) - self.x(first), 1):.1f}" height="{self.bottom - self.top}">'
            f"<title>warm-up: updates {first:,.0f} to {last:,.0f}</title></rect>"
            for first, last in self.chart.warmups
        )

    def _axes(self) -> str:
        parts = []
        for tick, label in zip(self.y_ticks, write_ticks(self.y_ticks, self.chart.style)):
            y = self.y(tick)
            parts.append(
                f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>'
                f'<text x="{self.left - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{label}</text>"
            )
        for tick in nice_ticks(0, self.x_max, max((self.right - self.left) // 85, 2)):
            if tick > self.x_max or tick != round(tick):
                continue
            x = self.x(tick)
            parts.append(
                f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom}" '
                f'y2="{self.bottom + 5}"/><text x="{x:.1f}" y="{self.bottom + 18}" '
                f'text-anchor="middle">{tick:,.0f}</text>'
            )
        parts.append(
            f'<line class="axis" x1="{self.left}" x2="{self.right}" y1="{self.bottom}" '
            f'y2="{self.bottom}"/><text x="{(self.left + self.right) / 2:.0f}" '
            f'y="{self.bottom + 34}" text-anchor="middle">update</text>'
        )
        return "".join(parts)

    def _phases(self) -> str:
        parts = []
        for index, segment in enumerate(self.chart.segments):
            start, stop = self.x(segment.first), self.x(segment.last)
            if index:
                parts.append(
                    f'<line class="phase" x1="{start:.1f}" x2="{start:.1f}" y1="{self.top - 14}" y2="{self.bottom}"/>'
                )
            room = (stop - start) / CHARACTER_WIDTH - 1
            name = next((name for name in segment.names if len(name) * 1.08 <= room), None)
            if name:
                parts.append(f'<text class="phase-name" x="{start + 4:.1f}" y="{self.top - 5}">{escape(name)}</text>')
        return "".join(parts)

    def _references(self) -> str:
        return "".join(
            f'<line class="reference" x1="{self.left}" x2="{self.right}" y1="{self.y(value):.1f}" '
            f'y2="{self.y(value):.1f}"/>'
            for value, _ in self.chart.references
        )

    def _reference_names(self) -> str:
        middle = (self.left + self.right) / 2
        return "".join(
            f'<text class="halo" x="{middle:.0f}" y="{self._beside(value):.1f}" '
            f'text-anchor="middle">{escape(label)}</text>'
            for value, label in self.chart.references
        )

    def _beside(self, value: float) -> float:
        """Where to write the name of a line at `value`: on the side that has fewer points."""
        near = (self.x_max / 3, self.x_max * 2 / 3)
        heights = [y for series in self.chart.series for x, y in series.points if near[0] <= x <= near[1]]
        num_above = sum(height > value for height in heights)
        too_high = self.y(value) - 18 < self.top
        return self.y(value) + (15 if too_high or 2 * num_above > len(heights) else -6)

    def _line(self, series: Series) -> str:
        parts = []
        for points in series.segments:
            thinned = thin_out(points)
            if series.smooth and len(points) >= SMOOTH_FROM:
                parts.append(self._path(thinned, f"line raw {series.colour}"))
                thinned = thin_out(running_mean(points))
            parts.append(self._path(thinned, f"line {series.colour}"))
            broken = [point for point in points if not math.isfinite(point[1])]
            parts += [self._cross(x, y) for x, y in thin_out(broken, 40)]
        return "".join(parts)

    def _path(self, points: Iterable[Point], css: str) -> str:
        text, pen_down = [], False
        for x, y in points:
            if not math.isfinite(y):
                pen_down = False
                continue
            text.append(f"{'L' if pen_down else 'M'}{self.x(x):.1f} {self.y(y):.1f}")
            if not pen_down:
                text.append("h.01")  # so that a single point shows, as a round cap
            pen_down = True
        return f'<path class="{css}" d="{"".join(text)}"/>' if text else ""

    def _cross(self, update: float, value: float) -> str:
        x, y = self.x(update), self.top + 6
        return (
            f'<path class="broken" d="M{x - 4:.1f} {y - 4}l8 8m0 -8l-8 8">'
            f"<title>update {update:,.0f}: {write_value(value, 'number')}</title></path>"
        )

    def _dots(self, series: Series) -> str:
        parts = []
        for update, value in thin_out(series.points, 120):
            if not math.isfinite(value):
                parts.append(self._cross(update, value))
                continue
            shown = write_value(value, self.chart.style)
            parts.append(
                f'<circle class="dot {series.colour}" cx="{self.x(update):.1f}" '
                f'cy="{self.y(value):.1f}" r="5"><title>{escape(series.label)}, update '
                f"{update:,.0f}: {shown}</title></circle>"
            )
        return "".join(parts)

    def _restarts(self) -> str:
        return "".join(
            f'<path class="restart" d="M{self.x(update):.1f} {self.bottom - 8}l5 8h-10z">'
            f"<title>taken up again at update {update:,.0f}</title></path>"
            for update in self.chart.restarts
        )

    def _last_values(self) -> str:
        """The final numbers beside the curves' ends, pushed apart where they would overlap.

        A curve that ends earlier, at the last evaluation say, gets none: it would look current.
        """
        labels: list[list[Any]] = []
        for series in self.chart.series:
            finite = [point for point in series.points if math.isfinite(point[1])]
            if finite and finite[-1][0] > 0.97 * self.x_max:
                labels.append([self.y(finite[-1][1]), series.colour, finite[-1][1]])
        labels.sort()
        for above, below in zip(labels, labels[1:]):
            below[0] = max(below[0], above[0] + 14)
        return "".join(
            f'<text class="value {colour}" x="{self.right + 8}" y="{y + 4:.1f}">'
            f"{write_value(value, self.chart.style)}</text>"
            for y, colour, value in labels
        )

    def _legend(self) -> str:
        parts, x = [], float(self.left)

        def entry(swatch: str, label: str) -> None:
            nonlocal x
            parts.append(f'<g transform="translate({x:.0f} 4)">{swatch}')
            parts.append(f'<text x="22" y="11">{escape(label)}</text></g>')
            x += 22 + len(label) * CHARACTER_WIDTH + 22

        for series in self.chart.series:
            if series.dots:
                entry(f'<circle class="dot {series.colour}" cx="8" cy="7" r="5"/>', series.label)
            else:
                entry(f'<path class="line {series.colour}" d="M0 7h16"/>', series.label)
        if self.chart.warmups:
            entry('<rect class="warmup" width="16" height="14"/>', "warm-up")
        if self.chart.restarts:
            entry('<path class="restart" d="M8 3l5 8h-10z"/>', "taken up again")
        return "".join(parts)

    def _pointer_data(self) -> str:
        """What the pointer's read-out needs: the plot's frame, the phases and the drawn points."""
        series = [
            {
                "label": one.label,
                "points": [[x, write_value(y, self.chart.style)] for x, y in thin_out(one.points) if math.isfinite(y)],
            }
            for one in self.chart.series
        ]
        frame = [self.left, self.right, self.top, self.bottom, self.x_max]
        phases = [[segment.first, segment.name] for segment in self.chart.segments]
        return json.dumps({"frame": frame, "phases": phases, "series": series})
