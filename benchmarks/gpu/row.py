"""The process of one row: the row as JSON in its argument, figures as JSON in its last line of output.

An empty row asks what device there is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np

from benchmarks.gpu.jobs import Job, await_turn
from bert_tf.batches.packing import Slots, best_fit, lay_out, predictions_per_row
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import PROGRAM, Workload, predict
from bert_tf.model.kernels.requirements import may_have_kernels

MASKED_SHARE, SHORTEST = 0.15, 5
NUM_FIRST_UPDATES = 3  # of which the first one is compiled, and after which bits are compared
# Memory taken, relative to the plan: the allocator takes ever larger blocks from the GPU, and may not use all of them.
# On an H200 it had taken 1.33 (Large) and 1.59 times (Base) what it needed.
GROWTH = 1.6

Batch = tuple[dict[str, Any], Optional[int]]  # features [A, B, ...] and how many of the A count


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration. Its fields are the argument of its process, and identify its line in rows.jsonl."""

    part: str  # of the report: "start" and "memory" time nothing
    bert_model: str
    length: int
    predictions: int
    precision: str
    num_accumulation_steps: int
    num_updates: int
    scope: str = "step"
    micro_batch_size: int = 1
    packing: bool = False
    num_layers: int | None = None  # None: all of the model's
    start: int = 0  # numbers rows with the same settings, which must end with the same bits

    @property
    def size(self) -> str:
        """What a peer's row has in common with ours."""
        size = f"{self.bert_model} {self.precision} {self.length}/{self.predictions}"
        return f"{size}, {self.num_accumulation_steps} x {self.micro_batch_size}"

    @property
    def title(self) -> str:
        words = [self.size, "Hugging Face on PyTorch" if self.part == "peer" else f"scope {self.scope}"]
        words += [f"{self.num_layers} layer(s)"] if self.num_layers else []
        words += [f"start {self.start}"] if self.start else []
        return ", ".join([*words, *["packed"] * self.packing])

    @property
    def workload(self) -> Workload:
        config = BertConfig.preset(self.bert_model, GOOGLE_VOCAB_SIZE)
        config = dataclasses.replace(config, num_hidden_layers=self.num_layers or config.num_hidden_layers)
        sizes = (self.length, self.predictions, self.scope, self.micro_batch_size, self.precision)
        return Workload(config, *sizes, has_kernels=may_have_kernels())

    @property
    def memory(self) -> float:
        """Bytes of the GPU that its process may take."""
        return GROWTH * predict(self.workload).total + PROGRAM

    def command(self, _: Path, peer_python: Path | None, rehearse: bool) -> list[str]:
        """The command of its process: this program, or `peer` with settings for `variants.hugging_face.make_update`."""
        settings = dataclasses.asdict(self)
        if self.part != "peer":
            return [sys.executable, "-m", "benchmarks.gpu.row", json.dumps(settings)]
        settings["bert_config"] = dataclasses.asdict(self.workload.bert_config)
        settings.update(seq_length=self.length, vocab_size=GOOGLE_VOCAB_SIZE, device="cpu" if rehearse else "cuda")
        return [str(peer_python), "-m", "benchmarks.gpu.peer", json.dumps(settings)]

    def outcome(self, code: int, job: Job) -> dict[str, Any]:
        """What was found; {"failed": reason} if the process failed."""
        return {"failed": job.failure_reason(code)} if code else json.loads(job.output_text().splitlines()[-1])


