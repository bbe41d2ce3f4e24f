"""What a rank does for the sake of the other ranks, simulated for thousands of them on one machine.

Each part is the run's own code with the input that it would have on one of that many ranks: values gathered from all
ranks, a log folder with a file for each, the order of the whole data set. The network cannot be simulated;
instead, the messages that have to follow one another are counted.

    python -m benchmarks control_work --folder results/control_work
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np

from benchmarks.made_up import made_up_rows, make_step
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.packing import best_fit
from bert_tf.batches.record_set import RecordSet
from bert_tf.bert_config import BertConfig
from bert_tf.launch.rank import FAILED
from bert_tf.memory.plan import FLOAT, Workload
from bert_tf.planning.gpus import find_gpu
from bert_tf.planning.recipe_time import Choices, plan_recipe
from bert_tf.planning.update_time import LATENCY_SECS, Cluster
from bert_tf.ranks import rendezvous
from bert_tf.records.schema import InstanceArrays
from bert_tf.records.writer import RecordWriter
from bert_tf.run.run_folder import provenance

NEEDS = "2 GB of disk in --folder"
SHARDS, RECORDS_OF_SHARD, GLOBAL_BATCH = 1472, 49_000, 65_536  # of Wikipedia, as the recipe has them
PARTS = {
    "agreeing on an update: comparing and adding what was gathered": "each update",
    "saving: looking at every rank's state": "each checkpoint",
    "order of a rank's own rows": "input thread, each update",
    "order of the whole update, and packing it": "input thread, each update with --packing",
    "asking whether a rank has failed": "supervising process, each second",
    "order of an epoch": "each epoch and start",
    f"opening {SHARDS:,} shards with their indexes": "each start",
    "finding the other ranks, once all are there": "each start",
}


def median_secs(work: Callable[[], object], rounds: int) -> float:
    def once() -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    once()
    return statistics.median(once() for _ in range(rounds))


def write_shards(folder: Path) -> None:
    """As many shards as the recipe has, with one record each, because an index is opened but not read."""
    one = np.ones([1, 1], np.int64)
    rows = InstanceArrays(*[np.ones([1, 128], np.int64)] * 3, one, one, np.ones([1, 1], np.float32), np.ones([1], int))
    folder.mkdir()
    for number in range(SHARDS):
        with RecordWriter(folder / f"x_training_{number}.tfrecord") as writer:
            writer.write(rows)


def measure(num_ranks: int, folder: Path, rounds: int) -> list[float]:
    """Seconds of each of `PARTS` on the last of `num_ranks` ranks."""
    work = Workload(BertConfig.preset("tiny", 30522), 128, 20, "blocks", 16, num_ranks=num_ranks)
    step, features = make_step(work), made_up_rows(work, 1)
    states = np.full([num_ranks, 1], 1)
    order = GlobalOrder([[RECORDS_OF_SHARD] * SHARDS], 12345)
    lengths = np.random.default_rng(0).integers(20, 512, GLOBAL_BATCH)
    own = GLOBAL_BATCH // num_ranks
    logs = folder / f"logs_{num_ranks}"
    logs.mkdir()
    for rank in range(num_ranks):
        rendezvous.arrival_file(logs, rank).touch()
        (logs / f"rank_{rank}.log").touch()
    place = {rendezvous.VARIABLE: f"{num_ranks - 1} {num_ranks} {logs}"}

    def pack() -> None:
        order.ranges(GLOBAL_BATCH, GLOBAL_BATCH)
        best_fit(lengths, 512)

    works: Sequence[Callable[[], object]] = (
        lambda: step.agree(features, 0),
        lambda: (1 in states, np.all(states == 1)),
        lambda: order.ranges(7 * GLOBAL_BATCH + own * (num_ranks - 1), own),
        pack,
        lambda: (logs / FAILED).exists(),
        lambda: GlobalOrder([[RECORDS_OF_SHARD] * SHARDS], 12345).ranges(0, 1),
        lambda: RecordSet(str(folder / "records"), "input_files"),
        lambda: rendezvous.await_ranks(place),
    )
    return [median_secs(work, rounds if number < 5 else 3) for number, work in enumerate(works)]


def describe(num_ranks: Sequence[int], found: Sequence[Sequence[float]]) -> str:
    facts = provenance()
    lines = [
        f"By `python -m benchmarks control_work`: {facts['processor']}, {facts['num_cores']} cores, load "
        f"{os.getloadavg()[0]:.1f}; medians, ms. {SHARDS:,} shards of {RECORDS_OF_SHARD:,} records, {GLOBAL_BATCH:,} "
        "sequences an update. What the network takes is not in them.",
        "",
        "| one rank of | when | " + " | ".join(f"{number:,}" for number in num_ranks) + " |",
        "|---" * (2 + len(num_ranks)) + "|",
    ]
    for part, (name, when) in enumerate(PARTS.items()):
        lines.append(f"| {name} | {when} | " + " | ".join(f"{1e3 * secs[part]:.3f}" for secs in found) + " |")
    ranks, secs = num_ranks[-1], found[-1]
    ours = secs[0] + secs[1] / 100  # a checkpoint every 100 updates
    tree = math.ceil(math.log2(ranks)) * LATENCY_SECS
    lines += ["", f"Planned updates of {ranks:,} GPUs, 8 a node, BERT-Large, fp16, 100 Gbit/s a GPU:", ""]
    lines += [
        "| | | an update, ms | control work | with the gather's messages, MPI | all of Gloo's messages |",
        "|---" * 6 + "|",
    ]
    for gpu in ("v100-32", "a100-80", "h100"):
        cluster = Cluster(find_gpu(gpu, "fp16"), ranks // 8, 8, 100e9)
        for time_of in plan_recipe(cluster, Choices()).phases:
            total, gloo = time_of.update.total, cluster.gloo_secs(FLOAT * time_of.work.num_parameters)
            cells = (f"{1e3 * total:.0f}", f"{ours / total:.1%}", f"{(ours + tree) / total:.1%}", f"{gloo / total:.0%}")
            lines.append(f"| {gpu} | {time_of.phase.title} | {' | '.join(cells)} |")
    lines += [
        "",
        f"A message takes {1e6 * LATENCY_SECS:.0f} us (assumed). By MPI what is gathered before an update passes "
        f"{math.ceil(math.log2(ranks))} of them one after the other, by Gloo {ranks - 1:,}, and Horovod, which agrees "
        "on each bucket of gradients, twice as many for each of these.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64, 512, 4096])
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--folder", type=Path, required=True, help="a new one for shards and logs; removed at the end")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    try:
        write_shards(args.folder / "records")
        found = [measure(num_ranks, args.folder, args.rounds) for num_ranks in args.ranks]
    finally:
        shutil.rmtree(args.folder)
    print(describe(args.ranks, found))


if __name__ == "__main__":
    main()
