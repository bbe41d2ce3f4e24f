"""All that is asked of a GPU, in one command, which can be interrupted at any moment and resumed.

    bash scripts/first_gpu.sh        # sets up, then: python -m benchmarks gpu --output results/first_gpu

A row is one configuration in its own process with a time limit, so a crash or lack of memory costs only that row. Rows
come in groups (`rows`). The first one says in ten minutes: what the doctor finds; whether the compiled step runs, and
whether two starts of it end with the same bits; what the most telling tests say; sequences/s and MFU (the fraction of
the GPU's dense peak) of BERT-Large and BERT-Base at 128 and 512, beside Hugging Face's BERT on PyTorch and beside what
`bert_tf.planning` predicts; memory beside the plan. Then, with fewer layers, precisions, packing, and memory by
micro-batch; at last the other tests. A group's processes start together, as many as the memory of the GPU and this
machine's cores and memory allow, and are measured one at a time (`jobs`).

After each row a line is appended to `rows.jsonl`, and `report.md` is rewritten. The next start does what is missing; to
do something once more, delete its line. Records are generated, so neither data, a network nor Horovod is needed.
`--rehearse` does the same with `tiny` on the CPU, to check that everything works; its figures mean nothing. The exit
code is 1 if anything was wrong or failed.
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
from benchmarks.frame import existing_path, run_command
from benchmarks.gpu.jobs import Job, Limits, run_all
from benchmarks.gpu.report import brief, is_right, render
from benchmarks.gpu.rows import REHEARSAL, Sizes, plan_rows
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import write_text
from bert_tf.base.machine.hardware import GIB, ask_nvidia_smi, count_cores, free_memory
from bert_tf.base.signals import STOP_SIGNALS, STOPPED_EXIT_CODE, handling_signals
from bert_tf.memory.plan import find_rank_memory
from bert_tf.run.run_folder import provenance

NEEDS = "a GPU, or --rehearse"
# The share of the GPU's memory for all processes together.
USABLE_SHARE = 0.95
# Bytes of the host's memory for a process that compiles 24 layers.
HOST_MEMORY = 6.0 * GIB
CORES_PER_PROCESS = 2
# Prefixes of the environment variables that change what is measured.
SETTINGS = ("XLA_", "TF_XLA_", "TF_GPU_", "TF_CUDA_", "TF_ENABLE_", "TF_NUM_", "CUDA_", "NVIDIA_TF32_")


def environment(rehearse: bool) -> dict[str, str]:
    # Without growth a process would take all of the GPU's memory from the others.
    return {"CUDA_VISIBLE_DEVICES": ""} if rehearse else {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def find_facts(rehearse: bool) -> dict[str, Any]:
    """Facts that hold for all rows: device, versions, driver."""
    command = [sys.executable, "-m", "benchmarks.gpu.row", "{}"]
    facts = json.loads(run_command(command, **environment(rehearse)).splitlines()[-1])
    if facts["device"] is None and not rehearse:
        raise UserError("TensorFlow finds no GPU here; --rehearse tries all of this on the CPU")
    source = provenance()
    return {
        "rehearsal": rehearse,
        **facts,
        "driver": next(iter(ask_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")), "unknown"),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)},
        "versions": {**source["versions"], "tensorflow": facts["tensorflow"]},
        "processor": source["processor"],
        "num_cores": source["num_cores"],
    }


def make_job(row: Any, log: Path, args: argparse.Namespace) -> Job:
    return Job(row, row.command(log, args.peer_python, args.rehearse), row.memory, log)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder of rows.jsonl, report.md and the logs")
    parser.add_argument("--budget_minutes", type=float, default=10.0, help="nothing runs past this; %(default)g")
    parser.add_argument("--row_minutes", type=float, default=6.0, help="limit of each row; %(default)g")
    parser.add_argument("--only", default="", help="only what has this in its title")
    parser.add_argument(
        "--peer_python", type=existing_path, help="a Python with PyTorch and transformers, for the rows beside ours"
    )
    parser.add_argument("--rehearse", action="store_true", help="small sizes, on the CPU")
    return parser.parse_args(argv[1:])


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    args = parse(argv)
    end = time.monotonic() + 60.0 * args.budget_minutes
    logs, page = args.output / "logs", args.output / "report.md"
    logs.mkdir(parents=True, exist_ok=True)
    if args.peer_python:
        run_command([args.peer_python, "-c", "import torch, transformers"])
    else:
        print("no peer is measured; --peer_python names a Python with PyTorch and transformers for that", flush=True)
    finished = Finished(args.output / "rows.jsonl", find_facts(args.rehearse))
    memory = find_rank_memory(None, 1).num_bytes
    has_bf16 = args.rehearse or tuple(finished.facts["compute_capability"]) >= (8, 0)
    groups = plan_rows(REHEARSAL if args.rehearse else Sizes(), memory, has_bf16, bool(args.peer_python))
    rows = [row for group in groups for row in group]
    num_at_once = min(count_cores() // CORES_PER_PROCESS, int(free_memory() / HOST_MEMORY))
    limits = Limits(end, 60.0 * args.row_minutes, USABLE_SHARE * memory, max(2, num_at_once))

    def started(job: Job) -> None:
        print(f"{(end - time.monotonic()) / 60:.1f} minutes left: {job.row.title}", flush=True)

    def ended(job: Job, code: int | None) -> None:
        late = {"failed": f"not done within {args.row_minutes:g} minutes"}
        result = late if code is None else job.row.outcome(code, job)
        outcome = {"title": job.row.title, "commit": provenance()["commit"], **result}
        print(f"  {job.row.title}: {brief(outcome)}", flush=True)
        finished.add(dataclasses.asdict(job.row), outcome)
        write_text(page, render(finished, rows))

    with handling_signals(STOP_SIGNALS, lambda _: sys.exit(STOPPED_EXIT_CODE)):
        for group in groups:
            missing = [row for row in group if args.only in row.title and not finished.find(dataclasses.asdict(row))]
            jobs = [make_job(row, logs / f"row_{rows.index(row)}.log", args) for row in missing]
            if not run_all(jobs, limits, environment(args.rehearse), started=started, ended=ended):
                print(f"stopped: {args.budget_minutes:g} minutes are over; the same command goes on", flush=True)
                break
    write_text(page, render(finished, rows))
    print(f"The page is {page}, and all figures are in {args.output / 'rows.jsonl'}.", flush=True)
    if not args.rehearse:
        print("Please open an issue of the project with both.", flush=True)
    return int(not is_right(finished.lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
