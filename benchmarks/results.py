"""Results as JSON, and the pages made from them: ``python -m benchmarks tables`` makes all of them again."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object, write_text

FOLDER = Path(__file__).resolve().parent / "results"
# Options that say how a benchmark is run, not what it measures.
OPTIONS = ("results", "label", "note", "trials")
UNSET = (None, False, "")
BEGIN, END = "<!-- from here on written by python -m benchmarks tables -->\n\n", "\n<!-- up to here -->\n"
Part = Mapping[str, Any]


class Spread(NamedTuple):
    """Median, lowest and highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        median = number(self.median)
        return median if self.low == self.high else f"{median} ({number(self.low)} to {number(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def number(value: Any) -> str:
    """A number as text, with at least three digits; words are left as they are."""
    if not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 or value % 1 == 0 else f"{value:.3g}"


def rate(part: Part, sample: Sequence[Any]) -> float:
    """Work per second, or turns if no amount is known, by the part's clock."""
    amount = part["amount"] or 1.0
    return (sample[2][amount] if isinstance(amount, str) else amount) / sample[part["clock"] == "cpu"]


def ratios(part: Part, name: str) -> Spread:
    """How many times as fast a variant was as the comparison's first one, round by round."""
    first = next(iter(part["variants"].values()))
    return spread([rate(part, ours) / rate(part, theirs) for theirs, ours in zip(first, part["variants"][name])])


def rates(part: Part, name: str) -> Spread:
    return spread([rate(part, sample) for sample in part["variants"][name]])


def comparison(part: Part) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of a comparison: medians of the turns, with their spread."""
    variants, unit, amount = part["variants"], part["unit"], part["amount"]
    per = "processor second" if part["clock"] == "cpu" else "second"
    figures = list(dict.fromkeys(name for turns in variants.values() for each in turns for name in each[2]))
    columns = ["", "seconds", "processor seconds", *([f"{unit} a {per}"] if amount else [])]
    columns += [f"times the first's rate, by {per}s", *figures]
    rows = []
    for name, samples in variants.items():
        row = [name, *(spread([each[clock] for each in samples]) for clock in (0, 1))]
        row += [rates(part, name)] if amount else []
        row.append(ratios(part, name))
        row += [spread([each[2][key] for each in samples]) if key in samples[0][2] else "" for key in figures]
        rows.append(row)
    return columns, rows


def part_lines(part: Part) -> list[str]:
    columns, rows = comparison(part) if "variants" in part else (part["columns"], part["rows"])
    heading = [f"### {part['title']}", ""]
    return [*heading, *table(columns, rows), ""]


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [[name.strip() for name in columns], *([str(number(cell)) for cell in row] for row in rows)]
    head, *body = [f"| {' | '.join(line)} |" for line in lines]
    return [head, "|---" * len(columns) + "|", *body]


def section(result: Mapping[str, Any]) -> list[str]:
    """One run: its label, machine and settings, and its parts."""
    machine, load = result["hardware"], result.get("load")
    rounds = result["configuration"].get("rounds")
    options = " ".join(option(name, value) for name, value in result["configuration"].items() if value not in UNSET)
    command = [f"    python -m benchmarks {result['benchmark']} {options}", ""] if options else []
    versions = ", ".join(f"{name} {' and '.join(numbers)}" for name, numbers in result["versions"].items())
    features = f" with {', '.join(machine['features'])}" if machine["features"] else ""
    commit = result["commit"] or "not noted"
    facts = f"{result['cores']} of {machine['num_cores']} cores{features}; {versions}; commit {commit}."
    if load:
        facts += f" Load {load['before']:.1f} before, {load['lowest']:.1f} to {load['highest']:.1f} during."
    if any("variants" in part for part in result["parts"]):
        facts += f" {rounds} rounds, variants by turns; medians (lowest to highest)."
    label = f"{result['label']}, " if result["label"] else ""
    lines = [f"## {label}{result['date']}: {machine['processor']}", "", *command, facts, ""]
    lines += [line for note in result["notes"] for line in (note, "")]
    return [*lines, *(line for part in result["parts"] for line in part_lines(part))]


def option(name: str, value: Any) -> str:
    """An option as it is typed."""
    if value is True:
        return f"--{name}"
    return f"--{name} {' '.join(shlex.quote(str(each)) for each in (value if isinstance(value, list) else [value]))}"


def page(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """All runs of a benchmark."""
    lines = [
        f"# {name}",
        "",
        results[-1]["what"],
        "",
        "Made by `python -m benchmarks tables` from the JSON beside it.",
        "",
    ]
    return "\n".join([*lines, *(line for result in results for line in section(result))]).rstrip() + "\n"


def result_file(folder: Path, name: str, label: str) -> Path:
    return folder / (f"{name}.{label}.json" if label else f"{name}.json")


def write(file: Path, result: Mapping[str, Any]) -> None:
    # JSON has no number for the spread of a single seed, or the loss of a trial that diverged: such a one is a text.
    result = json.loads(json.dumps(result), parse_constant=str)
    write_text(file, json.dumps(result, indent=1) + "\n")
    name = file.name.split(".")[0]
    text = page(name, read_all(file.parent)[name])
    write_text(file.parent / f"{name}.md", text)


def read_all(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of a folder by benchmark: one for each label, which is added."""
    results: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        name, _, label = file.stem.partition(".")
        results.setdefault(name, []).append({"label": label, **read_json_object(file, "delete it, or restore it")})
    return results


def with_tables(text: str, tables: str) -> str:
    """The text of a document with new `tables` between the two comments that say what writes them."""
    before, begin, rest = text.partition(BEGIN)
    if not begin or END not in rest:
        raise UserError(f"the page has no place for tables: the lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + tables + END + rest.partition(END)[2]
