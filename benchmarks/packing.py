"""Real tokens/s with and without packing.

Both variants make the same updates of the same records. A first table shows how well and how fast updates of the
recipe's sizes are packed into rows.

    python -m benchmarks packing --input_files short/training,long/training --bert_model mini
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Callable

from benchmarks.child import timed
from benchmarks.frame import Bench, add_input_files, named_folders
from bert_tf.batches.batches import training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.packing import best_fit
from bert_tf.batches.record_set import RecordSet
from bert_tf.bert_config import BertConfig
from bert_tf.memory.plan import Workload
from bert_tf.settings.training import BatchSplit

NEEDS = "--input_files: folders of records"
ROUNDS = 9
RECIPE_BATCHES = (1024, 32768, 65536)
PLANS = 5  # of each size, for the median


def plan_rows(name: str, records: RecordSet) -> list[list[object]]:
    order, row_length = GlobalOrder(records.copies, 1), records.schema.max_seq_length
    lines: list[list[object]] = []
    for size in RECIPE_BATCHES:
        seconds, rows, tokens = [], 0, 0
        for number in range(PLANS):
            lengths = records.lengths(order.ranges(number * size, size))
            started = time.process_time()
            rows += len(best_fit(lengths, row_length))
            seconds.append(time.process_time() - started)
            tokens += int(lengths.sum())
        padding, share = 1 - tokens / (PLANS * size * row_length), tokens / (rows * row_length)
        instances = PLANS * size / rows
        lines.append([name, size, f"{padding:.1%}", instances, f"{share:.1%}", 1000 * statistics.median(seconds)])
    return lines


def make_update(records: RecordSet, options: argparse.Namespace, packing: bool) -> Callable[[], dict[str, float]]:
    """Makes one update after the other; reading and packing, in a thread ahead, count only as processor time."""
    from benchmarks.made_up import make_step

    config = BertConfig.preset(options.bert_model, records.vocab_size or 0)
    schema = records.schema
    step = make_step(
        Workload(
            config,
            schema.max_seq_length,
            schema.max_predictions_per_seq,
            options.scope,
            options.micro_batch_size,
            options.precision,
        )
    )
    split = BatchSplit(options.micro_batch_size, options.num_accumulation_steps)
    batches = training_batches(
        records, GlobalOrder(records.copies, 1), split, first_batch=0, vocab_size=config.vocab_size, packing=packing
    )
    numbers = itertools.count()

    def update() -> dict[str, float]:
        batch = next(batches)
        secs = timed(
            lambda: float(step(batch.features, next(numbers), num_micro_batches=batch.num_micro_batches).metrics[0])
        )
        return {
            "wall_secs": secs[0],
            "cpu_secs": secs[1],
            "tokens": batch.num_tokens,
            "padding, %": 100 * (1 - batch.num_tokens / (batch.num_rows * schema.max_seq_length)),
        }

    update()  # traces
    update()  # compiles
    return update


def add_options(parser: argparse.ArgumentParser) -> None:
    add_input_files(parser)
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--micro_batch_size", type=int, default=2)
    parser.add_argument("--num_accumulation_steps", type=int, default=16)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--scope", default="blocks")


def run(bench: Bench) -> None:
    options = bench.options
    sets = {name: RecordSet(folder, "input_files") for name, folder in named_folders(options).items()}
    columns = ["records", "instances", "padding before", "instances in a row", "rows' real share", "ms of one core"]
    lines = [line for name, records in sets.items() for line in plan_rows(name, records)]
    bench.table("Laying an update's instances into rows", columns, lines)
    for name, records in sets.items():
        variants = {
            how: make_update(records, options, packing) for how, packing in (("unpacked", False), ("packed", True))
        }
        bench.compare(f"Updates of {options.bert_model}, {name}", variants, amount="tokens", unit="tokens")
