"""Time and memory that one rank needs to open and read a record set of 10^9 records in 1,500 shards.

Only one shard is made; the others, and their indexes, are hard links to it, so the set takes the disk space of one. A
separate process does what a rank does before its first update: find the shards, open their indexes, check the schema of
each, draw the order of the first epoch.

    python benchmarks/large_record_set.py [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bert_tf.batches.data_order import GlobalOrder  # noqa: E402
from bert_tf.batches.record_set import RecordSet  # noqa: E402
from bert_tf.records.index import index_path  # noqa: E402
from bert_tf.records.schema import InstanceArrays  # noqa: E402
from bert_tf.records.writer import RecordWriter  # noqa: E402

SEQUENCE, PREDICTIONS, VOCAB_SIZE = 128, 20, 30522
AT_ONCE = 4096
READ_RECORDS, GLOBAL_BATCH = 1 << 18, 8192


def made_up_instances(count: int, rng: np.random.Generator) -> InstanceArrays:
    lengths = rng.integers(SEQUENCE // 2, SEQUENCE + 1, [count, 1])
    mask = np.arange(SEQUENCE) < lengths
    return InstanceArrays(
        input_ids=rng.integers(0, VOCAB_SIZE, [count, SEQUENCE]) * mask,
        input_mask=mask.astype(np.uint8),
        segment_ids=(np.arange(SEQUENCE) > lengths // 2) & mask,
        masked_lm_positions=np.sort(rng.integers(1, SEQUENCE // 2, [count, PREDICTIONS]), axis=1),
        masked_lm_ids=rng.integers(0, VOCAB_SIZE, [count, PREDICTIONS]),
        masked_lm_weights=np.ones([count, PREDICTIONS], np.float32),
        next_sentence_labels=rng.integers(0, 2, [count]),
    )


def make_set(folder: Path, num_shards: int, num_records: int) -> None:
    rng = np.random.default_rng(0)
    first = folder / "x_training_0.tfrecord"
    block = made_up_instances(AT_ONCE, rng)
    with RecordWriter(first) as writer:
        for done in range(0, num_records, AT_ONCE):
            writer.write(block.rows(slice(0, num_records - done)))
    for number in range(1, num_shards):
        path = folder / f"x_training_{number}.tfrecord"
        os.link(first, path)
        os.link(index_path(first), index_path(path))


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve_as_rank(folder: Path) -> None:
    before, started = peak_mib(), time.perf_counter()
    records = RecordSet(str(folder), "input_files")
    opened = time.perf_counter()
    order = GlobalOrder(records.copies, seed=1)
    order.ranges(0, GLOBAL_BATCH)
    ready = time.perf_counter()
    print(
        f"{records.num_instances:,} records in {len(records.files):,} shards: indexes and schemas "
        f"{opened - started:.1f} s, order {ready - opened:.1f} s; peak memory {peak_mib():.0f} MiB, "
        f"{peak_mib() - before:.0f} MiB more than before",
        flush=True,
    )
    for name, take in (("records read", records.read), ("lengths read, as packing does", records.lengths)):
        started = time.perf_counter()
        count = sum(len(take(order.ranges(start, GLOBAL_BATCH))) for start in range(0, READ_RECORDS, GLOBAL_BATCH))
        print(f"{name}: {count / (time.perf_counter() - started):,.0f} a second; peak {peak_mib():.0f} MiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where to make the set (0.6 GB); a temporary folder without it")
    parser.add_argument("--num_shards", type=int, default=1500)
    parser.add_argument("--num_records", type=int, default=666_667, help="of each shard")
    parser.add_argument("--rank", help="measure this folder in this process")
    args = parser.parse_args()
    if args.rank:
        serve_as_rank(Path(args.rank))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        make_set(Path(folder), args.num_shards, args.num_records)
        subprocess.run([sys.executable, __file__, "--rank", folder], check=True)


if __name__ == "__main__":
    main()
