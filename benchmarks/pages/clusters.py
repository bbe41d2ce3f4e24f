"""The tables of docs/clusters.md: the planner beside what was published.

Sources: the tables of performance in the README of NVIDIA's TensorFlow 2 code (DeepLearningExamples), the article
about 47 and 67 minutes, and the rates and times that DeepSpeed and NVIDIA's PaddlePaddle code name.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

from benchmarks.results import table
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import FLOAT, Workload
from bert_tf.planning.gpus import find_gpu
from bert_tf.planning.recipe_time import START_SECS, Cluster, plan_recipe, update_time

PREDICTIONS = {128: 20, 512: 80}
LENGTHS = tuple(PREDICTIONS)
# NVIDIA's published sequences/s (BERT-Large, TF2, one GPU, TensorFlow 21.02 container).
PUBLISHED = {
    ("v100-32", "fp16", 128): 206.5,
    ("v100-32", "fp16", 512): 40.95,
    ("v100-32", "fp32", 128): 49.97,
    ("v100-32", "fp32", 512): 11.06,
    ("a100-80", "fp16", 128): 485.59,
    ("a100-80", "fp16", 512): 96.52,
    ("a100-80", "tf32", 128): 282.98,
    ("a100-80", "tf32", 512): 54.92,
}
# A DGX-2H's V100 have 450 W instead of 350: mean ratio of the published rates of one DGX-2H and one DGX-2.
DGX_2H = 1.12


class Machine(NamedTuple):
    gpu: str
    gpus: int
    network: float  # bytes/s of a node
    speed: float = 1.0


MACHINES = {
    "DGX-2": Machine("v100-32", 16, 100e9),
    "DGX-2H": Machine("v100-32", 16, 100e9, DGX_2H),
    "DGX A100": Machine("a100-80", 8, 200e9),
}
# NVIDIA TF2: machine, precision, length, micro-batch, global batch; sequences/s of all GPUs by their number.
RATES = (
    ("DGX-2", "fp16", 128, 60, 61440, {4: 789.75, 8: 1561.77, 16: 3077.99}),
    ("DGX-2", "fp16", 512, 10, 30720, {4: 158.5, 8: 312.03, 16: 614.94}),
    ("DGX-2", "fp32", 128, 32, 65536, {4: 194.02, 8: 367.9, 16: 762.22}),
    ("DGX-2", "fp32", 512, 6, 30720, {4: 43.05, 8: 85.51}),
    ("DGX-2", "fp32", 512, 4, 32768, {16: 161.38}),
    ("DGX-2H", "fp16", 128, 60, 61440, {16: 3528.51, 64: 13370.21, 256: 42697.42, 512: 84223.16}),
    ("DGX-2H", "fp16", 512, 10, 30720, {16: 678.35, 64: 2678.29, 256: 7834.72, 512: 18786.93}),
    ("DGX-2H", "fp32", 128, 32, 65536, {16: 841.72, 64: 3060.49, 256: 10383.57, 512: 20094.14}),
    ("DGX-2H", "fp32", 512, 4, 32768, {16: 180.0, 64: 646.76, 256: 2204.72, 512: 4196.15}),
    ("DGX A100", "fp16", 128, 312, 79872, {8: 3803.82, 16: 7551.37, 64: 29711.11, 256: 110280.73}),
    ("DGX A100", "fp16", 512, 40, 30720, {8: 749.73, 16: 1491.87, 64: 5870.83, 256: 22506.23}),
    ("DGX A100", "tf32", 128, 176, 90112, {8: 2062.98, 16: 4084.76, 64: 16134.02, 256: 59569.77}),
    ("DGX A100", "tf32", 512, 22, 33792, {8: 431.89, 16: 739.14, 64: 2926.58, 256: 11240.5}),
)


class Training(NamedTuple):
    """A published time of the whole recipe."""

    source: str
    machine: str
    nodes: int
    precision: str
    micro_batches: tuple[int, int]
    global_batches: tuple[int, int]
    hours: float
    rates: tuple[float, float] | None = None  # of one GPU, where the code is not NVIDIA TF2
    with_start: bool = True  # whether the published time is taken to have the start of both phases in it


TRAININGS = (
    Training("NVIDIA TF2, 2.02 h", "DGX A100", 32, "fp16", (312, 40), (79872, 30720), 2.02),
    Training("NVIDIA TF2, 3.57 h", "DGX A100", 32, "tf32", (176, 22), (90112, 33792), 3.57),
    Training("NVIDIA TF2, 2.67 h", "DGX-2H", 32, "fp16", (56, 10), (57344, 30720), 2.67),
    Training("NVIDIA TF2, 8.02 h", "DGX-2H", 32, "fp32", (32, 4), (65536, 32768), 8.02),
    Training("article, 47 min", "DGX-2H", 92, "fp16", (44, 11), (64768, 32384), 47 / 60, with_start=False),
    Training("article, 67 min", "DGX-2H", 64, "fp16", (64, 8), (65536, 32768), 67 / 60, with_start=False),
    Training("PaddlePaddle, 1.1 h", "DGX A100", 32, "fp16", (256, 32), (65536, 32768), 1.1, (694, 264), False),
    Training("DeepSpeed, 44 min", "DGX-2", 64, "fp16", (64, 8), (65536, 32768), 44 / 60, (272, 52), False),
    Training("NVIDIA TF2's README, 4.5 days", "DGX-2", 1, "fp16", (60, 10), (61440, 30720), 4.5 * 24),
)


def make_cluster(machine: Machine, precision: str, num_gpus: int) -> Cluster:
    gpu = find_gpu(machine.gpu, precision)
    return Cluster(gpu, max(1, num_gpus // machine.gpus), min(machine.gpus, num_gpus), machine.network)


def published_rates(machine: Machine, precision: str) -> tuple[float, float]:
    first, second = (PUBLISHED[machine.gpu, precision, length] for length in LENGTHS)
    return first * machine.speed, second * machine.speed


def gradient_value_bytes(precision: str) -> float:
    """Bytes of one value of a gradient: NVIDIA's code sends 16 bits where it computes in fp16."""
    return FLOAT / 2 if precision == "fp16" else FLOAT


