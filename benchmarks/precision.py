"""Whether a smaller number format changes what is learned: fp32, bf16, and the rounding of tf32 and fp16, by seeds.

A small model is trained with the same seeds in each format. bf16 is computed as on any machine; tf32 and fp16 are
emulated: both operands of every matmul are rounded as a tensor core does, gradients with a loss scale for fp16, and
sums stay float32.

    python -m benchmarks precision --data .../tokens/.../sample --trials results/precision
"""

from __future__ import annotations

import argparse
import math
import statistics

from benchmarks import trials
from benchmarks.frame import Bench
from benchmarks.trials import Trial, mean_and_spread, with_all_seeds

NEEDS = "--data: token files, and an hour"
ROUNDS = 1
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def add_options(parser: argparse.ArgumentParser) -> None:
    trials.add_options(parser, num_examples=20_000)


def run(bench: Bench) -> None:
    learned = with_all_seeds(bench, [Trial(1, precision) for precision in PRECISIONS])
    by_precision = {trial.precision: all_seeds for trial, all_seeds in learned.items()}
    rows = [
        [
            precision,
            *(mean_and_spread(getattr(result, name) for result in results) for name in ("mlm_loss", "nsp_loss")),
        ]
        + [mean_and_spread(result.mlm_loss - fp32.mlm_loss for result, fp32 in zip(results, by_precision["fp32"]))]
        for precision, results in by_precision.items()
    ]
    columns = ["matmuls in", "held-out masked-word loss, mean ± spread of seeds", "next-sentence loss"]
    bench.table("At the end", [*columns, "masked-word loss less fp32's of the same seed"], rows)
    curves = []
    for point, (update, _) in enumerate(by_precision["fp32"][0].curve):
        losses = [[result.curve[point][1] for result in all_seeds] for all_seeds in by_precision.values()]
        spread = statistics.stdev(losses[0]) if len(losses[0]) > 1 else math.nan
        curves.append([update, *map(statistics.mean, losses), spread])
    bench.table("On the way: training loss", ["update", *PRECISIONS, "spread of fp32's seeds"], curves)
