"""From a row to XLA's text: our programs are lowered here, on a CPU, and compiled by TensorFlow's wheel for GPUs."""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_program.kernels import kernels
from benchmarks.gpu_program.roofline import GPUS
from benchmarks.gpu_program.rows import Row
from bert_tf.base.errors import UserError

HERE, NUM_STEPS = Path(__file__).resolve().parent, 4
COMPILER = "gpu_compiler"  # an environment of `peers`; CUDA's package there has ptxas and libdevice
KINDS = {"parameter": "arguments", "live-out": "results", "temp": "temporary"}  # of memory, by a word of the compiler's
# It fits no matmul to a GPU, because there is none.
FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_dump_hlo_as_text"


def lower(row: Row, folder: Path) -> None:
    """Writes the row's programs into `folder`. Runs in a separate process, so that its memory is freed."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from benchmarks.gpu.row import packed_rows
    from benchmarks.made_up import made_up_rows, make_state, make_step
    from bert_tf.base.tensorflow import tf

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
    from benchmarks.made_up import make_state
    from bert_tf.base.tensorflow import tf
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
    source, library = HERE / "compile.cc", package(folder, "tensorflow")
    if not shutil.which("g++"):
        raise UserError("g++ is missing, which builds the program that calls XLA's compiler: install it")
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        libraries = "-l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,--allow-shlib-undefined".split()
        places = [f"-I{library / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
        subprocess.run(["g++", "-std=c++17", "-w", source, "-o", program, *places, *libraries], check=True)
    return program


def compile_program(program: Path, module: Path, gpu: str) -> dict[str, Any]:
    """Memory and kernels; {"failed": reason} if the compiler fails."""
    cuda = package(program.parent, "nvidia/cuda_nvcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gpu").write_text(GPUS[gpu].description())
        environment = {
            **os.environ,
            "XLA_FLAGS": f"{FLAGS} --xla_gpu_cuda_data_dir={cuda} --xla_dump_to={folder}",
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
            kind = next((kind for word, kind in KINDS.items() if word in what), "constants")
            sizes[kind] += int(size)
        return {"compile_secs": secs, "bytes": dict(sizes), "kernels": list(kernels(optimised.read_text(), NUM_STEPS))}
