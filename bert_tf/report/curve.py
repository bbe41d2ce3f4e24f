"""Loss and masked-word accuracy of pre-training as one SVG file, for pages that show no HTML (README.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from bert_tf.base.files import write_text
from bert_tf.report.figures import SMOOTH_FROM, TOO_LARGE, smoothed, thin_out, write_value
from bert_tf.report.runs import Run, read_runs

# Of a panel, in pixels; the margin holds the axes' labels and the last values.
WIDTH, HEIGHT, MARGIN = 620, 380, 56
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" font-size="12" '
    'font-family="system-ui, sans-serif" fill="#5a6675"><rect width="100%" height="100%" fill="#ffffff"/>'
)


class Panel:
    """A metric of runs one after the other; `left` is the panel's place in the picture."""

    def __init__(self, runs: Sequence[Run], title: str, metric: str, held_out: str, left: int, percent: bool = False):
        self.runs, self.title, self.percent = runs, title, percent
        self.metric, self.held_out, self.left = metric, held_out, left
        values = [y for run in runs for name in (metric, held_out) for _, y in run.series(name) if abs(y) < TOO_LARGE]
        self.top, self.bottom = max(values, default=1.0), 0.0 if percent else min(values, default=0.0)
        self.end = sum(max(run.last_update, 1) for run in runs)

    def at(self, update: float, value: float) -> str:
        x = self.left + MARGIN + (WIDTH - 2 * MARGIN) * update / self.end
        return f"{x:.1f} {HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * self._share(value):.1f}"

    def _share(self, value: float) -> float:
        return (value - self.bottom) / ((self.top - self.bottom) or 1.0)

    def line(self, points: Sequence[tuple[float, float]], start: int, look: str) -> str:
        path = "L".join(self.at(x + start, y) for x, y in points if abs(y) < TOO_LARGE)
        return f'<path d="M{path}" fill="none" stroke="{look}/>' if path else ""

    def text(self, update: float, value: float, text: str, look: str = "") -> str:
        x, y = self.at(update, value).split()
        return f'<text x="{x}" y="{y}" {look}>{escape(text)}</text>'

    def draw(self) -> Iterator[str]:
        for tick in ticks(self.bottom, self.top):
            yield self.line([(0, tick), (self.end, tick)], 0, '#e7eaef"')
            yield self.text(
                0, tick, f"{100 * tick:g} %" if self.percent else f"{tick:g}", 'dx="-6" dy="4" text-anchor="end"'
            )
        yield self.text(0, self.top, self.title, 'dy="-32" font-size="14" font-weight="600" fill="#18202b"')
        start = 0
        for run in self.runs:
            yield self.line([(start, self.bottom), (start, self.top)], 0, '#5a6675" stroke-dasharray="2 3"')
            yield self.text(
                start, self.top, f"{run.label}, length {run.setting('max_seq_length', '?')}", 'dx="4" dy="-10"'
            )
            points = run.series(self.metric)
            is_long = len(points) >= SMOOTH_FROM
            yield self.line(thin_out(points), start, f'#1f63c6" stroke-width="1" opacity="{0.4 if is_long else 1}"')
            yield self.line(smoothed(points) if is_long else [], start, '#1f63c6" stroke-width="2"')
            start += max(run.last_update, 1)
            for _, value in run.series(self.held_out)[-1:]:
                x, y = self.at(start, value).split()
                yield f'<circle cx="{x}" cy="{y}" r="5" fill="#d0470c"/>'
                yield self.text(start, value, write_value(value, self.percent), 'dx="8" dy="4" fill="#d0470c"')
        for tick in ticks(0, self.end):
            yield self.text(tick, self.bottom, f"{tick:,g}", 'dy="18" text-anchor="middle"')
        note = "update; blue: training text, orange: held-out text"
        yield self.text(self.end / 2, self.bottom, note, 'dy="38" text-anchor="middle"')


def ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high], five or fewer."""
    rough = (high - low) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [round(number * step, 10) for number in range(first, math.floor(high / step) + 1)]


def write_curve(run_folders: Sequence[str | Path], output: str | Path) -> None:
    """Writes the picture of the pre-training phases in `run_folders`, in order; missing ones are left out.

    Raises OSError where it cannot be written.
    """
    runs = read_runs(run_folders)
    panels = (
        Panel(runs, "Total loss (MLM + NSP)", "total_loss", "loss", 0),
        Panel(runs, "Masked-word accuracy", "mlm_accuracy", "masked_lm_accuracy", WIDTH, percent=True),
    )
    parts = [part for panel in panels for part in panel.draw()] if runs else []
    write_text(Path(output), "\n".join([_HEAD.format(2 * WIDTH, HEIGHT), *filter(None, parts), "</svg>"]) + "\n")
