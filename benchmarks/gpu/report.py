"""The report of `python -m benchmarks gpu`, from the lines of its rows.jsonl."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from benchmarks.finished import Finished, Line
from benchmarks.gpu.checks import Check
from benchmarks.gpu.row import Row
from benchmarks.results import table

MIB = 1 << 20
Columns = Sequence[tuple[str, Callable[[Line], str]]]  # headings, and what they show of a line
# What a row has in common with its peer's.
COMPARED_FIELDS = tuple(
    "bert_model precision length predictions num_accumulation_steps micro_batch_size num_layers".split()
)


def number(value: float | None, digits: int = 1, factor: float = 1.0) -> str:
    return "-" if value is None else f"{factor * value:,.{digits}f}"


def speed_over_prediction(line: Line) -> str:
    """How many times as fast as predicted."""
    rate = line.get("predicted_rows_per_sec")
    return number(line["rows_per_sec"] / rate, 2) if rate else "-"


def plan_error(line: Line) -> str:
    return f"{100 * (line['memory_planned'] / line['memory_peak'] - 1):+.0f} %" if line["memory_peak"] else "-"


SPEED: Columns = (
    ("sequences/s", lambda line: number(line["sequences_per_sec"])),
    ("rows/s", lambda line: number(line.get("rows_per_sec"))),
    ("predicted", lambda line: number(line.get("predicted_rows_per_sec"))),
    ("times", speed_over_prediction),
    ("MFU %", lambda line: number(line.get("mfu"), 1, 100.0)),
    ("update ms", lambda line: number(line["update_secs"], 1, 1000.0)),
    ("held the host: ms", lambda line: number(line.get("held_secs"), 1, 1000.0)),
    ("first update s", lambda line: number(line["first_call_secs"])),
    ("finite", lambda line: "yes" if line["is_finite"] else "NO"),
)
MEMORY: Columns = (
    ("peak MiB", lambda line: number(line["memory_peak"] / MIB, 0)),
    ("planned MiB", lambda line: number(line["memory_planned"] / MIB, 0)),
    ("plan against peak", plan_error),
)


def brief(outcome: Line) -> str:
    """The outcome of a line in a few words, for the console."""
    if "failed" in outcome:
        return f"failed: {outcome['failed']}"
    if "said" in outcome:
        return outcome["said"][-1]
    if "wrong" in outcome:
        return f"{outcome['passed']} passed, {len(outcome['skipped'])} skipped, {len(outcome['wrong'])} failed"
    if "sequences_per_sec" in outcome:
        mfu, known = outcome.get("mfu"), outcome.get("predicted_rows_per_sec")
        words = [f"{number(outcome['sequences_per_sec'])} sequences/s", *([f"MFU {100 * mfu:.1f} %"] if mfu else [])]
        words += [f"{speed_over_prediction(outcome)} of what was predicted"] if known else []
        return "; ".join([", ".join(words), *outcome.get("kernels", [])])
    ran = f"runs, first update {outcome['first_call_secs']:.0f} s"
    return f"{ran}, weights {outcome['digest'][:12]}" if "digest" in outcome else f"{ran}, plan {plan_error(outcome)}"


def same_bits(lines: list[Line]) -> bool | None:
    """Whether two starts ended with the same weights; None if there are not two yet."""
    digests = [line["digest"] for line in lines_of_parts(lines, "start")]
    return len(set(digests)) == 1 if len(digests) > 1 else None


def is_right(lines: list[Line]) -> bool:
    wrong = any("failed" in line or line.get("wrong") or line.get("is_finite") is False for line in lines)
    return not wrong and same_bits(lines) is not False


def peer_columns(lines: list[Line]) -> Columns:
    """The column that says how many times as fast a line is as the peer's row of the same size."""

    def size(line: Line) -> tuple[Any, ...]:
        return tuple(line["row"][name] for name in COMPARED_FIELDS)

    peers = {size(line): line["sequences_per_sec"] for line in lines_of_parts(lines, "peer")}

    def times(line: Line) -> str:
        return number(line["sequences_per_sec"] / peers[size(line)], 2) if size(line) in peers else "-"

    return (("times the peer", times),) if peers else ()