def one_gpu_errors() -> dict[tuple[str, str, int], float]:
    """(GPU, precision, length) -> the planner's rate of our program over the published one of NVIDIA's, less 1."""
    errors = {}
    for name, precision, length, micro_batch, _, _ in RATES:
        gpu = MACHINES[name].gpu
        rate = micro_batch / find_gpu(gpu, precision).micro_batch_secs(make_workload(precision, length, micro_batch))
        errors.setdefault((gpu, precision, length), rate / PUBLISHED[gpu, precision, length] - 1)
    return errors


def make_workload(precision: str, length: int, micro_batch: int) -> Workload:
    config = BertConfig.preset("large", GOOGLE_VOCAB_SIZE)
    return Workload(config, length, PREDICTIONS[length], "step", micro_batch, precision)


def rate_errors() -> dict[tuple[str, str, int, int, int], tuple[float, float]]:
    """(machine, precision, length, micro-batch, GPUs) -> published sequences/s, error of the plan."""
    errors = {}
    for name, precision, length, micro_batch, batch, published in RATES:
        machine, number = MACHINES[name], LENGTHS.index(length)
        for num_gpus, rate in published.items():
            cluster, work = make_cluster(machine, precision, num_gpus), make_workload(precision, length, micro_batch)
            rate_of_one = published_rates(machine, precision)[number]
            steps, size = batch // (num_gpus * micro_batch), gradient_value_bytes(precision)
            time = update_time(cluster, work, steps, rate=rate_of_one, gradient_bytes=size)
            errors[name, precision, length, micro_batch, num_gpus] = rate, batch / time.total / rate - 1
    return errors


def training_hours(training: Training) -> float:
    """The hours that the planner predicts for it."""
    machine = MACHINES[training.machine]
    rates = training.rates or published_rates(machine, training.precision)
    hours = plan_recipe(
        make_cluster(machine, training.precision, training.nodes * machine.gpus),
        micro_batches=training.micro_batches,
        global_batches=training.global_batches,
        rates=rates,
        gradient_bytes=gradient_value_bytes(training.precision),
    ).hours
    return hours if training.with_start else hours - 2 * START_SECS / 3600


def tables() -> str:
    one, errors, trainings = one_gpu_errors(), rate_errors(), []
    ours = [
        [f"{gpu}, {precision}", *(f"{one[gpu, precision, length]:+.0%}" for length in LENGTHS)]
        for gpu, precision in dict.fromkeys(key[:2] for key in one)
    ]
    theirs = []
    for name, precision, length, micro_batch, _, published in RATES:
        rates = {num: errors[name, precision, length, micro_batch, num] for num in published}
        cells = ", ".join(f"{num}: {rate:,.0f} ({error:+.0%})" for num, (rate, error) in rates.items())
        theirs.append([f"{name}, {precision}", length, cells])
    for training in TRAININGS:
        hours, gpus = training_hours(training), training.nodes * MACHINES[training.machine].gpus
        shown = f"{hours:.2f} h" if hours >= 2 else f"{60 * hours:.0f} min"
        where = f"{gpus}, {training.machine}, {training.precision}"
        trainings.append([training.source, where, shown, f"{hours / training.hours - 1:+.0%}"])
    off = sorted(abs(error) for _, error in errors.values())
    tensor = sorted(abs(error) for key, (_, error) in errors.items() if key[1] != "fp32")
    sentence = (
        f"Of these {len(off)} the median is {statistics.median(off):.0%} off, nine in ten at most "
        f"{off[int(0.9 * len(off))]:.0%}, the worst {off[-1]:.0%}; without fp32 {statistics.median(tensor):.0%}, "
        f"{tensor[int(0.9 * len(tensor))]:.0%} and {tensor[-1]:.0%}."
    )
    title = "one GPU: what the plan says of our program, over NVIDIA TF2's published rate"
    lines = [*table([title, *map(str, LENGTHS)], ours), ""]
    lines += [*table(["NVIDIA TF2 on", "length", "GPUs: published sequences/s (error of the plan)"], theirs), ""]
    lines += [sentence, "", *table(["whole training", "GPUs", "planned", "error"], trainings)]
    return "\n".join(lines) + "\n"
