"""The program that XLA makes of a training step for a V100, an A100 and an H100, on a machine that has none of them.

TensorFlow's wheel for GPUs holds XLA's compiler, which needs neither a GPU nor a driver. This benchmark lowers the
step's accumulation and the optimizer's functions here, on a CPU, compiles them for each GPU, and writes what the
compiler says (memory, launches, matmuls, traffic) and how fast a roofline predicts the program to be into
benchmarks/results/gpu_program.json and .md. Nothing runs on a GPU and no matmul is tuned for one.

    python -m benchmarks gpu_program [--only WORDS]

Rows that are already in the JSON are not made again; to make one again, delete it there. tf-models-official's step is
compiled, too, and checks the roofline against NVIDIA's published figures. Programs of 2 and 4 layers are compiled, and
the other layers are extrapolated from the difference between them; `check` rows also compile all layers.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.gpu_kernels import Kernel, kernels
from benchmarks.gpu_program_report import PUBLISHED, RESULTS, write_report
from benchmarks.gpu_roofline import GPUS, on_tensor_cores, total_secs
from bert_tf.base.errors import UserError
from bert_tf.bert_config import PRESETS, BertConfig
from bert_tf.memory.plan import Workload, predict
from bert_tf.run.run_folder import provenance, write_whole

HERE = Path(__file__).resolve().parent
NEEDS = "1.4 GB of disk for the compiler, 2 GB for the peer, and g++"
PEER, COMPILER = "tf_models", "gpu_compiler"  # environments of `peers`; CUDA's package there has ptxas and libdevice
VOCABULARY, NUM_STEPS, LAYERS = 30522, 4, (2, 4)
PREDICTIONS = {128: 20, 512: 80}
# Micro-batches of NVIDIA's published figures (TF2, one GPU) by GPU and bytes of the compute type, at 128 and at 512.
MICRO_BATCHES = {("V100", 2): (60, 10), ("V100", 4): (32, 6), ("A100", 2): (312, 40), ("A100", 4): (176, 22)}
# Larger ones in half precision, for which our program has the memory (V100 32 GB, A100 80 GB). They divide the global
# batches of NVIDIA's presets, 61,440 and 30,720 on 16 V100, 79,872 and 30,720 on 8 A100.
LARGE_MICRO_BATCHES = {"V100": (160, 32), "A100": (416, 64)}


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration, compiled for one GPU."""

    gpu: str
    bert_model: str
    length: int
    precision: str
    micro_batch_size: int
    packing: bool = False
    part: str = "program"  # or "memory", "check", "peer", "optimizer"

    @property
    def title(self) -> str:
        words = [self.part, self.gpu, self.bert_model, self.precision, f"{self.length}", f"x {self.micro_batch_size}"]
        return " ".join([*words, "packed" if self.packing else "plain"])

    @property
    def num_layers(self) -> int:
        return PRESETS[self.bert_model][0]

    @property
    def layers(self) -> tuple[int, ...]:
        return (*LAYERS, self.num_layers) if self.part == "check" else LAYERS

    def workload(self, num_layers: int) -> Workload:
        config = BertConfig.preset(self.bert_model, VOCABULARY)
        config = dataclasses.replace(config, num_hidden_layers=num_layers)
        return Workload(
            config, self.length, PREDICTIONS[self.length], "step", self.micro_batch_size, precision=self.precision
        )


