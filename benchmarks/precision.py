"""Whether a smaller number format changes what is learned: fp32, bf16, and the rounding of tf32 and fp16, by seeds.

A small model is trained with the same seeds in each format. bf16 is computed as on any machine; tf32 and fp16 are
emulated: both operands of every matmul are rounded as a tensor core does, gradients with a loss scale for fp16, and
sums stay float32.

    python -m benchmarks precision --data .../tokens/.../sample --trials results/precision
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks import trials
from benchmarks.frame import Bench
from benchmarks.trials import Learned, Trial, mean_and_spread, with_all_seeds

NEEDS = "--data: token files, and an hour"
ROUNDS = 1
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")


def add_options(parser: argparse.ArgumentParser) -> None:
    trials.add_options(parser, num_examples=20_000)


def run(bench: Bench) -> None:
    learned = with_all_seeds(bench, [Trial(1, precision) for precision in PRECISIONS])
    of = {trial.precision: all_seeds for trial, all_seeds in learned.items()}
    rows = [
        [precision, *(mean_and_spread(getattr(one, loss) for one in learned) for loss in ("mlm_loss", "nsp_loss"))]
        + [mean_and_spread(one.mlm_loss - other.mlm_loss for one, other in zip(learned, of["fp32"]))]
        + [f"{_distance(learned, of['fp32']):.2f}"]
        for precision, learned in of.items()
    ]
    columns = ["matmuls in", "held-out masked-word loss, mean ± spread of seeds", "next-sentence loss"]
    columns += ["masked-word loss less fp32's of the same seed", "largest distance of the curves, in spreads of seeds"]
    bench.table("At the end", columns, rows)
    updates = [update for update, _ in of["fp32"][0].curve]
    curves = [
        [update, *(statistics.mean(one.curve[place][1] for one in of[precision]) for precision in PRECISIONS)]
        + [_spread(of["fp32"], place)]
        for place, update in enumerate(updates)
    ]
    bench.table("On the way: training loss", ["update", *PRECISIONS, "spread of fp32's seeds"], curves)


def _spread(learned: list[Learned], place: int) -> float:
    return statistics.stdev(one.curve[place][1] for one in learned) if len(learned) > 1 else float("nan")


def _distance(learned: list[Learned], others: list[Learned]) -> float:
    """The largest difference between two mean curves, in units of the spread over seeds (averaged over the curve)."""
    places = range(len(others[0].curve))
    spread = statistics.mean(_spread(others, place) for place in places)
    means = [
        [statistics.mean(one.curve[place][1] for one in all_of) for place in places] for all_of in (learned, others)
    ]
    return max(abs(ours - theirs) for ours, theirs in zip(*means)) / spread
