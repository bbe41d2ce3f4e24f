"""The report's page: style, the pointer's script, and the small pieces of HTML it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bert_tf.report.charts import DARK_COLOURS, LIGHT_COLOURS, Chart, draw, style_sheet

# Pixels of the main chart, of others over the whole width, and of the rest.
MAIN, WIDE, NARROW = (1080, 400), (1080, 260), (520, 300)

_STYLE = """
:root { color-scheme: light dark; --ground: #f5f6f8; --line: #dfe3e9; {light} }
@media (prefers-color-scheme: dark) { :root { --ground: #0f1319; --line: #2b333f; {dark} } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui,
  -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 40px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.015em; }
h2 { font-size: 20px; margin: 48px 0 4px; letter-spacing: -.01em; }
h3 { font-size: 15.5px; margin: 0; }
p { margin: 4px 0; max-width: 76ch; }
.muted, figcaption, .lead { color: var(--muted); }
.lead { margin: 2px 0 18px; }
figcaption { font-size: 13.5px; line-height: 1.45; margin: 2px 0 10px; max-width: 92ch; }
.chips { display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0 0; padding: 0; list-style: none; }
.chips li { border: 1px solid var(--line); background: var(--card); border-radius: 99px;
  padding: 3px 13px; font-size: 13.5px; }
.chips b { font-weight: 600; }
.state { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 7px;
  background: var(--muted); }
.state.done { background: var(--c3); } .state.stopped { background: var(--c2); }
.state.running { background: var(--c1); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(146px, 1fr)); gap: 12px;
  margin: 26px 0 0; }
.card, figure, .panel { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.card { padding: 13px 15px 12px; }
.card .name { font-size: 13px; color: var(--muted); }
.card .figure { font-size: 27px; font-weight: 650; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.card .figure small { font-size: 14px; font-weight: 500; letter-spacing: 0; color: var(--muted); }
.card .beside { font-size: 12.5px; color: var(--muted); line-height: 1.4; }
figure { margin: 0 0 16px; padding: 16px 18px 8px; position: relative; min-width: 0; }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 16px; }
.pair figure { margin: 0; } .pair + .pair, .pair + figure { margin-top: 16px; }
svg.chart { display: block; width: 100%; height: auto; overflow: visible; }
.narrow { display: none !important; }
.cursor { stroke: var(--muted); stroke-width: 1; pointer-events: none; }
.tip { position: absolute; pointer-events: none; background: var(--ink); color: var(--card);
  border-radius: 6px; padding: 6px 10px; font-size: 12.5px; line-height: 1.45; white-space: nowrap;
  font-variant-numeric: tabular-nums; z-index: 2; opacity: .95; }
.tip b { display: block; font-weight: 600; }
.panel { padding: 6px 18px; overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 7px 18px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
thead th { font-size: 13px; color: var(--muted); font-weight: 600; }
tbody th { font-weight: 500; width: 1%; white-space: nowrap; padding-right: 32px; }
tr:last-child > * { border-bottom: 0; }
td small { display: block; color: var(--muted); font-size: 12.5px; }
.bars { padding: 14px 18px; }
.bar { display: grid; grid-template-columns: minmax(120px, 250px) 1fr 62px; gap: 12px;
  align-items: center; font-size: 14px; margin: 5px 0; font-variant-numeric: tabular-nums; }
.bar i { display: block; height: 14px; border-radius: 3px; min-width: 2px; }
.bar .track { background: var(--grid); border-radius: 3px; }
.bar b { text-align: right; font-weight: 600; }
.score { font-weight: 600; margin: 10px 0 2px; font-size: 14px; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 10px 18px; margin: 10px 0; }
summary { cursor: pointer; font-weight: 600; } details[open] summary { margin-bottom: 8px; }
details td { overflow-wrap: anywhere; }
@media (max-width: 720px) { tbody th { white-space: normal; } }
pre { background: var(--ground); border: 1px solid var(--line); border-radius: 8px; margin: 8px 0;
  padding: 12px 14px; overflow-x: auto; font: 13px/1.5 ui-monospace, "SF Mono", Menlo,
  "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 48px; font-size: 13px; color: var(--muted); }
@media (max-width: 720px) { main { padding: 24px 14px 40px; } h1 { font-size: 24px; }
  .pair { grid-template-columns: minmax(0, 1fr); } .wide { display: none !important; }
  .narrow { display: block !important; } figure { padding: 14px 10px 6px; }
  .cards { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px; }
  .card { padding: 11px 13px; } .card .figure { font-size: 24px; }
  .bar { grid-template-columns: 1fr 62px; } .bar span { grid-column: 1 / -1; } }
@media print { body { background: #fff; } figure, .card, .panel { break-inside: avoid; } }
"""

# Shows the values under the pointer; without it every number is still in the page.
_SCRIPT = """
for (const svg of document.querySelectorAll("svg.chart[data-chart]")) {
  const { frame: [left, right, top, bottom, last], phases, series } = JSON.parse(svg.dataset.chart);
  const figure = svg.closest("figure"), view = svg.viewBox.baseVal;
  const all = series.flatMap(one => one.points.map(point => point[0]));
  if (!all.length) continue;
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  const tip = document.createElement("div");
  tip.className = "tip";
  const leave = () => { cursor.remove(); tip.remove(); };
  const nearest = (list, x, of) =>
    list.reduce((a, b) => Math.abs(of(b) - x) < Math.abs(of(a) - x) ? b : a);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = view.width / box.width;
    const at = (event.clientX - box.left) * scale;
    if (at < left - 8 || at > right + 8) return leave();
    const update = nearest(all, (at - left) / (right - left) * last, x => x);
    const x = left + (right - left) * update / last;
    for (const [name, value] of [["x1", x], ["x2", x], ["y1", top], ["y2", bottom]])
      cursor.setAttribute(name, value);
    svg.append(cursor);
    const phase = [...phases].reverse().find(one => one[0] < update) || phases[0];
    const head = document.createElement("b");
    const local = (update - phase[0]).toLocaleString("en");
    head.textContent = (phase[1] ? phase[1] + ", " : "") + "update " + local;
    tip.replaceChildren(head);
    for (const one of series) {
      if (!one.points.length) continue;
      const point = nearest(one.points, update, entry => entry[0]);
      if (Math.abs(point[0] - update) > last / 60) continue;
      const line = document.createElement("div");
      line.textContent = one.label + ": " + point[1];
      tip.append(line);
    }
    figure.append(tip);
    const inside = figure.getBoundingClientRect(), pixel = x / scale + box.left - inside.left;
    tip.style.left = Math.max(4, pixel + 14 + tip.offsetWidth > inside.width
      ? pixel - 14 - tip.offsetWidth : pixel + 14) + "px";
    tip.style.top = (top / scale + box.top - inside.top + 6) + "px";
  });
}
"""


def page(title: str, body: str) -> str:
    """A whole HTML document that needs no other file. `body` is HTML, `title` is text."""
    variables = {name: f"var(--{name})" for name in LIGHT_COLOURS}
    style = _STYLE.replace("{light}", _declarations(LIGHT_COLOURS))
    style = style.replace("{dark}", _declarations(DARK_COLOURS)) + style_sheet(variables)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n"
        f"<body><main>\n{body}\n</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _declarations(colours: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in colours.items())


def heading(text: str, lead: str = "") -> str:
    return f"<h2>{escape(text)}</h2>" + (f'<p class="lead">{escape(lead)}</p>' if lead else "")


def card(name: str, figure: str, unit: str, beside: str) -> str:
    """A headline number with its name over it and what to compare it with under it."""
    return (
        f'<div class="card"><div class="name">{escape(name)}</div><div class="figure">'
        f"{escape(figure)} <small>{escape(unit)}</small></div>"
        f'<div class="beside">{escape(beside)}</div></div>'
    )


def chart_figure(chart: Chart, caption: str, size: tuple[int, int] = NARROW) -> str:
    """A chart with its title and one or two sentences; nothing where there is nothing to draw."""
    if not chart.has_points:
        return ""
    drawing = draw(chart, *size)
    if size != NARROW:
        # Text in a drawing shrinks with it, so a small screen gets a drawing of its own.
        narrow = draw(chart, *NARROW)
        drawing = f'<div class="wide">{drawing}</div><div class="narrow">{narrow}</div>'
    return f"<figure><h3>{escape(chart.title)}</h3><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def chart_pairs(charts: Iterable[tuple[Chart, str]]) -> str:
    """(chart, caption) two by two; an odd last one gets the whole width."""
    present = [(chart, caption) for chart, caption in charts if chart.has_points]
    rows = []
    for first in range(0, len(present), 2):
        row = present[first : first + 2]
        if len(row) == 1:
            rows.append(chart_figure(*row[0], WIDE))
        else:
            figures = "".join(chart_figure(*one) for one in row)
            rows.append(f'<div class="pair">{figures}</div>')
    return "".join(rows)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of texts; the first column names the row."""
    lines = [
        f'<tr><th scope="row">{escape(str(row[0]))}</th>'
        + "".join(f"<td>{escape(str(cell))}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    ]
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    header = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f"<table>{header}<tbody>{''.join(lines)}</tbody></table>" if lines else ""


def panel(content: str) -> str:
    return f'<div class="panel">{content}</div>' if content else ""


def details(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>" if content else ""


def bars(name: str, values: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars for scores from 0 to 100: (label, value, colour)."""
    rows = "".join(
        f'<div class="bar"><span>{escape(label)}</span><div class="track">'
        f'<i style="width:{min(max(value, 0), 100):.2f}%;background:var(--{colour})"></i></div>'
        f"<b>{value:.2f}</b></div>"
        for label, value, colour in values
    )
    return f'<div class="score">{escape(name)}</div>{rows}'
