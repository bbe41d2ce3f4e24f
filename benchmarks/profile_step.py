"""How the time of one pre-training update is divided, on one core, in XLA scope "blocks": a table of shares.

TensorFlow's profiler gives the time of each operation (the fastest of several updates counts, because other programs
interrupt); XLA's blocks, forward and backward, get distinct names here. The profiler's times are used as shares of the
CPU time that an update takes without profiling. The matmuls' share of the core's peak is relative to one large matmul
of the same type, measured here. The input batch is made before; input_pipeline.py measures that.

    python benchmarks/profile_step.py mini,16,128,20,blocks,fp32,keep mini,16,128,20,blocks,bf16,keep

The configurations are those of memory.py: model, micro-batch, length, predictions, scope, precision, keep or recompute.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from memory import describe

from bert_tf.config import compute_dtype
from bert_tf.run.run_folder import provenance

PEAK_SIZE, PEAK_TRIES = 2048, 5
# In a trace: a call of a function, which is told in the details, and anything else.
CALL, OPERATION = "ExecutorState::ProcessAsync::Start", re.compile(r"[^:]+:_?[A-Z]\w*")
MATMULS = ("MatMul", "Einsum")  # parts of the names of their kinds
DROPOUT = ("draw_decisions", "keep_mask")


def name_blocks() -> None:
    """Makes `bert_tf.model.blocks` compile its blocks under names that tell them apart."""
    import tensorflow as tf

    from bert_tf.model import blocks

    def compiled(function: Callable, suffix: str = "") -> Callable:
        name = getattr(function, "func", function).__name__ + suffix

        def named(*arguments: Any) -> Any:
            return function(*arguments)

        named.__name__ = name
        return tf.function(named, jit_compile=True, autograph=False)

    class NamedBlock(blocks._Block):
        def __init__(self, function: Callable, parameters: str = ""):
            super().__init__(function, parameters)
            differentiate = functools.partial(self._differentiate)
            name = getattr(function, "func", function).__name__
            self._forward = compiled(function)
            self._backward = compiled(_renamed(differentiate, name), "_gradient")

    blocks._Block = NamedBlock
    blocks.Blocks._compiled = lambda self, function: compiled(function) if self.scope == "blocks" else function


def _renamed(function: Callable, name: str) -> Callable:
    def renamed(*arguments: Any) -> Any:
        return function(*arguments)

    renamed.__name__ = name
    return renamed


def called_functions(function) -> dict[str, str]:
    """The name of each call in a traced function -> the name of the called function, without numeric suffixes."""
    definition = function._list_all_concrete_functions()[0].graph.as_graph_def()
    nodes = [*definition.node, *(node for called in definition.library.function for node in called.node_def)]
    return {
        node.name: node.attr["f"].func.name.removeprefix("__inference_").rstrip("0123456789").rstrip("_")
        for node in nodes
        if "f" in node.attr
    }


def kind_of(name: str, operation: str, calls: dict[str, str], is_accumulating: bool) -> str:
    """The row of the table in which an operation counts."""
    if not is_accumulating:
        return "optimizer, clipping"
    called = next((calls[name[start:]] for start in _suffixes(name) if name[start:] in calls), None)
    if called is not None:
        return f"dropout bits: {called}" if called in DROPOUT else f"block {called}"
    if any(word in operation for word in MATMULS):
        return "matmuls"
    if operation in ("AddN", "AddV2", "Fill"):
        return "sums of gradients"
    return f"other: {operation}" if operation in ("Cast", "UnsortedSegmentSum", "ResourceGather") else "other: the rest"


def _suffixes(name: str) -> list[int]:
    """All trailing parts of a path, because calls within a loop have the loop's path before their own."""
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == "/")]


def operations(folder: Path) -> Iterator[tuple[str, str, float]]:
    """Name, kind and milliseconds of each operation in a trace; a compiled function is one operation."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    spaces = (xplane_pb2.XSpace.FromString(path.read_bytes()) for path in folder.rglob("*.xplane.pb"))
    for plane in (plane for space in spaces for plane in space.planes):
        for event in (event for line in plane.lines for event in line.events):
            title, millis = plane.event_metadata[event.metadata_id].name, event.duration_ps / 1e9
            if title == CALL:
                details = {
                    plane.stat_metadata[stat.metadata_id].name: stat.str_value
                    or plane.stat_metadata[stat.ref_value].name
                    for stat in event.stats
                }
                yield details["name"], details["kernel_type"], millis
            elif OPERATION.fullmatch(title):
                name, _, operation = title.rpartition(":")
                yield name, operation, millis


def milliseconds_by_kind(folder: Path, calls: dict[str, str], num_updates: int) -> dict[str, float]:
    """Milliseconds of one update by kind; of each operation the fastest run counts, because others were interrupted."""
    found: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    for name, operation, millis in operations(folder):
        found[name, operation].append(millis)
    by_kind: dict[str, float] = collections.defaultdict(float)
    for (name, operation), times in found.items():
        kind = kind_of(name, operation, calls, "while/" in name or operation == "Fill")
        by_kind[kind] += min(times) * len(times) / num_updates
    return by_kind


def profiled(step, features, num_updates: int) -> dict[str, float]:
    """Milliseconds of one update by kind, from the profiler."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for number in range(num_updates):
            float(step(features, number).gradient_norm)
        tf.profiler.experimental.stop()
        calls = {**called_functions(step._accumulate), **called_functions(step._apply)}
        return milliseconds_by_kind(Path(folder), calls, num_updates)


