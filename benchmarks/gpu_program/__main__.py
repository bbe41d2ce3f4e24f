"""The program that XLA makes of a training step for a V100, an A100 and an H100, on a machine that has none of them.

TensorFlow's wheel for GPUs holds XLA's compiler, which needs neither a GPU nor a driver. This benchmark lowers the
step's accumulation and the optimizer's functions here, on a CPU, compiles them for each GPU, and writes what the
compiler says (memory, launches, matmuls, traffic) and how fast a roofline predicts the program to be into
benchmarks/results/gpu_program.jsonl and .md. Nothing runs on a GPU and no matmul is tuned for one.

    python -m benchmarks gpu_program [--only WORDS]

Rows that are in the first of these files are not made again; to make one again, delete its line. The step of
tf-models-official is compiled, too, and checks the roofline against NVIDIA's published figures. Programs of 2 and 4
layers are compiled, and the other layers are extrapolated from the difference between them; `check` rows also compile
all layers.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.finished import Finished
from benchmarks.gpu_program.compiler import COMPILER, HERE, compile_program, lower, prepare_compiler
from benchmarks.gpu_program.kernels import Kernel
from benchmarks.gpu_program.report import RESULTS, in_order, render
from benchmarks.gpu_program.roofline import GPUS, on_tensor_cores, total_secs
from benchmarks.gpu_program.rows import LAYERS, PREDICTIONS, Row, plan_rows
from bert_tf.bert_config import PRESETS
from bert_tf.memory.plan import predict
from bert_tf.run.run_folder import provenance, write_whole

NEEDS = "1.4 GB of disk for the compiler, 2 GB for the peer, and g++"
PEER = "tf_models"  # an environment of `peers`


def summarise(found: dict[str, Any], row: Row) -> dict[str, float]:
    """Numbers that grow linearly with the layers. `each_`: of a micro-batch; `once_`: of an update."""
    gpu, summary = GPUS[row.gpu], collections.Counter()
    for kind, size in found["bytes"].items():
        summary[f"bytes {kind}"] = size
    for kernel in found["kernels"]:
        often = "each" if kernel.times > 1 else "once"
        alone = dataclasses.replace(kernel, times=1)
        summary[f"{often} launches"] += 1
        summary[f"{often} secs"] += total_secs([alone], gpu, row.precision)
        is_matmul = kernel.kind == "matmul"
        summary[f"{often} {'matmul' if is_matmul else 'other'} bytes"] += kernel.bytes
        if is_matmul:
            where = "tensor cores" if on_tensor_cores(kernel, gpu, row.precision) else "other cores"
            summary[f"{often} FLOPs on {where}"] += kernel.flops
            summary[f"{often} matmul secs"] += total_secs([alone], gpu, row.precision)
            if often == "each":
                summary[f"matmul {kernel.dtype} {'x'.join(map(str, kernel.shape))} {where}"] += 1
        else:
            summary[f"{often} {array_of(kernel, row)} secs"] += total_secs([alone], gpu, row.precision)
            if kernel.kind not in ("fusion", "copy"):
                summary[f"{often} {kernel.kind}"] += 1
    return dict(summary)


def array_of(kernel: Kernel, row: Row) -> str:
    """The largest array that a kernel touches, by its size."""
    config = row.workload(1).bert_config
    rows, masked = row.micro_batch_size * row.length, PREDICTIONS[row.length]
    known = {
        rows * config.num_attention_heads * row.length: "scores",
        rows * config.intermediate_size: "feed-forward",
        rows * config.hidden_size: "hidden",
        rows * 3 * config.hidden_size: "hidden",
        row.micro_batch_size * masked * config.padded_vocab_size: "logits",
        row.micro_batch_size * masked * config.vocab_size: "logits",
        config.padded_vocab_size * config.hidden_size: "table",
    }
    return known.get(kernel.shape[0], "weights" if kernel.shape[0] % config.hidden_size == 0 else "rest")


def extrapolate(few: dict[str, float], more: dict[str, float], row: Row) -> dict[str, float]:
    low, high = LAYERS
    share = (row.num_layers - high) / (high - low)
    return {
        name: more.get(name, 0) + share * (more.get(name, 0) - few.get(name, 0))
        for name in dict.fromkeys([*more, *few])
    }


def measure(row: Row, program: Path, peer: str | None, scratch: Path) -> dict[str, Any]:
    files = [scratch / f"{num_layers}.pb" for num_layers in row.layers]
    what = dataclasses.asdict(row)
    if row.part == "peer":
        more = {"layers": row.layers, "hidden_size": PRESETS[row.bert_model][1], "predictions": PREDICTIONS[row.length]}
        command = [peer, HERE / "peer.py", json.dumps({**what, **more}), *files]
    else:
        this_program = [sys.executable, "-m", "benchmarks", "gpu_program"]
        command = [*this_program, "--lower", json.dumps(what), "--folder", scratch]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        return {"failed": f"not lowered: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}"}
    if row.part == "optimizer":
        return measure_optimizer(row, program, scratch)
    summaries, secs = [], 0.0
    for file in files:
        found = compile_program(program, file, row.gpu)
        if "failed" in found:
            return found
        secs += found["compile_secs"]
        summaries.append(summarise(found, row))
    whole = extrapolate(*summaries[:2], row)
    memory = predict(row.workload(row.num_layers))
    held = sum(whole[f"bytes {kind}"] for kind in ("arguments", "results", "temporary"))
    return {
        "figures": rounded(whole),
        **({"compiled_whole": rounded(summaries[2])} if row.part == "check" else {}),
        "memory": held + memory.first_moments + memory.second_moments,
        "sequences_per_sec": row.micro_batch_size / whole["each secs"],
        "compile_secs": round(secs, 1),
    }


def rounded(figures: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.6g}") for name, value in figures.items()}


def measure_optimizer(row: Row, program: Path, scratch: Path) -> dict[str, Any]:
    """Launches, bytes and seconds of all compiled functions of an update of the weights."""
    total, secs = collections.Counter(), 0.0
    for file in sorted(scratch.glob("*.pb")):
        found = compile_program(program, file, row.gpu)
        if "failed" in found:
            return found
        often, secs = int(file.name.split("_")[0]), secs + found["compile_secs"]
        total["calls"] += often
        for kernel in found["kernels"]:
            total["launches"] += often
            total["bytes"] += often * kernel.bytes
            total["secs"] += often * total_secs([kernel], GPUS[row.gpu], row.precision)
    return {"figures": dict(total), "compile_secs": round(secs, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only rows with this in their titles, such as 'V100 large fp16'")
    parser.add_argument("--no_peers", action="store_true", help="leave tf-models-official out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="%(default)s")
    parser.add_argument("--lower", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lower:
        lower(Row(**json.loads(args.lower)), args.folder)
        return
    program = prepare_compiler(peers.python_of(COMPILER))
    finished, page = Finished(args.results, {}), args.results.with_suffix(".md")
    for row in plan_rows():
        key = dataclasses.asdict(row)
        if args.only not in row.title or finished.find(key) or (row.part == "peer" and args.no_peers):
            continue
        peer = peers.python_of(PEER) if row.part == "peer" else None
        with tempfile.TemporaryDirectory() as scratch:
            found = measure(row, program, peer, Path(scratch))
        print(f"{row.title}: {found.get('failed') or found.get('sequences_per_sec') or found['figures']}", flush=True)
        finished.add(key, {**{name: provenance()[name] for name in ("commit", "versions")}, **found})
        write_whole(page, render(in_order(finished)))
    write_whole(page, render(in_order(finished)))


if __name__ == "__main__":
    main()
