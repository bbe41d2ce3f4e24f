"""How the time of one pre-training update is divided, on one core, in XLA scope "blocks": a table of shares.

TensorFlow's profiler gives the time of each operation (the fastest of several updates counts, because other programs
interrupt). Its times are used as shares of the CPU time that an update takes without profiling. The matmuls' share of
the core's peak is relative to one large matmul of the same type, measured here. The input batch is made before;
`input_pipeline` measures that. A configuration is that of `memory`: model, micro-batch, length, predictions, scope,
precision, keep or recompute.

    python -m benchmarks profile_step --configurations mini,16,128,20,blocks,fp32,keep base,4,128,20,blocks,bf16,keep
"""

from __future__ import annotations

import argparse
import collections
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from benchmarks.frame import Bench, Variant
from benchmarks.memory import describe
from bert_tf.config import compute_dtype

NEEDS = "nothing"
PEAK_SIZE, PEAK_TRIES = 2048, 5
# In a trace: a call of a function, which is named in the details, and anything else.
CALL, OPERATION = "ExecutorState::ProcessAsync::Start", re.compile(r"[^:]+:_?[A-Z]\w*")
MATMULS = ("MatMul", "Einsum")  # parts of the names of their kinds
DROPOUT = ("draw_decisions", "keep_mask")


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


def updates(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Runs in the process of a configuration: milliseconds by kind, and those of a whole update ("update")."""
    from benchmarks.made_up import made_up_rows, make_step
    from bert_tf.run.flops import pretraining_flops_per_sequence

    work = describe(settings["configuration"])
    num_steps, num_updates = settings["accumulation"], settings["num_updates"]

    def run() -> dict[str, float]:
        peak = matmul_peak(work.precision)
        step, features = make_step(work), made_up_rows(work, num_steps)
        seconds = []
        for number in range(num_updates + 2):  # the first two trace and compile
            started = time.process_time()
            float(step(features, number).gradient_norm)
            seconds.append(time.process_time() - started)
        flops = pretraining_flops_per_sequence(work.bert_config, work.max_seq_length, work.max_predictions_per_seq)
        return {
            "update": 1000 * statistics.median(seconds[2:]),
            "peak GFLOP/s": peak,
            "GFLOP": flops * num_steps * work.micro_batch_size / 1e9,
            **profiled(step, features, num_updates),
        }

    return run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--configurations", nargs="+", required=True)
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches in an update")
    parser.add_argument("--num_updates", type=int, default=5)


def run(bench: Bench) -> None:
    options = bench.options
    for text in options.configurations:
        settings = {"configuration": text, "accumulation": options.accumulation, "num_updates": options.num_updates}
        found = bench.once(Variant("benchmarks.profile_step:updates", settings)).figures
        update, peak, gflop = (found.pop(name) for name in ("update", "peak GFLOP/s", "GFLOP"))
        share = {kind: value / sum(found.values()) for kind, value in found.items()}
        rates = {"whole": 1000 * gflop / update, "matmuls": 1000 * gflop / (share["matmuls"] * update)}
        rows = [[kind, value * update, f"{value:.1%}"] for kind, value in sorted(share.items(), key=lambda x: -x[1])]
        rows += [[f"GFLOP/s of the model, {kind}", rate, f"{rate / peak:.1%}"] for kind, rate in rates.items()]
        title = f"{text}, {options.accumulation} micro-batches: {update:.0f} ms of one core"
        share_of = f"share; of the rates: of the {peak:.0f} GFLOP/s that a large matmul reaches"
        bench.table(title, ["part", "ms", share_of], rows)