def plan_rows() -> list[Row]:
    """All rows, the most important ones first."""

    def row(gpu: str, model: str, length: int, precision: str, size: int | None = None, **changes: Any) -> Row:
        like = "V100" if gpu == "V100" else "A100"
        best = MICRO_BATCHES[like, 2 if precision in ("fp16", "bf16") else 4][length == 512]
        return Row(gpu, model, length, precision, size or best, **changes)

    lengths, halves = (128, 512), ("fp16", "bf16")
    singles = {gpu: "fp32" if gpu == "V100" else "tf32" for gpu in GPUS}
    rows = [row(gpu, "large", length, "fp16") for gpu in ("V100", "A100") for length in lengths]
    rows += [row(gpu, "large", length, precision, part="peer") for gpu, precision, length in PUBLISHED]
    rows += [row("V100", "large", 128, "fp16", 8, part="optimizer")]
    rows += [row("V100", "large", 128, "fp16", 8, part="memory"), row("V100", "large", 512, "fp16", 2, part="memory")]
    rows += [row(gpu, "large", length, singles[gpu]) for gpu in ("V100", "A100") for length in lengths]
    rows += [row("H100", "large", length, precision) for precision in halves for length in lengths]
    rows += [row("A100", "base", length, "fp16") for length in lengths]
    rows += [row("A100", "large", length, "fp16", packing=True) for length in lengths]
    rows += [row("V100", "base", 128, "fp16", 8, part="check")]
    rows += [row(gpu, "large", 128, "bf16") for gpu in ("V100", "A100")]
    rows += [
        row(gpu, model, length, precision, packing=packing)
        for packing in (False, True)
        for model in ("large", "base")
        for gpu in GPUS
        for length in lengths
        for precision in (*halves, singles[gpu])
    ]
    rows += [row("V100", "large", 128, "fp16", size, part="check") for size in (8, None)]
    rows += [
        row(gpu, "large", length, "fp16", size, packing=packing)
        for packing in (False, True)
        for gpu, sizes in LARGE_MICRO_BATCHES.items()
        for length, size in zip(lengths, sizes)
    ]
    rows = list(dict.fromkeys(rows))
    return rows


def lower(row: Row, folder: Path) -> None:
    """Writes the row's programs into `folder`. Runs in a separate process, so that its memory is freed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    from benchmarks.gpu_row import packed_rows
    from benchmarks.made_up import made_up_rows, make_state, make_step

    if row.part == "optimizer":
        lower_optimizer(row, folder)
        return
    for num_layers in row.layers:
        work = row.workload(num_layers)
        step = make_step(work, state=make_state(work, for_gpu=True))
        features, count = packed_rows(work, NUM_STEPS, 0) if row.packing else (made_up_rows(work, NUM_STEPS), None)
        arguments = (features, tf.ones([2]), tf.constant(1.0), tf.constant(1, tf.uint64), tf.constant(0, tf.int64))
        lowered = step._accumulate.experimental_get_compiler_ir(
            *arguments, None if count is None else tf.constant(count)
        )
        (folder / f"{num_layers}.pb").write_bytes(lowered(stage="hlo_serialized"))


def lower_optimizer(row: Row, folder: Path) -> None:
    """LAMB's compiled functions for each shape of variable; the files' names say how often an update calls them."""
    import tensorflow as tf

    from benchmarks.made_up import make_state
    from bert_tf.optimizer import keras_optimizers

    seen: dict[str, list[Any]] = {}

    def record(_: Any, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            shapes = [(tuple(each.shape), each.dtype.name) for each in tf.nest.flatten(arguments)]
            seen.setdefault(f"{id(function)} {shapes}", [function, arguments, 0])[2] += often
            return function(*arguments)

        return call

    keras_optimizers._BertOptimizer._compiled = record
    state = make_state(row.workload(1))
    variables, optimizer = state.model.trainable_variables, state.optimizer
    optimizer.build(variables)
    for variable in variables:
        often = row.num_layers if "/layer_" in variable.name else 1
        gradient = tf.fill(variable.shape, 1e-3)
        optimizer._update(variable, gradient, tf.constant(1.0), tf.constant(1e-3), tf.constant(1.0), tf.constant(True))
    for number, (function, arguments, count) in enumerate(seen.values()):
        compiled = tf.function(function, jit_compile=True, autograph=False)
        lowered = compiled.experimental_get_compiler_ir(*arguments)(stage="hlo_serialized")
        (folder / f"{count}_{number}.pb").write_bytes(lowered)


def package(folder: Path, name: str) -> Path:
    """The folder of a package in the compiler's environment."""
    found = next(folder.glob(f"lib/python*/site-packages/{name}"), None)
    if found is None:
        raise UserError(f"{folder} has no {name}: it needs the packages of benchmarks/peers/{COMPILER}.txt")
    return found


