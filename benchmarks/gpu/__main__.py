"""All measurements on a GPU in one command, which can be interrupted at any moment and resumed.

    python -m benchmarks gpu --output results/gpu_benchmark --budget_minutes 55

A row is one configuration, measured in its own process with a time limit, so a crash or lack of memory costs only that
row. Rows are in order of importance: whether the compiled step runs at all; sequences/s and MFU (the fraction of the
GPU's dense peak), packed and not; how long the host is held; memory by micro-batch compared with the memory plan.

After each row there is a line more in `rows.jsonl`, and a new `report.md`. The next start measures missing rows; to
measure a row once more, delete its line. Records are generated, so neither data, a network nor Horovod is needed.

    python -m benchmarks gpu --rehearse --output /tmp/rehearsal --budget_minutes 20

does the same with `tiny` on the CPU, to check that everything works. Its figures mean nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.finished import Finished
from benchmarks.gpu.report import render
from benchmarks.gpu.row import Row
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.machine import GIB, ask_nvidia_smi
from bert_tf.memory.device import find_device
from bert_tf.memory.plan import largest_micro_batch
from bert_tf.run.run_folder import provenance, write_whole

NEEDS = "a GPU, or --rehearse"
# By the plan, which was never checked on a GPU, a micro-batch may take this fraction of the GPU's memory.
PLANNED_SHARE = 0.7
# No row is started with less time than this left in the budget.
SHORTEST_ROW_SECS = 45.0
# Prefixes of the environment variables that change what is measured.
SETTINGS = ("XLA_", "TF_XLA_", "TF_GPU_", "TF_CUDA_", "TF_ENABLE_", "TF_NUM_", "CUDA_", "NVIDIA_TF32_")
# Words that mark the line of a log that says why a process failed.
TELLING = ("Error", "error", "RESOURCE_EXHAUSTED", "Unknown")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Settings that differ between a GPU and a rehearsal."""

    lengths: tuple[tuple[int, int], ...] = ((128, 20), (512, 80))
    largest: tuple[int, ...] = (256, 64)  # micro-batch at each length: larger ones are not faster
    num_accumulation_steps: int = 8
    num_updates: int = 8
    memory_sizes: tuple[tuple[int, ...], ...] = ((1, 16, 64, 128), (1, 8, 32))


REHEARSAL = Sizes(((32, 4), (64, 8)), (4, 2), 3, 2, ((1, 4), (2,)))


def plan_rows(args: argparse.Namespace, sizes: Sizes, memory: float) -> list[Row]:
    """All rows, the most important ones first."""

    def update(part: str, at: int, precision: str, size: int | None = None, **changes: Any) -> Row:
        settings = {"num_accumulation_steps": sizes.num_accumulation_steps, "num_updates": sizes.num_updates, **changes}
        row = Row(part, args.bert_model, *sizes.lengths[at], precision, **settings)
        best = largest_micro_batch(row.workload, PLANNED_SHARE * memory, sizes.largest[at])
        return dataclasses.replace(row, micro_batch_size=size or best)

    short = {"num_accumulation_steps": 2, "num_updates": 2}
    rows = [update("start", 0, "fp16", min(8, sizes.largest[0]), **short), update("speed", 0, "fp16")]
    rows += [
        update("speed", at, precision)
        for precision, at in (("bf16", 0), ("fp16", 1), ("bf16", 1), ("tf32", 0), ("tf32", 1))
    ]
    rows += [update("speed", at, "fp16", packing=True) for at in (1, 0)]
    rows.append(update("speed", 0, "fp16", scope="blocks"))
    rows += [update("memory", at, "fp16", size, **short) for at in (0, 1) for size in sizes.memory_sizes[at]]
    rows += [
        update("memory", 1, precision, sizes.memory_sizes[1][-1], scope=scope, **short)
        for precision, scope in (("tf32", "step"), ("fp16", "blocks"))
    ]
    return rows


