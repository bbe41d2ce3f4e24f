r"""Input pipeline: records/s on one core, of this project and of tf.data.

- This project: `training_batches` as in training, from blocks in the global order to the features of an update. It
  verifies every checksum, and checks ids against the vocabulary's size.
- tf.data, batch then parse: TFRecordDataset, batch, one parse_example per batch, the same casts.

Each variant is a separate process that reads from the page cache. The first batches of a turn, which were prefetched,
are not counted.

    python -m benchmarks input_pipeline --names 128/20 512/80 \\
      --input_files .../seq_len_128.../training .../seq_len_512.../training
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Callable

from benchmarks.child import timed
from benchmarks.frame import Bench, Variant, existing_path

NEEDS = "--input_files: folders of records"
ROUNDS = 11
AHEAD = 4  # batches at the beginning of a turn, not counted


def tf_data_by_batch(records, batch_size: int, _: int) -> Iterator[Any]:
    from bert_tf.base.tensorflow import tf

    spec = {
        records.schema.stored_name(name): tf.io.FixedLenFeature([size], tf.as_dtype(kind))
        for name, kind, size in records.schema.fields
    }

    def parse(serialized):
        features = tf.io.parse_example(serialized, spec)
        return {
            name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in features.items()
        }

    dataset = tf.data.TFRecordDataset([str(path) for path in records.files]).repeat()
    return iter(dataset.batch(batch_size, drop_remainder=True).map(parse).prefetch(2))


def this_project(records, batch_size: int, micro_batch_size: int) -> Iterator[Any]:
    from bert_tf.batches.batches import training_batches
    from bert_tf.batches.data_order import GlobalOrder
    from bert_tf.settings.training import BatchSplit

    order, split = GlobalOrder(records.copies, 1), BatchSplit(micro_batch_size, batch_size // micro_batch_size)
    return training_batches(records, order, split, first_batch=0, vocab_size=records.vocab_size or 1 << 30)


VARIANTS: dict[str, Callable[..., Iterator[Any]]] = {
    "tf.data, batch then parse": tf_data_by_batch,
    "this project": this_project,
}


def turn(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Runs in the process of a variant."""
    from bert_tf.batches.data_sets import RecordSet

    records = RecordSet(settings["folder"], "input_files")
    batches = VARIANTS[settings["variant"]](records, settings["batch_size"], settings["micro_batch_size"])

    def read(num_batches: int) -> dict[str, float]:
        for _ in range(num_batches):
            next(batches)
        return {"records": num_batches * settings["batch_size"]}

    def run() -> dict[str, float]:
        read(AHEAD)
        wall, cpu, figures = timed(lambda: read(settings["num_batches"]))
        return {"wall_secs": wall, "cpu_secs": cpu, **figures}

    return run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input_files", type=existing_path, nargs="+", required=True, help="folders of records")
    parser.add_argument("--names", nargs="+", required=True, help="what to call them")
    parser.add_argument("--batch_size", type=int, default=512, help="records of an update")
    parser.add_argument("--micro_batch_size", type=int, default=64)
    parser.add_argument("--num_batches", type=int, default=24, help="batches of a turn")


def run(bench: Bench) -> None:
    from bert_tf.batches.data_sets import RecordSet

    options = bench.options
    for name, folder in zip(options.names, options.input_files):
        records = RecordSet(str(folder), "input_files")
        size = sum(path.stat().st_size for path in records.files) / records.num_instances
        title = f"{name}: {records.num_instances:,} records of {size:,.0f} bytes in {len(records.files)} files"
        settings = {**vars(options), "folder": folder}
        variants = {
            each: Variant("benchmarks.input_pipeline:turn", {**settings, "variant": each}, warm_up=1)
            for each in VARIANTS
        }
        bench.compare(title, variants, amount="records", unit="records")
