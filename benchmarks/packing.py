"""Real tokens/s with and without packing, as ratios of medians.

Both variants make the same updates of the same records and take turns, so that a busy machine slows
them alike. CPU time is given, too: on a busy machine it varies less. A first table shows how well and
how fast updates of the recipe's sizes are packed into rows.

    python benchmarks/packing.py --input_files short/training,long/training --bert_model mini --rounds 9
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from bert_tf.batches.batches import Batch, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.packing import best_fit
from bert_tf.batches.record_set import RecordSet
from bert_tf.config import BatchSplit, BertConfig, compute_dtype
from bert_tf.model.blocks import Blocks
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.run_folder import provenance
from bert_tf.training.step import StepSettings, TrainState, TrainStep

RECIPE_BATCHES = (1024, 32768, 65536)
PLANS = 5  # of each size, for the median


def plan_rows(name: str, records: RecordSet) -> None:
    order, row_length = GlobalOrder(records.copies, 1), records.schema.max_seq_length
    for size in RECIPE_BATCHES:
        seconds, rows, tokens = [], 0, 0
        for number in range(PLANS):
            lengths = records.lengths(order.ranges(number * size, size))
            started = time.process_time()
            rows += len(best_fit(lengths, row_length))
            seconds.append(time.process_time() - started)
            tokens += int(lengths.sum())
        print(
            f"| {name} | {size} | {1 - tokens / (PLANS * size * row_length):.1%} | {PLANS * size / rows:.3f} | "
            f"{tokens / (rows * row_length):.1%} | {1000 * statistics.median(seconds):.1f} |"
        )


def make_update(config: BertConfig, args: argparse.Namespace):
    state = TrainState(
        PretrainingModel(config, Blocks(args.scope, compute_dtype(args.precision)), seed=1),
        make_optimizer("lamb", 1e-4, 10, 1000, compiled=args.scope != "off"),
        LossScale(enabled=False),
    )
    step = TrainStep(state, PretrainingObjective(), Workers(), StepSettings(seed=1))

    def update(batch: Batch, number: int) -> tuple[float, float]:
        """Wall and CPU seconds of one update."""
        started = time.perf_counter(), time.process_time()
        float(step(batch.features, number, num_micro_batches=batch.num_micro_batches).metrics[0])
        return time.perf_counter() - started[0], time.process_time() - started[1]

    return update


def compare(name: str, records: RecordSet, config: BertConfig, args: argparse.Namespace) -> None:
    sources = {
        packing: training_batches(
            records,
            GlobalOrder(records.copies, 1),
            BatchSplit(args.micro_batch_size, args.num_accumulation_steps),
            first_batch=0,
            vocab_size=config.vocab_size,
            packing=packing,
        )
        for packing in (False, True)
    }
    updates = {packing: make_update(config, args) for packing in sources}
    seconds: dict[bool, list[tuple[float, float]]] = {packing: [] for packing in sources}
    rows: dict[bool, int] = dict.fromkeys(sources, 0)
    tokens = 0
    for number in range(args.rounds + 2):  # the first two trace and compile
        for packing, source in sources.items():
            batch = next(source)
            took = updates[packing](batch, number)
            if number >= 2:
                seconds[packing].append((took[0] / batch.num_tokens, took[1] / batch.num_tokens))
                rows[packing] += batch.num_rows
        tokens += batch.num_tokens if number >= 2 else 0
    wall, processor = (
        {packing: statistics.median(each[kind] for each in seconds[packing]) for packing in sources} for kind in (0, 1)
    )
    for packing in sources:
        print(
            f"| {name} | {'packed' if packing else 'unpacked'} | "
            f"{1 - tokens / (rows[packing] * records.schema.max_seq_length):.1%} | {1 / processor[packing]:,.0f} | "
            f"{processor[False] / processor[packing]:.2f} | {1 / wall[packing]:,.0f} | "
            f"{wall[False] / wall[packing]:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_files", required=True, help="folders of records, separated by commas")
    parser.add_argument("--names", default="", help="what to call them")
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--micro_batch_size", type=int, default=2)
    parser.add_argument("--num_accumulation_steps", type=int, default=16)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--scope", default="blocks")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    folders = args.input_files.split(",")
    names = args.names.split(",") if args.names else folders
    sets = {name: RecordSet(folder, "input_files") for name, folder in zip(names, folders)}
    facts = provenance()
    versions = facts["versions"]
    print(f"# Packed and unpacked updates of {args.bert_model}\n")
    print(
        f"{args.num_accumulation_steps} x {args.micro_batch_size} instances an update, {args.precision}, scope "
        f"{args.scope}, {args.rounds} rounds; {facts['processor']}, {facts['num_cores']} cores, "
        f"{os.environ.get('OMP_NUM_THREADS', 'all')} thread(s); Python {versions['python']}, "
        f"NumPy {np.__version__}, TensorFlow {versions.get('tensorflow') or versions['tensorflow-cpu']}"
    )
    print(
        "\n| records | instances | padding before | instances in a row | rows' real share | ms of one core |\n"
        "|---|---|---|---|---|---|"
    )
    for name, records in sets.items():
        plan_rows(name, records)
    print(
        "\n| records | | padding computed | tokens a processor second | times | tokens a second | times |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name, records in sets.items():
        assert records.vocab_size is not None, "records of bertPrep"
        compare(name, records, BertConfig.preset(args.bert_model, records.vocab_size), args)


if __name__ == "__main__":
    main()