def run_process(what: dict[str, Any], limit_secs: float, log: Path, rehearse: bool) -> dict[str, Any]:
    """The JSON in the last line of a process's output, or {"failed": reason}."""
    environment = dict(os.environ)
    if rehearse:
        # On a CPU only oneDNN's allocator counts memory, and TensorFlow disables oneDNN on some CPUs.
        environment.update(CUDA_VISIBLE_DEVICES="", TF_ENABLE_ONEDNN_OPTS="1")
    command = [sys.executable, "-m", "benchmarks.gpu.row", json.dumps(what)]
    options: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with open(log, "w", encoding="utf-8") as errors:
        try:
            done = subprocess.run(command, **options, stderr=errors, timeout=limit_secs)
        except subprocess.TimeoutExpired:
            return {"failed": f"not done within {limit_secs / 60:.1f} minutes", "timed_out": True}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in said if any(word in line for word in TELLING)]
    return {"failed": f"exit code {done.returncode}: {(telling or said or ['nothing was said'])[-1][:300]}"}


def find_facts(args: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Facts that hold for all rows: device, versions, driver."""
    found = run_process({}, 300.0, logs / "device.log", args.rehearse)
    if "failed" in found:
        raise UserError(f"TensorFlow does not start: {found['failed']}; see {logs / 'device.log'}")
    if found["device"] is None and not args.rehearse:
        raise UserError("TensorFlow finds no GPU here; --rehearse tries all of this on the CPU")
    there = provenance()
    return {
        "rehearsal": args.rehearse,
        "bert_model": args.bert_model,
        **found,
        "driver": next(iter(ask_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")), "unknown"),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)},
        "versions": {**there["versions"], "tensorflow": found["tensorflow"]},
        "processor": there["processor"],
        "num_cores": there["num_cores"],
    }


@exit_on_user_error
def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of rows.jsonl, report.md and the logs")
    parser.add_argument("--bert_model", help="default: large; of a rehearsal: tiny")
    parser.add_argument("--budget_minutes", type=float, default=60.0, help="no row runs past this")
    parser.add_argument("--row_minutes", type=float, default=10.0, help="limit of each row")
    parser.add_argument("--only", default="", help="only rows with this in their titles")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on the CPU")
    args = parser.parse_args(argv[1:])
    end = time.monotonic() + 60.0 * args.budget_minutes
    args.bert_model = args.bert_model or ("tiny" if args.rehearse else "large")
    logs = args.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    finished = Finished(args.output / "rows.jsonl", find_facts(args, logs))
    memory = 2.0 * GIB if args.rehearse else find_device(None, 1).memory
    rows = plan_rows(args, REHEARSAL if args.rehearse else Sizes(), memory)
    planned = [{"title": row.title, "part": row.part} for row in rows]
    for number, row in enumerate(rows, 1):
        left = end - time.monotonic()
        if finished.find(dataclasses.asdict(row)) or args.only not in row.title:
            continue
        if left < SHORTEST_ROW_SECS:
            print(f"stopped: {args.budget_minutes:g} minutes are over; the same command goes on", flush=True)
            break
        print(f"row {number} of {len(rows)}, {left / 60:.0f} minutes left: {row.title}", flush=True)
        limit = min(left, 60.0 * args.row_minutes)
        outcome = run_process(dataclasses.asdict(row), limit, logs / f"row_{number}.log", args.rehearse)
        if outcome.pop("timed_out", False) and limit == left:
            continue  # ended by the budget, not by its own time limit: not recorded, so that the next start measures it
        print(f"  {outcome.get('failed', 'done')}", flush=True)
        finished.add(dataclasses.asdict(row), {"title": row.title, "commit": provenance()["commit"], **outcome})
        write_whole(args.output / "report.md", render(finished, planned))
    write_whole(args.output / "report.md", render(finished, planned))
    print(f"report: {args.output / 'report.md'}", flush=True)


if __name__ == "__main__":
    main(sys.argv)
