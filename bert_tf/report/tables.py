"""The report's tables: the data, the course of each run, and all that is needed to repeat it."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from bert_tf.report import page, words
from bert_tf.report.runs import Run, number, whole
from bert_tf.report.scales import write_value


def data(phases: Sequence[Run]) -> str:
    rows = []
    for name, read in (
        ("Dataset", lambda run: run.section("data").get("dataset")),
        ("Documents", lambda run: words.count(run.data_counts.get("num_documents"))),
        ("Training instances", lambda run: words.count(run.section("data").get("instances"))),
        ("Held-out instances", lambda run: words.count(_num_held_out(run))),
        ("Length, predictions", _shape),
        ("Padding", lambda run: words.share(run.data_counts.get("padding_share"))),
        ("Second sentence is random", lambda run: words.share(run.data_counts.get("random_next_share"))),
        ("Passes over the data", _passes),
        ("Files", lambda run: words.count(run.section("data").get("files"))),
        ("Manifest (sha256)", lambda run: (run.section("data").get("manifest_sha256") or "")[:12]),
    ):
        cells = [read(run) for run in phases]
        if any(cells):
            rows.append([name, *(cell or "-" for cell in cells)])
    if not rows:
        return ""
    lead = (
        "An instance is a pair of text pieces with some words hidden. Padding is the share of "
        "positions that hold no word."
    )
    head = ["", *(run.label for run in phases)]
    return page.heading("What it read", lead) + page.panel(page.table(head, rows))


def course(runs: Sequence[Run]) -> str:
    rows = []
    for name, read in (
        ("State", lambda run: words.state(run)[1]),
        ("Started from", _started_from),
        ("Sequences in an update", lambda run: words.count(run.setting("global_batch_size"))),
        ("Sequences in all", _num_sequences),
        ("Running time", lambda run: " ".join(words.duration(run.elapsed_secs))),
        ("Throughput, median", lambda run: words.speed(run, with_rate=True)),
        ("Time spent on", words.time_shares),
        ("Real tokens a second, median", lambda run: words.count(words.median_of(run, "tokens_per_sec"))),
        ("Padding in what was computed", lambda run: words.share(run.last("padding_share"))),
        ("Instances in a row", _instances_per_row),
        ("Highest memory use", _memory),
        ("Skipped updates", lambda run: words.count(run.last("skipped_updates"))),
        ("Taken up again", _restarts),
        ("Last report", lambda run: words.clock(run.last_time_unix)),
    ):
        cells = [read(run) for run in runs]
        if any(cells):
            rows.append([name, *(cell or "-" for cell in cells)])
    warnings = [
        [run.label, f"update {whole(event.get('update')):,}", event.get("message", "")]
        for run in runs
        for event in run.warnings
    ]
    content = page.panel(page.table(["", *(run.label for run in runs)], rows))
    if warnings:
        content += page.panel(page.table(["Warnings", "", ""], warnings[-50:]))
    return page.heading("Facts of the runs") + content if rows else ""


def repeat(runs: Sequence[Run]) -> str:
    """Command, versions and the full configuration of each run."""
    parts = []
    for run in runs:
        content = ""
        command = _command(run)
        if command:
            ranks = whole(run.setting("num_ranks"))
            where = f", on each of its {ranks:,} ranks" if ranks > 1 else ""
            content += f"<p>The command that repeats this run{where}:</p>"
            content += f"<pre>{escape(command)}</pre>"
        for name, section in (
            ("Settings", "settings"),
            ("Model", "bert_config"),
            ("Versions", "versions"),
            ("Data", "data"),
        ):
            content += page.table([name, ""], _flatten(run.section(section)))
        shown = {"settings", "bert_config", "versions", "data", "command", "identity"}
        others = {name: value for name, value in run.config.items() if name not in shown}
        content += page.table(["Other", ""], _flatten(others))
        parts.append(page.details(f"{run.label}: {run.folder}", content))
    lead = "Everything that was set, by hand or by default, and the versions it ran with."
    return page.heading("Repeating it", lead) + "".join(parts) if any(parts) else ""


def _command(run: Run) -> str:
    """The command line, an argument a line, as a shell takes it."""
    command = run.config.get("command")
    if not isinstance(command, list):
        return str(command or "")
    quoted = [shlex.quote(str(word)) for word in command]
    return " ".join(quoted[:2]) + "".join(f" \\\n  {word}" for word in quoted[2:])


def _flatten(values: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value if isinstance(value, str) else json.dumps(value, default=str)


def _num_held_out(run: Run) -> Any:
    facts = run.section("evaluation_data").get("instances")
    return run.data_counts.get("num_instances_test") if facts is None else facts


def _shape(run: Run) -> str | None:
    length, predictions = run.setting("max_seq_length"), run.setting("max_predictions_per_seq")
    return f"{length} pieces, up to {predictions} hidden" if length else None


def _passes(run: Run) -> str | None:
    instances = number(run.section("data").get("instances"))
    global_batch_size = number(run.setting("global_batch_size"))
    if not instances or not global_batch_size:
        return None
    return write_value(run.last_update * global_batch_size / instances, "number")


def _started_from(run: Run) -> str:
    return str(run.setting("init_checkpoint") or "random weights")


def _num_sequences(run: Run) -> str | None:
    size = number(run.setting("global_batch_size"))
    return words.count(run.last_update * size) if size else None


def _instances_per_row(run: Run) -> str | None:
    """Only where instances were packed."""
    value = run.last("instances_per_row")
    return f"{value:.2f}" if value and run.setting("packing") else None


def _memory(run: Run) -> str | None:
    values = [y for _, y in run.series("memory_peak_mib") if math.isfinite(y)]
    where = "of rank 0" if (number(run.setting("num_ranks")) or 1) > 1 else ""
    return f"{max(values) / 1024:,.2f} GiB {where}".strip() if values else None


def _restarts(run: Run) -> str | None:
    if not run.starts:
        return None
    return ", ".join(f"at update {update:,}" for update in run.restarts) or "never"
