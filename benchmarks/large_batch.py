"""How well optimizers use large batches: held-out loss after the same number of examples, by global batch.

LAMB, AdamW and LARS get the same search (`trials.search`) for each batch size, with one seed; the best rate is then run
with all seeds. For comparison there are AdamW without a search at the larger batches (the smallest batch's best rate,
scaled linearly or by the square root), LAMB and AdamW without warm-up, and LAMB without clipping. The published result
to compare with: "Large Batch Optimization for Deep Learning", arXiv 1904.00962.

    python -m benchmarks large_batch --data .../tokens/.../sample --trials benchmarks/results/large_batch_trials

takes five hours of one core and can be interrupted at any time. The data are the token files made by the first commands
of docs/preparing_data.md. Trials train in bf16, which changes the loss by less than another seed does
(docs/RESULTS.md). --searched_only leaves out the variants without their own search, as without LAMB or AdamW.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks import trials
from benchmarks.frame import Bench
from benchmarks.results import number
from benchmarks.trials import Trial, mean_and_spread, rates_around, search, with_all_seeds
from bert_tf.records.token_file import TokenFile

NEEDS = "--data: token files, and five hours"
ROUNDS = 1
# The middle of the search at the smallest batch; at a batch k times as large it is sqrt(k) times as large.
MIDDLE_RATES = {"lamb": 0.005, "adamw": 0.0007, "lars": 4.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    trials.add_options(parser, num_examples=65_536)
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 128, 512], help="global batches, rising")
    parser.add_argument("--optimizers", nargs="+", choices=MIDDLE_RATES, default=[*MIDDLE_RATES])
    parser.add_argument("--rates", type=int, default=4, help="learning rates that each optimizer has for each batch")
    parser.add_argument("--searched_only", action="store_true", help="no rates by rules, nothing switched off")


def run(bench: Bench) -> None:
    options = bench.options
    grid: dict[tuple[str, int], list[Trial]] = {}
    for batch in options.batches:
        for name in options.optimizers:
            rates = rates_around(MIDDLE_RATES[name] * math.sqrt(batch / options.batches[0]), options.rates)
            grid[name, batch] = [Trial(1, "bf16", name, rate, batch) for rate in rates]
    best, tried = search(bench, grid)
    variants = {name: {batch: best[name, batch] for batch in options.batches} for name in options.optimizers}
    if not options.searched_only and {"lamb", "adamw"} <= {*options.optimizers}:
        variants |= _unsearched(variants)
    learned = with_all_seeds(bench, [trial for by_batch in variants.values() for trial in by_batch.values()])

    def cell(trial: Trial) -> str:
        return f"{mean_and_spread(result.mlm_loss for result in learned[trial])} (rate {number(trial.rate)})"

    updates = [f"{batch:,}: {options.num_examples // batch:,} updates" for batch in options.batches]
    rows = [[name, *(cell(trial) for trial in by_batch.values())] for name, by_batch in variants.items()]
    bench.table("Held-out masked-word loss by global batch, mean ± spread of seeds", ["optimizer", *updates], rows)
    rows = [[name, f"{batch:,}", losses] for (name, batch), losses in tried.items()]
    bench.table("The search, seed 1", ["optimizer", "batch", "rate and loss"], rows)
    loss = f"{_loss_of_word_frequencies(options.data):.4f}"
    bench.table("Held-out loss of a model that knows the training text's word frequencies only", ["loss"], [[loss]])


def _loss_of_word_frequencies(data: Path) -> float:
    """Mean cross-entropy of the held-out tokens, in nats."""
    training, held_out = (
        np.concatenate([TokenFile(path).text().token_ids for path in sorted((data / split).glob("*.tokens"))])
        for split in ("training", "test")
    )
    counts = np.bincount(training, minlength=held_out.max() + 1) + 0.1  # so that no held-out token is impossible
    return float(-np.log(counts[held_out] / counts.sum()).mean())


def _unsearched(best: Mapping[str, Mapping[int, Trial]]) -> dict[str, dict[int, Trial]]:
    """Variants of the best trials of LAMB and AdamW, by name and batch, for which no search is made."""
    batches = list(best["lamb"])
    base = best["adamw"][batches[0]]
    variants = {}
    for name, power in (("linear", 1.0), ("square root", 0.5)):
        variants[f"adamw, rate scaled: {name}"] = {
            batch: base._replace(batch_size=batch, rate=base.rate * (batch / base.batch_size) ** power)
            for batch in batches
        }
    for name in ("lamb", "adamw"):
        variants[f"{name} without warm-up"] = {batch: best[name][batch]._replace(warmup_share=0.0) for batch in batches}
    variants["lamb without clipping"] = {batch: best["lamb"][batch]._replace(clips=False) for batch in batches}
    return variants
