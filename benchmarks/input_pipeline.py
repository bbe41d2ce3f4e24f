"""Input pipeline: records/s on one core, of this project and of tf.data in two forms.

- This project: `training_batches` as in training, from blocks in the global order to the features of an update. It
  verifies every checksum, checks ids against the vocabulary's size, and masks the records if they are unmasked.
- tf.data, batch then parse: TFRecordDataset, batch, one parse_example per batch, the same casts.
- tf.data, parse then batch, as in NVIDIA's and tf-models-official's recipes: interleaved files, one parse_example per
  record, casts, a shuffle buffer of 100, batch, prefetch.

Each variant is a separate process on one core that reads from the page cache. They take turns, so that a busy machine
slows all of them alike. The first batches of a turn, which were prefetched, are not counted. A second table gives the
times of the parts of this project's pipeline, without its thread.

    python benchmarks/input_pipeline.py --input_files .../seq_len_128.../training,.../seq_len_512.../training \\
      --names "128/20,512/80" --rounds 11
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

AHEAD = 4  # batches at the beginning of a turn that are not counted
NVIDIA_SHUFFLE, NVIDIA_INTERLEAVED_FILES = 100, 8

Turn = Callable[[int], int]  # reads so many batches, and returns how many records these were


def example_spec(records) -> dict[str, Any]:
    import tensorflow as tf

    return {
        records.schema.stored_name(name): tf.io.FixedLenFeature([size], tf.as_dtype(kind))
        for name, kind, size in records.schema.fields
    }


def in_32_bits(features: dict[str, Any]) -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value for name, value in features.items()}


def turns_of(iterator: Iterator[Any], batch_size: int) -> Turn:
    def turn(num_batches: int) -> int:
        for _ in range(num_batches):
            next(iterator)
        return num_batches * batch_size

    return turn


def tf_data_by_batch(records, batch_size: int, _: int) -> Turn:
    import tensorflow as tf

    spec = example_spec(records)
    dataset = tf.data.TFRecordDataset([str(path) for path in records.files]).repeat()
    dataset = dataset.batch(batch_size, drop_remainder=True)
    dataset = dataset.map(lambda serialized: in_32_bits(tf.io.parse_example(serialized, spec))).prefetch(2)
    return turns_of(iter(dataset), batch_size)


def tf_data_by_record(records, batch_size: int, _: int) -> Turn:
    import tensorflow as tf

    spec, autotune = example_spec(records), tf.data.AUTOTUNE
    files = tf.data.Dataset.from_tensor_slices([str(path) for path in records.files]).repeat()
    dataset = files.interleave(
        tf.data.TFRecordDataset, cycle_length=NVIDIA_INTERLEAVED_FILES, num_parallel_calls=autotune
    )
    dataset = dataset.map(
        lambda serialized: in_32_bits(tf.io.parse_single_example(serialized, spec)), num_parallel_calls=autotune
    )
    dataset = dataset.shuffle(NVIDIA_SHUFFLE).batch(batch_size, drop_remainder=True).prefetch(2)
    return turns_of(iter(dataset), batch_size)


def this_project(records, batch_size: int, micro_batch_size: int) -> Turn:
    from bert_tf.batches.batches import training_batches
    from bert_tf.batches.data_order import GlobalOrder
    from bert_tf.config import BatchSplit

    vocab_size = records.vocab_size or 1 << 30
    batches = training_batches(
        records,
        GlobalOrder(records.copies, 1),
        BatchSplit(micro_batch_size, batch_size // micro_batch_size),
        first_batch=0,
        vocab_size=vocab_size,
    )
    return turns_of(batches, batch_size)


def reading(records, batch_size: int, _: int) -> Turn:
    from bert_tf.batches.data_order import GlobalOrder

    order, numbers = GlobalOrder(records.copies, 1), itertools.count()

    def turn(num_batches: int) -> int:
        return sum(len(records.read(order.ranges(next(numbers) * batch_size, batch_size))) for _ in range(num_batches))

    return turn


def parsing(records, batch_size: int, _: int) -> Turn:
    from bert_tf.batches.batches import parse_records
    from bert_tf.batches.data_order import GlobalOrder

    order = GlobalOrder(records.copies, 1)
    runs = [order.ranges(number * batch_size, batch_size) for number in range(2 * AHEAD)]
    made = itertools.cycle([(each, records.read(each)) for each in runs])

    def turn(num_batches: int) -> int:
        return sum(
            len(parse_records(records, serialized, each)["input_ids"])
            for each, serialized in itertools.islice(made, num_batches)
        )

    return turn


def open_set(folder: str):
    """Records; or token files, whose folder is followed by @ and the length: .../training@128."""
    from bert_tf.batches.masking import MaskingRules
    from bert_tf.batches.open import open_instances

    patterns, _, length = folder.partition("@")
    num = max(1, round(0.15 * int(length or 0)))
    return open_instances(patterns, "input_files", int(length or 0), MaskingRules(0.15, num))


VARIANTS: dict[str, Callable[..., Turn]] = {
    "tf.data, parse then batch (as NVIDIA, tf-models)": tf_data_by_record,
    "tf.data, batch then parse": tf_data_by_batch,
    "this project": this_project,
    "of that: reading, checksums verified": reading,
    "of that: parsing, casts": parsing,
}


def serve(args: argparse.Namespace) -> None:
    """The process of one variant: each line on stdin asks for a turn, and is answered with its times."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    turn = VARIANTS[args.here](open_set(args.input_files), args.batch_size, args.micro_batch_size)
    for _ in sys.stdin:
        turn(AHEAD)
        started = time.perf_counter(), time.process_time()
        count = turn(args.num_batches)
        took = time.perf_counter() - started[0], time.process_time() - started[1]
        print(json.dumps([count / took[0], count / took[1]]), file=answers, flush=True)


