"""Whether a long training's memory grows: thousands of updates of a tiny model, as a user starts them.

`run_pretraining.py` trains on records of the bundled sample, with checkpoints, logs, TensorBoard's events and the
report. Its resident memory is read about every second. What comes after the first thousand updates, when everything has
been compiled and allocated, is the growth.

    python -m benchmarks soak                    # 40,000 updates
    python -m benchmarks soak --updates 12000
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import psutil

from benchmarks.frame import CHECKOUT, Bench, prepare_sample
from bert_tf.base.errors import UserError
from bert_tf.run.events import read_events

NEEDS = "nothing; about ten minutes"
CORES = 0
SETTLED_UPDATES, WINDOW = 1000, 3000
FEWEST_UPDATES = SETTLED_UPDATES + 2 * WINDOW
LENGTH, PREDICTIONS = 32, 5
MIB = 1 << 20
FLAGS = (
    f"--bert_model=tiny --train_batch_size=4 --max_seq_length={LENGTH} --max_predictions_per_seq={PREDICTIONS} "
    "--warmup_steps=100 --learning_rate=1e-4 --display_loss_steps=100 --save_checkpoint_steps=500"
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--updates", type=int, default=40_000, help=f"at least {FEWEST_UPDATES:,}; %(default)s")


def run(bench: Bench) -> None:
    if bench.options.updates < FEWEST_UPDATES:
        raise UserError(f"--updates is {bench.options.updates}; at least {FEWEST_UPDATES:,} are needed")
    data_dir, run_folder = bench.folder / "data", bench.folder / "run"
    prepare_sample(data_dir, ((LENGTH, PREDICTIONS),))
    records = f"--input_files={data_dir}/tfrecord/*/*/training/*.tfrecord"
    flags = [records, f"--model_dir={run_folder}", f"--num_train_steps={bench.options.updates}", *FLAGS.split()]
    readings: list[tuple[int, float]] = []  # update and MiB
    with subprocess.Popen([sys.executable, str(CHECKOUT / "run_pretraining.py"), *flags]) as process:
        while process.poll() is None:
            resident = psutil.Process(process.pid).memory_info().rss / MIB
            updates = [event["update"] for event in read_events(run_folder) if event["event"] == "train"]
            readings.append((max(updates, default=0), resident))
            time.sleep(1)
    if process.returncode:
        raise UserError(f"the training ended with code {process.returncode}; see above why")
    starts = range(SETTLED_UPDATES, bench.options.updates - WINDOW + 1, WINDOW)
    # Medians: a checkpoint and the report need some 30 MiB for a while.
    windows = [
        (f"{start:,} to {start + WINDOW:,}", statistics.median(mib for at, mib in readings if 0 <= at - start < WINDOW))
        for start in starts
    ]
    bench.table("Resident memory, medians", ["updates", "MiB"], windows)
    growth = windows[-1][1] - windows[0][1]
    row = [growth, growth * MIB / (starts[-1] - starts[0])]
    bench.table("Growth between the first and the last of them", ["MiB", "bytes an update"], [row])
