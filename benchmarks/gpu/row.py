"""The process of one row: the row as JSON in its argument, figures as JSON in its last line of output.

An empty row asks what device there is.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from typing import Any, Optional

import numpy as np

from bert_tf.batches.packing import Slots, best_fit, lay_out, predictions_per_row
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import Workload, predict

MASKED_SHARE, SHORTEST = 0.15, 5
NUM_TRIALS = 3  # updates measured one by one, waiting for each

Batch = tuple[dict[str, Any], Optional[int]]  # features [A, B, ...] and how many of the A count


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration. Its dictionary is the argument of its process, and identifies its line in rows.jsonl."""

    part: str  # of the report
    bert_model: str
    length: int
    predictions: int
    precision: str
    num_accumulation_steps: int
    num_updates: int
    scope: str = "step"
    micro_batch_size: int = 1
    packing: bool = False

    @property
    def title(self) -> str:
        words = [
            f"{self.bert_model} {self.precision} {self.length}/{self.predictions}",
            f"{self.num_accumulation_steps} x {self.micro_batch_size}",
            f"scope {self.scope}",
        ]
        return ", ".join([*words, *["packed"] * self.packing])

    @property
    def workload(self) -> Workload:
        config = BertConfig.preset(self.bert_model, GOOGLE_VOCAB_SIZE)
        return Workload(config, self.length, self.predictions, self.scope, self.micro_batch_size, self.precision)


def packed_rows(work: Workload, num_steps: int, seed: int) -> Batch:
    """A packed update of generated instances with uniformly distributed lengths (unpacked, half would be padding)."""
    from bert_tf.base.tensorflow import tf

    rng, length, masked = np.random.default_rng(seed), work.sequence_length, work.num_predictions
    size = num_steps * work.micro_batch_size
    lengths = rng.integers(SHORTEST, length + 1, size)
    rows = best_fit(lengths, length)
    places = Slots.of(rows)
    order = rows[places]
    own = lengths[order, np.newaxis]
    is_token = np.arange(length) < own
    num_masked = np.clip(np.rint(MASKED_SHARE * own), 1, masked)
    features = {
        "input_ids": rng.integers(5, GOOGLE_VOCAB_SIZE, [size, length]) * is_token,
        "input_mask": is_token.astype(np.int64),
        "segment_ids": np.zeros([size, length], np.int64),
        "masked_lm_positions": rng.integers(1, own - 1, [size, masked]),
        "masked_lm_ids": rng.integers(5, GOOGLE_VOCAB_SIZE, [size, masked]),
        "masked_lm_weights": (np.arange(masked) < num_masked).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, [size, 1]),
    }
    laid_out = lay_out(features, places, size, predictions_per_row(masked, length, MASKED_SHARE))
    shape = (num_steps, work.micro_batch_size)
    with tf.device("/CPU:0"):
        shaped = {name: tf.constant(values.reshape(*shape, -1)) for name, values in laid_out.items()}
    return shaped, -(-len(rows) // work.micro_batch_size)


def batches(row: Row, count: int) -> list[Batch]:
    """Batches on the host, as from the input pipeline."""
    from benchmarks.made_up import made_up_rows
    from bert_tf.base.tensorflow import tf

    if row.packing:
        return [packed_rows(row.workload, row.num_accumulation_steps, seed) for seed in range(count)]
    with tf.device("/CPU:0"):
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


def update(row: Row) -> dict[str, Any]:
    """Throughput, memory, and how long the host was blocked."""
    from benchmarks.made_up import make_step
    from bert_tf.base.tensorflow import tf
    from bert_tf.memory.plan import find_device
    from bert_tf.planning.gpus import recognise
    from bert_tf.run.gpus import peak_tflops, pretraining_flops_per_sequence

    work, num_steps = row.workload, row.num_accumulation_steps
    details, place = start_device(row.precision)
    name = details.get("device_name", "")
    step = make_step(work)
    given = batches(row, max(NUM_TRIALS, row.num_updates))
    tf.config.experimental.reset_memory_stats(place)  # so that drawing the weights does not count

    def one(number: int) -> tuple[float, float, Any]:
        features, count = given[number % len(given)]
        started = time.perf_counter()
        result = step(features, number, num_micro_batches=count)
        handed_over = time.perf_counter() - started
        float(result.gradient_norm)
        return handed_over, time.perf_counter() - started, result

    first = one(0)[1]
    trials = [one(number) for number in range(NUM_TRIALS)]
    started = time.perf_counter()
    for number in range(row.num_updates):  # as in training: results are read only at the end
        features, count = given[number]
        result = step(features, number, num_micro_batches=count)
    finite = bool(result.is_finite)
    secs = (time.perf_counter() - started) / row.num_updates
    used = [count or num_steps for _, count in given[: row.num_updates]]
    rows_computed = statistics.mean(used) * work.micro_batch_size
    flops = pretraining_flops_per_sequence(work.bert_config, work.sequence_length, work.num_predictions)
    tflops = rows_computed * flops / secs / 1e12
    peak = peak_tflops(name, row.precision)
    gpu = recognise(name, find_device(None, 1).memory, row.precision) if work.scope == "step" else None
    return {
        "first_call_secs": first,
        "update_secs": secs,
        "handed_over_secs": statistics.median(x[0] for x in trials),
        "waited_for_secs": statistics.median(x[1] for x in trials),
        "is_finite": finite,
        "sequences_per_sec": num_steps * work.micro_batch_size / secs,
        "rows_per_sec": rows_computed / secs,
        "predicted_rows_per_sec": rows_computed
        / (statistics.mean(used) * gpu.micro_batch_secs(work) + gpu.optimizer_secs(work))
        if gpu
        else None,
        "model_tflops": tflops,
        "peak_tflops": peak,
        "mfu": tflops / peak if peak else None,
        "memory_peak": tf.config.experimental.get_memory_info(place)["peak"],
        "memory_planned": predict(work).total,
    }


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(update(Row(**asked)) if asked else device()))