def measure(folder: str, variants: list[str], args: argparse.Namespace) -> dict[str, list[list[float]]]:
    """Records per second and per second of CPU time, for each variant and round."""
    workers: dict[str, subprocess.Popen] = {}
    rates: dict[str, list[list[float]]] = {name: [] for name in variants}
    with contextlib.ExitStack() as stack:
        for name in variants:
            workers[name] = stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        __file__,
                        "--here",
                        name,
                        "--input_files",
                        folder,
                        "--batch_size",
                        str(args.batch_size),
                        "--micro_batch_size",
                        str(args.micro_batch_size),
                        "--num_batches",
                        str(args.num_batches),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(workers[name].kill)
        for number in range(args.rounds + 1):  # the first one traces
            for name, worker in workers.items():
                worker.stdin.write("turn\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
                if not answer:
                    sys.exit(f"error: {name}: its process ended with code {worker.wait()}, see above")
                if number:
                    rates[name].append(json.loads(answer))
    return rates


def table(name: str, folder: str, is_records: bool, args: argparse.Namespace) -> None:
    variants = list(VARIANTS) if is_records else ["this project"]  # nobody else reads token files
    rates = measure(folder, variants, args)
    for variant, found in rates.items():
        wall, processor = (statistics.median(each[kind] for each in found) for kind in (0, 1))
        times = statistics.median(mine[1] / theirs[1] for mine, theirs in zip(found, rates[variants[0]]))
        print(
            f"| {name} | {variant} | {wall:,.0f} | {processor:,.0f} | {times:.2f} | {1e6 / processor:.2f} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input_files", required=True, help="folders of records, separated by commas")
    parser.add_argument("--names", default="", help="what to call them")
    parser.add_argument("--batch_size", type=int, default=512, help="records of an update")
    parser.add_argument("--micro_batch_size", type=int, default=64)
    parser.add_argument("--num_batches", type=int, default=24, help="batches of a turn")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--here", help="measure this variant in this process, by turns")
    args = parser.parse_args()
    if args.here:
        serve(args)
        return
    # For this process and those that it starts, which make as many threads as there are cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    from bert_tf.batches.record_set import RecordSet
    from bert_tf.run.run_folder import provenance

    folders = args.input_files.split(",")
    names = args.names.split(",") if args.names else folders
    sets = {name: open_set(folder) for name, folder in zip(names, folders)}
    facts = provenance()
    versions = facts["versions"]
    print("# Reading records\n")
    print(
        f"Batches of {args.batch_size} ({args.batch_size // args.micro_batch_size} x {args.micro_batch_size}), "
        f"{args.num_batches} a turn, {args.rounds} interleaved rounds, medians; one core of {facts['processor']}; "
        f"Python {versions['python']}, NumPy {versions['numpy']}, TensorFlow "
        f"{versions.get('tensorflow') or versions['tensorflow-cpu']}.\n"
    )
    for name, records in sets.items():
        size = sum(path.stat().st_size for path in records.files) / records.num_instances
        print(f"- {name}: {records.num_instances:,} records of {size:,.0f} bytes in {len(records.files)} files")
    print(
        "\n| records | | a second | a processor second | times the first's | us of the core for one |\n"
        "|---|---|---|---|---|---|",
        flush=True,
    )
    for (name, records), folder in zip(sets.items(), folders):
        table(name, folder, isinstance(records, RecordSet), args)


if __name__ == "__main__":
    main()