def prepare_compiler(python: str) -> Path:
    """The program that calls the compiler of this Python's environment, where it is built if it does not exist."""
    folder = Path(python).parents[1]
    program = folder / "gpu_compile"
    source, library = HERE / "gpu_compile.cc", package(folder, "tensorflow")
    if not shutil.which("g++"):
        raise UserError("g++ is missing, which builds the program that calls XLA's compiler: install it")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        libraries = ["-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2", "-Wl,--allow-shlib-undefined"]
        subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-w",
                f"-I{library / 'include'}",
                source,
                "-o",
                program,
                f"-L{library}",
                *libraries,
                f"-Wl,-rpath,{library}",
            ],
            check=True,
        )
    return program


def compile_program(program: Path, module: Path, gpu: str) -> dict[str, Any]:
    """Memory and kernels; {"failed": reason} if the compiler fails."""
    cuda = package(program.parent, "nvidia/cuda_nvcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gpu").write_text(GPUS[gpu].description())
        flags = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_dump_hlo_as_text"
        environment = {
            **os.environ,
            "XLA_FLAGS": f"{flags} --xla_gpu_cuda_data_dir={cuda} --xla_dump_to={folder}",
            "PATH": f"{cuda / 'bin'}:{os.environ['PATH']}",
        }
        started = time.monotonic()
        done = subprocess.run([program, module, folder / "gpu"], env=environment, text=True, capture_output=True)
        if done.returncode:
            return {"failed": (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1][:300]}
        secs = time.monotonic() - started
        (optimised,) = folder.glob("*gpu_after_optimizations.txt")
        (buffers,) = folder.glob("*gpu_after_optimizations-buffer-assignment.txt")
        sizes = collections.Counter()
        for size, what in re.findall(r"^allocation \d+: size (\d+), (.*)$", buffers.read_text(), re.M):
            kind = next(
                (
                    k
                    for k, word in (("arguments", "parameter"), ("results", "live-out"), ("temporary", "temp"))
                    if word in what
                ),
                "constants",
            )
            sizes[kind] += int(size)
        return {"compile_secs": secs, "bytes": dict(sizes), "kernels": list(kernels(optimised.read_text(), NUM_STEPS))}


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
            summary[f"{often} {array_of(kernel, row)} bytes"] += kernel.bytes
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
        command = [peer, str(HERE / "gpu_peer.py"), json.dumps({**what, **more}), *map(str, files)]
    else:
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "gpu_program",
            "--lower",
            json.dumps(what),
            "--folder",
            str(scratch),
        ]
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
    parser.add_argument("--peer_python", action="append", default=[], metavar="PEER=PYTHON", help="an environment")
    parser.add_argument("--results", type=Path, default=RESULTS, help="%(default)s")
    parser.add_argument("--lower", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lower:
        lower(Row(**json.loads(args.lower)), args.folder)
        return
    given, rows = peers.given(args.peer_python, (PEER, COMPILER)), plan_rows()
    program = prepare_compiler(given.get(COMPILER) or peers.python_of(COMPILER))
    lines = json.loads(args.results.read_text())["rows"] if args.results.exists() else {}
    for row in rows:
        if args.only not in row.title or row.title in lines or (row.part == "peer" and args.no_peers):
            continue
        peer = (given.get(PEER) or peers.python_of(PEER)) if row.part == "peer" else None
        with tempfile.TemporaryDirectory() as scratch:
            found = measure(row, program, peer, Path(scratch))
        print(f"{row.title}: {found.get('failed') or found.get('sequences_per_sec') or found['figures']}", flush=True)
        lines[row.title] = {"row": dataclasses.asdict(row), "commit": provenance()["commit"], **found}
        write_results(args.results, {each.title: lines[each.title] for each in rows if each.title in lines})
    write_results(args.results, lines)


def write_results(path: Path, lines: dict[str, Any]) -> None:
    for line in lines.values():
        if "memory" in line:
            row = Row(**line["row"])
            line["planned"] = predict(row.workload(row.num_layers)).total
    write_whole(path, json.dumps({"versions": provenance()["versions"], "rows": lines}, indent=1) + "\n")
    write_report(path)


if __name__ == "__main__":
    main()
