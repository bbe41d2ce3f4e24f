"""Memory that updates take, compared with the prediction of `bert_tf.memory.plan`.

Each configuration runs in a separate process: two updates of two micro-batches of generated rows.
It measures the peak of TensorFlow's allocator, as on a GPU (`tf.config.experimental.get_memory_info`): weights,
moments, gradients, activations, workspace and fragmentation, without code and libraries. So it is compared with the
prediction without its allowance for the program.

    python -m benchmarks memory
    python -m benchmarks memory --configurations large,1,384,0,blocks,fp32,recompute --label large
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, Callable

from benchmarks.frame import Bench, Variant
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import Workload, micro_batches_at_once, predict, split_into

NEEDS = "nothing"
CORES = 0
MIB, NUM_UPDATES, NUM_MICRO_BATCHES = 1 << 20, 2, 2
# model, micro-batch, length, predictions (0: fine-tuning on spans), scope, precision, keep or recompute
CONFIGURATIONS = """
mini,8,128,20,blocks,fp32,keep
mini,8,128,20,blocks,fp32,recompute
mini,8,128,20,off,fp32,recompute
mini,8,128,20,step,fp32,keep
mini,2,512,80,blocks,bf16,keep
small,4,512,80,blocks,fp32,keep
small,4,512,80,blocks,fp32,recompute
base,2,128,20,blocks,fp32,keep
base,1,384,0,blocks,fp32,recompute
base,2,128,20,blocks,bf16,keep
"""


def parse_workload(text: str) -> Workload:
    model, size, length, predictions, scope, precision, activations = text.split(",")
    config, shape = BertConfig.preset(model, GOOGLE_VOCAB_SIZE), (int(length), int(predictions))
    return Workload(config, *shape, scope, int(size), precision, activations == "recompute")


def updates(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Runs in the process of a configuration; the figures are in MiB."""
    from benchmarks.made_up import made_up_rows, make_step
    from bert_tf.base.tensorflow import tf

    work = parse_workload(settings["configuration"])

    def run() -> dict[str, float]:
        tf.function(lambda x: x @ x, jit_compile=True)(tf.ones([8, 8]))  # the compiler's own memory is not the model's
        step = make_step(work, "lamb" if work.num_predictions else "adamw")
        features = made_up_rows(work, NUM_MICRO_BATCHES)
        tf.config.experimental.reset_memory_stats("CPU:0")  # so that drawing the weights does not count
        for number in range(NUM_UPDATES):
            float(step(features, number).gradient_norm)
        return {"measured": tf.config.experimental.get_memory_info("CPU:0")["peak"] / MIB}

    return run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--configurations", nargs="+", default=CONFIGURATIONS.split())


def run(bench: Bench) -> None:
    rows, errors = [], []
    for text in bench.options.configurations:
        measured = bench.single_turn(Variant("benchmarks.memory:updates", {"configuration": text})).figures["measured"]
        work = parse_workload(text)
        work = dataclasses.replace(work, num_at_once=micro_batches_at_once(work.scope))
        memory = predict(split_into(work, work.micro_batch_size, NUM_MICRO_BATCHES))
        errors.append(memory.total / MIB / measured - 1)
        parts = [round(each / MIB) for each in (memory.weights, memory.activations, memory.workspace, memory.total)]
        rows.append([*text.split(","), *parts, round(measured), f"{100 * errors[-1]:+.0f} %"])
    columns = "model|micro-batch|length|predictions|scope|precision|layers|parameters|activations|workspace|predicted|"
    bench.table("MiB", [*(columns + "measured|error").split("|")], rows)
    largest, mean = max(map(abs, errors)), sum(map(abs, errors)) / len(errors)
    bench.note(f"Largest error {100 * largest:.0f} %, mean {100 * mean:.0f} %.")