def starts_of(lines: list[Line]) -> list[str]:
    sentence = {None: "Not two starts yet.", True: "The same.", False: "THEY DIFFER."}[same_bits(lines)]
    each = [f"- {line['title']}: {line['digest']}" for line in lines_of_parts(lines, "start")]
    return ["## The bits of two starts", "", sentence, "", *each, ""]


def checks_of(lines: list[Line]) -> list[str]:
    text = ["## Checks", ""]
    for line in lines_of_parts(lines, "doctor", "tests"):
        text += [f"{line['title']}: {brief(line)}", ""]
        if "said" in line:
            text += [f"    {row}" for row in line["said"] if not row.startswith("OK")] + [""]
        for kind in ("wrong", "skipped"):
            text += [f"- {kind}: {name}: {message}" for name, message in line.get(kind, {}).items()]
        text.append("")
    return text


def table_lines(lines: list[Line], columns: Columns) -> list[str]:
    rows = [[line["title"], *(show(line) for _, show in columns)] for line in lines]
    return [*table(["configuration", *(name for name, _ in columns)], rows), ""]


def lines_of_parts(lines: list[Line], *parts: str) -> list[Line]:
    return [line for line in lines if line["row"]["part"] in parts and "failed" not in line]


def make_opening(facts: Mapping[str, Any], lines: list[Line]) -> str:
    title = f"BERT on {facts['device']}"
    if facts["rehearsal"]:
        title = "Rehearsal on a CPU: no figure here says anything about a GPU"
    known = {**facts["versions"], **{name: each for line in lines for name, each in line.get("versions", {}).items()}}
    versions = ", ".join(f"{name} {version}" for name, version in known.items())
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


def render(finished: Finished, rows: Sequence[Row | Check]) -> str:
    order = {(row.title, row.part): number for number, row in enumerate(rows)}
    lines = sorted(finished.lines, key=lambda line: order.get((line["title"], line["row"]["part"]), len(order)))
    done = {(line["title"], line["row"]["part"]) for line in lines}
    missing = [row.title for row in rows if (row.title, row.part) not in done]
    measured = [line for line in lines_of_parts(lines, "start", "speed", "memory") if not line["row"]["packing"]]
    errors = [abs(line["memory_planned"] / line["memory_peak"] - 1) for line in measured if line["memory_peak"]]
    text = [make_opening(finished.facts, lines), *checks_of(lines), *starts_of(lines)]
    text += ["## Speed", "", *table_lines(lines_of_parts(lines, "speed", "peer"), (*peer_columns(lines), *SPEED))]
    speed = lines_of_parts(lines, "speed")
    text += [f"- {line['title']}: {remark}" for line in speed for remark in line.get("kernels", [])]
    text.append("")
    text += [
        "MFU counts the rows that are computed, padding included; sequences are instances. Predicted: rows/s by",
        "`bert_tf.planning` for this GPU's data sheet, where that is known; times: measured / predicted. The host is",
        "held until it has handed an update over; for the rest of the update's time it is free. Nothing else ran on",
        "the GPU while a row was measured.",
        "",
    ]
    if not lines_of_parts(lines, "peer"):
        text += ["No peer was measured: --peer_python names a Python with PyTorch and transformers for that.", ""]
    text += ["## Memory", "", *table_lines(measured, MEMORY)]
    if errors:
        largest, mean = max(errors), statistics.mean(errors)
        text += [f"Largest error of the plan {100 * largest:.0f} %, mean {100 * mean:.0f} %.", ""]
    failed = [f"- {line['title']}: {line['failed']}" for line in lines if "failed" in line]
    text += ["## Failed", "", *(failed or ["Nothing."]), "", "## Not run yet", ""]
    text += [f"- {title}" for title in missing] or ["Nothing."]
    return "\n".join(text) + "\n"
