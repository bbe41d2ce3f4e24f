"""The report of `python -m benchmarks gpu`, from the lines of its rows.jsonl."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.finished import Finished, Line
from benchmarks.results import Columns, column_table

MIB = 1 << 20


def number(value: float | None, digits: int = 1, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:,.{digits}f}"


def predicted(line: Line) -> str:
    """How many times as fast as predicted."""
    known = line["predicted_rows_per_sec"]
    return number(line["rows_per_sec"] / known, 2) if known else "-"


def planned(line: Line) -> str:
    return f"{100 * (line['memory_planned'] / line['memory_peak'] - 1):+.0f} %" if line["memory_peak"] else "-"


SPEED: Columns = (
    ("sequences/s", lambda line: number(line["sequences_per_sec"])),
    ("rows/s", lambda line: number(line["rows_per_sec"])),
    ("predicted", lambda line: number(line["predicted_rows_per_sec"])),
    ("times", predicted),
    ("TFLOP/s", lambda line: number(line["model_tflops"])),
    ("MFU %", lambda line: number(line["mfu"], 1, 100.0)),
    ("update ms", lambda line: number(line["update_secs"], 1, 1000.0)),
    ("read after each: ms", lambda line: number(line["waited_for_secs"], 1, 1000.0)),
    ("of that the host was held: ms", lambda line: number(line["handed_over_secs"], 1, 1000.0)),
    ("first call s", lambda line: number(line["first_call_secs"])),
    ("finite", lambda line: "yes" if line["is_finite"] else "NO"),
)
MEMORY: Columns = (
    ("peak MiB", lambda line: number(line["memory_peak"] / MIB, 0)),
    ("planned MiB", lambda line: number(line["memory_planned"] / MIB, 0)),
    ("plan against peak", planned),
)


def brief(outcome: Line) -> str:
    """What a person who waits is told of a line."""
    if "failed" in outcome:
        return f"failed: {outcome['failed']}"
    if "said" in outcome:
        return outcome["said"][-1]
    if "wrong" in outcome:
        return f"{outcome['passed']} passed, {len(outcome['skipped'])} skipped, {len(outcome['wrong'])} failed"
    mfu = "" if outcome["mfu"] is None else f", MFU {100 * outcome['mfu']:.1f} %"
    times = predicted(outcome)
    return f"{number(outcome['sequences_per_sec'])} sequences/s{mfu}" + f", {times} of what was predicted" * (
        times != "-"
    )


def is_right(line: Line) -> bool:
    return not ("failed" in line or line.get("wrong"))


def checks_of(lines: list[Line]) -> list[str]:
    text = ["## Checks", ""]
    for line in of_part(lines, "doctor", "tests"):
        text += [f"{line['title']}: {brief(line)}", ""]
        if "said" in line:
            text += [f"    {said}" for said in line["said"] if not said.startswith("OK")] + [""]
        for kind in ("wrong", "skipped"):
            text += [f"- {kind}: {name}: {message}" for name, message in line.get(kind, {}).items()]
        text.append("")
    return text


def rows_of(lines: list[Line], columns: Columns) -> list[str]:
    return column_table(["configuration"], columns, (([line["title"]], line) for line in lines))


def of_part(lines: list[Line], *parts: str) -> list[Line]:
    return [line for line in lines if line["row"]["part"] in parts and "failed" not in line]


def opening(facts: Mapping[str, Any], lines: list[Line]) -> str:
    title = f"BERT on {facts['device']}"
    if facts["rehearsal"]:
        title = "Rehearsal on a CPU: no figure here says anything about a GPU"
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    commits = ", ".join(sorted({str(line["commit"]) for line in lines})) or "-"
    capability = ".".join(map(str, facts["compute_capability"] or ["-"]))
    environment = " ".join(f"{name}={value}" for name, value in facts["environment"].items())
    return f"""# {title}

- device: {facts["device"] or "CPU"}, compute capability {capability}; driver {facts["driver"]}; built for
  CUDA {facts["cuda"]}, cuDNN {facts["cudnn"]}
- host: {facts["processor"]}, {facts["num_cores"]} cores
- versions: {versions}; commit {commits}
- environment: {environment}
- one process a row; vocabulary 30522; made-up records: full rows, and for packing instances of all
  lengths alike; dropout 0.1; LAMB; A x B: A micro-batches of B rows an update
"""


def render(finished: Finished, planned_rows: list[Line]) -> str:
    lines = finished.lines
    done = {(line["title"], line["row"]["part"]) for line in lines}
    missing = [row["title"] for row in planned_rows if (row["title"], row["part"]) not in done]
    measured = [line for line in of_part(lines, "start", "speed", "memory") if not line["row"]["packing"]]
    errors = [abs(line["memory_planned"] / line["memory_peak"] - 1) for line in measured if line["memory_peak"]]
    text = [opening(finished.facts, lines), *checks_of(lines)]
    text += ["## Speed", "", *rows_of(of_part(lines, "start", "speed"), SPEED)]
    text += [
        "MFU counts the rows that are computed, padding included; sequences are instances. Predicted: rows/s by",
        "`bert_tf.planning` for this GPU's data sheet, where that is known; times: measured / predicted. The host is",
        "held until it has handed an update over; for the rest of the update's time it is free.",
        "",
    ]
    text += ["## Memory", "", *rows_of(measured, MEMORY)]
    if errors:
        largest, mean = max(errors), statistics.mean(errors)
        text += [f"Largest error of the plan {100 * largest:.0f} %, mean {100 * mean:.0f} %.", ""]
    failed = [f"- {line['title']}: {line['failed']}" for line in lines if "failed" in line]
    text += ["## Failed", "", *(failed or ["Nothing."]), "", "## Not run yet", ""]
    text += [f"- {title}" for title in missing] or ["Nothing."]
    return "\n".join(text) + "\n"