def matmul_peak(precision: str) -> float:
    """GFLOP/s of a large matmul of the given type."""
    import tensorflow as tf

    dtype = compute_dtype(precision)
    x = tf.cast(tf.random.stateless_normal([PEAK_SIZE, PEAK_SIZE], [1, 2]), dtype)
    multiply = tf.function(lambda: tf.reduce_sum(tf.cast((x @ x)[:1], tf.float32)))
    seconds = []
    for _ in range(PEAK_TRIES + 1):
        started = time.process_time()
        float(multiply())
        seconds.append(time.process_time() - started)
    return 2 * PEAK_SIZE**3 / min(seconds) / 1e9


def measure(text: str, num_steps: int, num_updates: int) -> dict[str, Any]:
    """Measures one configuration in this process."""
    name_blocks()
    from made_up import made_up_rows, make_step

    from bert_tf.run.flops import pretraining_flops_per_sequence

    work = describe(text)
    peak = matmul_peak(work.precision)
    step, features = make_step(work), made_up_rows(work, num_steps)
    seconds = []
    for number in range(num_updates + 2):  # the first two trace and compile
        started = time.process_time()
        float(step(features, number).gradient_norm)
        seconds.append(time.process_time() - started)
    flops = pretraining_flops_per_sequence(work.bert_config, work.max_seq_length, work.max_predictions_per_seq)
    return {
        "update_ms": 1000 * statistics.median(seconds[2:]),
        "peak_gflops": peak,
        "gflop": flops * num_steps * work.micro_batch_size / 1e9,
        "millis": profiled(step, features, num_updates),
    }


def report(text: str, num_steps: int, found: dict[str, Any]) -> None:
    total, update, peak = sum(found["millis"].values()), found["update_ms"], found["peak_gflops"]
    millis = {kind: value / total * update for kind, value in found["millis"].items()}
    model, size, length, predictions, scope, precision, kept = text.split(",")
    whole, products = (1000 * found["gflop"] / spent for spent in (update, millis["matmuls"]))
    print(
        f"## {model}, {num_steps} x {size} sequences of {length}, {predictions} predictions, {precision}, {kept}, "
        f"scope {scope}\n"
    )
    print(
        f"{update:.0f} ms: {whole:.0f} GFLOP/s of the model, {100 * whole / peak:.0f} % of the {peak:.0f} that a "
        f"large matmul reaches here; the matmuls by themselves {products:.0f}, {100 * products / peak:.0f} %.\n"
    )
    print("| part | ms | share |\n|---|---|---|")
    for kind, value in sorted(millis.items(), key=lambda item: -item[1]):
        print(f"| {kind} | {value:.1f} | {100 * value / update:.1f} % |")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configurations", nargs="+")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches in an update")
    parser.add_argument("--num_updates", type=int, default=5)
    parser.add_argument("--here", action="store_true", help="measure one configuration in this process, as JSON")
    args = parser.parse_args()
    if args.here:
        print(json.dumps(measure(args.configurations[0], args.accumulation, args.num_updates)))
        return
    threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    facts = provenance()
    versions = facts["versions"]
    print(
        f"# Where the time of an update goes\n\nOne core of {facts['processor']}; processor time; Python "
        f"{versions['python']}, TensorFlow {versions.get('tensorflow') or versions['tensorflow-cpu']}; "
        f"{args.num_updates} updates each.\n"
    )
    for text in args.configurations:
        done = subprocess.run(
            [
                sys.executable,
                __file__,
                "--here",
                text,
                "--accumulation",
                str(args.accumulation),
                "--num_updates",
                str(args.num_updates),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads},
        )
        if done.returncode:
            sys.exit(f"error: {text}: ended with code {done.returncode}, see above")
        report(text, args.accumulation, json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
