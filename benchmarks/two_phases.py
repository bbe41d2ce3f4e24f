"""Whether it pays to begin with short sequences: two phases, as in the recipe, beside full length from the start.

Both take the same compute, counted in floating-point operations. In the recipe's two phases seven tenths of all tokens
are in sequences of 128 and the rest in sequences of 512; here the lengths are smaller, also with a ratio of four to
one. For each way there is a search (`trials.search`) with one seed; the best rates are then run with all seeds.

    python -m benchmarks two_phases --data .../tokens/.../sample --trials benchmarks/results/two_phases_trials

The data are the token files made by the first commands of docs/preparing_data.md. Trials train with LAMB in bf16.
"""

from __future__ import annotations

import argparse

from benchmarks import trials
from benchmarks.frame import Bench
from benchmarks.results import number
from benchmarks.trials import Trial, mean_and_spread, rates_around, search, with_all_seeds

NEEDS = "--data: token files, and half an hour"
ROUNDS = 1
# Phase 1 of the recipe: 7,038 updates of 65,536 sequences of 128; phase 2: 1,563 of 32,768 of 512.
SHORT_SHARE = round(7038 * 65536 * 128 / (7038 * 65536 * 128 + 1563 * 32768 * 512), 2)
BATCH_SIZE = 32  # of full length
MIDDLE_RATE = 0.01
WAYS = {"full length from the start": 0.0, "short, then full length": SHORT_SHARE}


def add_options(parser: argparse.ArgumentParser) -> None:
    trials.add_options(parser, num_examples=32_768, max_seq_length=128)
    parser.add_argument("--rates", type=int, default=3, help="learning rates that are tried for each way")


def run(bench: Bench) -> None:
    rates = rates_around(MIDDLE_RATE, bench.options.rates)
    searches = {
        way: [Trial(1, "bf16", "lamb", rate, BATCH_SIZE, short_share=share) for rate in rates]
        for way, share in WAYS.items()
    }
    best, tried = search(bench, searches)
    learned, rows = with_all_seeds(bench, best.values()), []
    for way, trial in best.items():
        losses = [
            mean_and_spread(getattr(result, name) for result in learned[trial]) for name in ("mlm_loss", "nsp_loss")
        ]
        rows.append([way, *losses, number(trial.rate), tried[way]])
    columns = ["sequences", "held-out masked-word loss, mean ± spread of seeds", "next-sentence loss", "rate"]
    bench.table("At equal compute, on full length", [*columns, "the search, seed 1: rate and loss"], rows)