def packed_rows(work: Workload, num_steps: int, seed: int) -> Batch:
    """A packed update of generated instances with uniformly distributed lengths (unpacked, half would be padding)."""
    from benchmarks.made_up import made_up_rows
    from bert_tf.base.tensorflow import tf

    length, masked, size = work.sequence_length, work.num_predictions, num_steps * work.micro_batch_size
    lengths = np.random.default_rng(seed).integers(SHORTEST, length + 1, size)
    rows = best_fit(lengths, length)
    slots = Slots.from_rows(rows)
    slot_lengths = lengths[rows[slots], np.newaxis]
    num_masked = np.clip(np.rint(MASKED_SHARE * slot_lengths), 1, masked)
    features = {name: values.numpy().reshape(size, -1) for name, values in made_up_rows(work, num_steps).items()}
    features["input_mask"] = (np.arange(length) < slot_lengths).astype(np.int32)
    features["masked_lm_weights"] = (np.arange(masked) < num_masked).astype(np.float32)
    features["masked_lm_positions"] = 1 + features["masked_lm_positions"] % (slot_lengths - 2)
    laid_out = lay_out(features, slots, size, predictions_per_row(masked, length, MASKED_SHARE))
    shaped = {name: tf.constant(each.reshape(num_steps, work.micro_batch_size, -1)) for name, each in laid_out.items()}
    return shaped, -(-len(rows) // work.micro_batch_size)


def batches(row: Row, count: int) -> list[Batch]:
    """Batches on the host, as from the input pipeline."""
    from benchmarks.made_up import made_up_rows
    from bert_tf.base.tensorflow import tf

    with tf.device("/CPU:0"):
        if row.packing:
            return [packed_rows(row.workload, row.num_accumulation_steps, seed) for seed in range(count)]
        return [(made_up_rows(row.workload, row.num_accumulation_steps), None)] * count


def start_device(precision: str) -> tuple[dict[str, Any], str]:
    """What TensorFlow knows of the GPU (nothing without one), and its name of the device."""
    from bert_tf.base.tensorflow import tf
    from bert_tf.ranks.connect import connect

    connect(False)  # memory growth: memory is allocated as needed
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {}, "CPU:0"
    return tf.config.experimental.get_device_details(gpus[0]), "GPU:0"


def device() -> dict[str, Any]:
    from bert_tf.base.tensorflow import tf

    build, details = tf.sysconfig.get_build_info(), start_device("fp32")[0]
    return {
        "device": details.get("device_name"),
        "compute_capability": details.get("compute_capability"),
        "tensorflow": tf.__version__,
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
    }


def run(row: Row) -> dict[str, Any]:
    """What a row asks for: the bits after a few updates, or memory, or throughput."""
    from benchmarks.made_up import make_step
    from bert_tf.base.tensorflow import tf

    details, device = start_device(row.precision)
    step = make_step(row.workload)
    row_batches = batches(row, max(NUM_FIRST_UPDATES, row.num_updates))
    tf.config.experimental.reset_memory_stats(device)  # so that drawing the weights does not count

    def make_updates(count: int) -> Iterator[tuple[float, bool]]:
        """For each, the seconds that it held the host, and whether it is finite; reading that waits for its end."""
        for number, (features, num_micro_batches) in enumerate(row_batches[:count]):
            started = time.perf_counter()
            result = step(features, number, num_micro_batches=num_micro_batches)
            yield time.perf_counter() - started, result.is_finite

    started = time.perf_counter()
    first = make_updates(NUM_FIRST_UPDATES)
    finite = [bool(next(first)[1])]
    outcome: dict[str, Any] = {"first_call_secs": time.perf_counter() - started}
    finite += [bool(is_finite) for _, is_finite in first]
    if row.start:
        outcome["digest"] = hashlib.sha256(b"".join(each.numpy().tobytes() for each in step.variables)).hexdigest()
    if row.part == "speed":
        await_turn()
        started = time.perf_counter()
        held_secs, results = zip(*make_updates(row.num_updates))  # as in training: results are read only at the end
        finite.append(bool(results[-1]))
        update_secs = (time.perf_counter() - started) / row.num_updates
        counts = [count or row.num_accumulation_steps for _, count in row_batches[: row.num_updates]]
        figures = speed(row, update_secs, statistics.mean(counts), details.get("device_name", ""))
        outcome.update(figures, held_secs=statistics.mean(held_secs))
    return {
        **outcome,
        "kernels": step.model.backend.remarks,
        "is_finite": all(finite),
        "memory_peak": tf.config.experimental.get_memory_info(device)["peak"],
        "memory_planned": predict(row.workload).total,
    }


def speed(row: Row, update_secs: float, mean_count: float, device_name: str) -> dict[str, Any]:
    """Rates of updates of `mean_count` micro-batches, beside what is predicted and the device's peak."""
    from bert_tf.memory.plan import find_rank_memory
    from bert_tf.planning.gpus import recognise
    from bert_tf.run.gpus import flops_per_row, peak_tflops

    work = row.workload
    rows_per_sec = mean_count * work.micro_batch_size / update_secs
    flops = flops_per_row(work)
    peak = peak_tflops(device_name, row.precision)
    gpu = recognise(device_name, find_rank_memory(None, 1).num_bytes, row.precision) if work.scope == "step" else None
    predicted_secs = mean_count * gpu.micro_batch_secs(work) + gpu.optimizer_secs(work) if gpu else None
    return {
        "update_secs": update_secs,
        "sequences_per_sec": row.num_accumulation_steps * work.micro_batch_size / update_secs,
        "rows_per_sec": rows_per_sec,
        "predicted_rows_per_sec": rows_per_sec * update_secs / predicted_secs if predicted_secs else None,
        "mfu": rows_per_sec * flops / 1e12 / peak if peak else None,
    }


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    print(json.dumps(run(Row(**settings)) if settings else device()))
