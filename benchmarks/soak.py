"""Whether a long training's memory grows: thousands of updates of a tiny model, as a user starts them.

`run_pretraining.py` trains on records of the bundled sample, with checkpoints, logs, TensorBoard's events and the
report, until `--updates` are done. Its resident memory is read after every log line. What comes after the first
thousand updates, when everything has been compiled and allocated, is the growth.

    python -m benchmarks soak                    # 40,000 updates
    python -m benchmarks soak --updates 5000
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.frame import CHECKOUT, Bench, prepare_sample
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.run.events import read_events

NEEDS = "nothing; about ten minutes"
CORES = 0
SETTLED_UPDATES, WINDOW = 1000, 3000
UPDATES_A_LINE, UPDATES_A_CHECKPOINT = 100, 500
ROWS, LENGTH, PREDICTIONS = 4, 32, 5
MIB, SECS_BETWEEN_READINGS = 1 << 20, 0.2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--updates", type=int, default=40_000, help="%(default)s")
    parser.add_argument("--bert_model", default="tiny", help="%(default)s")


def command(options: argparse.Namespace, data_dir: Path, run_folder: Path) -> list[str]:
    return [
        sys.executable,
        str(CHECKOUT / "run_pretraining.py"),
        f"--input_files={data_dir}/tfrecord/*/*/training/*.tfrecord",
        f"--bert_model={options.bert_model}",
        f"--model_dir={run_folder}",
        f"--train_batch_size={ROWS}",
        f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}",
        f"--num_train_steps={options.updates}",
        "--warmup_steps=100",
        "--learning_rate=1e-4",
        f"--display_loss_steps={UPDATES_A_LINE}",
        f"--save_checkpoint_steps={UPDATES_A_CHECKPOINT}",
    ]


def resident_by_update(process: subprocess.Popen, run_folder: Path, updates: int) -> dict[int, float]:
    """MiB after the updates that were logged, as the process goes on."""
    found: dict[int, float] = {}
    memory = psutil.Process(process.pid)
    with Progress(total=updates, unit="updates", description="training") as bar:
        while process.poll() is None:
            time.sleep(SECS_BETWEEN_READINGS)
            lines = [event["update"] for event in read_events(run_folder) if event["event"] == "train"]
            if lines and lines[-1] not in found:
                bar.update(lines[-1] - max(found, default=0))
                try:
                    found[lines[-1]] = memory.memory_info().rss / MIB
                except psutil.Error:
                    break
    return found


def median_within(found: dict[int, float], first: int, end: int) -> tuple[str, float]:
    """A checkpoint and the report need some 30 MiB for a while, so that single readings say little."""
    return f"{first:,} to {end:,}", statistics.median(mib for update, mib in found.items() if first <= update < end)


def run(bench: Bench) -> None:
    data_dir, run_folder = bench.folder / "data", bench.folder / "run"
    prepare_sample(data_dir, ((LENGTH, PREDICTIONS),))
    log = bench.folder / "log"
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command(bench.options, data_dir, run_folder), stdout=output, stderr=subprocess.STDOUT
        )
        found = resident_by_update(process, run_folder, bench.options.updates)
    if process.wait() or max(found, default=0) < SETTLED_UPDATES + 2 * WINDOW:
        raise UserError(f"the training ended with code {process.returncode}: {log.read_text()[-1000:]}")
    windows = [median_within(found, first, first + WINDOW) for first in range(SETTLED_UPDATES, max(found), WINDOW)]
    bench.table("Resident memory, medians", ["updates", "MiB"], windows)
    growth = windows[-1][1] - windows[0][1]
    apart = WINDOW * (len(windows) - 1)
    bench.table(
        "Growth between the first and the last of them", ["MiB", "bytes an update"], [[growth, growth * MIB / apart]]
    )
