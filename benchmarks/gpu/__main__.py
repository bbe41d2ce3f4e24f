"""All that is asked of a GPU, in one command, which can be interrupted at any moment and resumed.

    bash scripts/first_gpu.sh        # sets up, then: python -m benchmarks gpu --output results/first_gpu

First what the doctor says, and the tests that compare the GPU with the CPU. Then rows: a row is one configuration,
measured in its own process with a time limit, so a crash or lack of memory costs only that row. They are in order of
importance: whether the compiled step runs at all; sequences/s and MFU (the fraction of the GPU's dense peak) of
BERT-Large and BERT-Base at 128 and 512, beside what `bert_tf.planning` predicts, in each precision, packed and not; how
long the host is held; memory by micro-batch compared with the memory plan. Last the other tests of what is computed.

After each a line is appended to `rows.jsonl`, and `report.md` is rewritten. The next start does what is missing; to do
something once more, delete its line. Records are generated, so neither data, a network nor Horovod is needed. Nothing
is measured about learning.

    bash scripts/first_gpu.sh --rehearse

does the same with `tiny` on the CPU, to check that everything works. Its figures mean nothing. The exit code is 1 if
anything was wrong or failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.finished import Finished
from benchmarks.gpu.checks import Check, run_program, timed_out
from benchmarks.gpu.report import brief, is_right, render
from benchmarks.gpu.row import Row
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.machine import GIB, ask_nvidia_smi
from bert_tf.memory.plan import find_device, largest_micro_batch
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

    models: tuple[str, ...] = ("large", "base")  # the first one is measured in more ways
    lengths: tuple[tuple[int, int], ...] = ((128, 20), (512, 80))
    largest: tuple[int, ...] = (256, 64)  # micro-batch at each length: larger ones are not faster
    num_accumulation_steps: int = 8
    num_updates: int = 8
    memory_sizes: tuple[tuple[int, ...], ...] = ((1, 16, 64, 128), (1, 8, 32))
    precision_of_blocks: str = "fp16"  # in which CPUs are very slow


REHEARSAL = Sizes(("tiny",), ((32, 4), (64, 8)), (4, 2), 3, 2, ((1, 4), (2,)), "tf32")


def plan_rows(sizes: Sizes, memory: float, has_bf16: bool) -> list[Row]:
    """All rows, the most important ones first; `has_bf16`: the GPU has bfloat16 and TF32."""

    def update(part: str, at: int, precision: str, size: int | None = None, model: str = "", **changes: Any) -> Row:
        settings = {"num_accumulation_steps": sizes.num_accumulation_steps, "num_updates": sizes.num_updates, **changes}
        row = Row(part, model or sizes.models[0], *sizes.lengths[at], precision, **settings)
        best = largest_micro_batch(row.workload, PLANNED_SHARE * memory, sizes.largest[at])
        return dataclasses.replace(row, micro_batch_size=size or best)

    short = {"num_accumulation_steps": 2, "num_updates": 2}
    precisions = ("fp16", "bf16", "tf32") if has_bf16 else ("fp16", "fp32")
    rows = [update("start", 0, "fp16", min(8, sizes.largest[0]), **short)]
    rows += [
        update("speed", at, precision, model=model)
        for precision in precisions
        for at in (0, 1)
        for model in sizes.models
    ]
    rows += [update("speed", at, "fp16", packing=True) for at in (1, 0)]
    rows.append(update("speed", 0, sizes.precision_of_blocks, scope="blocks"))
    rows += [update("memory", at, "fp16", size, **short) for at in (0, 1) for size in sizes.memory_sizes[at]]
    rows += [
        update("memory", 1, precision, sizes.memory_sizes[1][-1], scope=scope, **short)
        for precision, scope in ((precisions[-1], "step"), (sizes.precision_of_blocks, "blocks"))
    ]
    return rows


FIRST = Check("doctor", "the doctor"), Check("tests", "tests that compare the GPU with the CPU", "gpu")
LAST = Check("tests", "the other tests of what is computed", "computes and not gpu and not slow")
# Without programs of which the suite starts the same on a CPU.
REHEARSED = FIRST[0], Check("tests", "tests that compare the CPU with itself", "gpu and not slow")


def run_process(what: dict[str, Any], limit_secs: float, log: Path, rehearse: bool) -> dict[str, Any]:
    """The JSON in the last line of a row's process, or {"failed": reason}."""
    code, text = run_program(["-m", "benchmarks.gpu.row", json.dumps(what)], limit_secs, log, rehearse)
    if code is None:
        return timed_out(limit_secs)
    if code == 0:
        return json.loads(text.splitlines()[-1])
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    telling = [line for line in said if any(word in line for word in TELLING)]
    return {"failed": f"exit code {code}: {(telling or said or ['nothing was said'])[-1][:300]}"}


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
        **found,
        "driver": next(iter(ask_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")), "unknown"),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)},
        "versions": {**there["versions"], "tensorflow": found["tensorflow"]},
        "processor": there["processor"],
        "num_cores": there["num_cores"],
    }


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of rows.jsonl, report.md and the logs")
    parser.add_argument("--budget_minutes", type=float, default=20.0, help="nothing runs past this; %(default)g")
    parser.add_argument("--row_minutes", type=float, default=10.0, help="limit of each row; %(default)g")
    parser.add_argument("--only", default="", help="only what has this in its title")
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on the CPU")
    args = parser.parse_args(argv[1:])
    end = time.monotonic() + 60.0 * args.budget_minutes
    logs = args.output / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    finished = Finished(args.output / "rows.jsonl", find_facts(args, logs))
    memory = 2.0 * GIB if args.rehearse else find_device(None, 1).memory
    has_bf16 = args.rehearse or tuple(finished.facts["compute_capability"]) >= (8, 0)
    if args.rehearse:
        rows = [*REHEARSED, *plan_rows(REHEARSAL, memory, has_bf16)]
    else:
        rows = [*FIRST, *plan_rows(Sizes(), memory, has_bf16), LAST]
    planned = [{"title": row.title, "part": row.part} for row in rows]
    page = args.output / "report.md"
    for number, row in enumerate(rows, 1):
        left = end - time.monotonic()
        if finished.find(dataclasses.asdict(row)) or args.only not in row.title:
            continue
        if left < SHORTEST_ROW_SECS:
            print(f"stopped: {args.budget_minutes:g} minutes are over; the same command goes on", flush=True)
            break
        print(f"{number} of {len(rows)}, {left / 60:.0f} minutes left: {row.title}", flush=True)
        limit, log = min(left, 60.0 * args.row_minutes), logs / f"row_{number}.log"
        if isinstance(row, Check):
            outcome = row.run(limit, log, args.rehearse)
        else:
            outcome = run_process(dataclasses.asdict(row), limit, log, args.rehearse)
        if outcome.pop("timed_out", False) and limit == left:
            continue  # ended by the budget, not by its own time limit: not recorded, so that the next start does it
        print(f"  {brief(outcome)}", flush=True)
        finished.add(dataclasses.asdict(row), {"title": row.title, "commit": provenance()["commit"], **outcome})
        write_whole(page, render(finished, planned))
    write_whole(page, render(finished, planned))
    print(f"The page is {page}, and all figures are in {args.output / 'rows.jsonl'}.", flush=True)
    if not args.rehearse:
        print("Please open an issue of the project with both: no GPU has been measured so far.", flush=True)
    return int(not all(map(is_right, finished.lines)))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
