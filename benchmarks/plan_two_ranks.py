"""The planner for clusters beside real runs on this machine: from runs of one rank, and the speed of a message, to two.

Runs run_pretraining.py, alone and as two ranks of Horovod, each with one thread, at several accumulations in turns.
From the single rank follow a micro-batch's time and what an update takes beside; from an all-reduce of one large
tensor follows the speed of the link. The planner adds up what two ranks should take.

    python benchmarks/plan_two_ranks.py --folder results/plan_two_ranks
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from bert_tf.config import GOOGLE_VOCAB_SIZE, BertConfig  # noqa: E402
from bert_tf.memory.plan import Workload  # noqa: E402
from bert_tf.planning.cards import Card  # noqa: E402
from bert_tf.planning.update_time import LINK_SHARE, Cluster, update_time  # noqa: E402
from bert_tf.records.schema import InstanceArrays  # noqa: E402
from bert_tf.records.writer import RecordWriter  # noqa: E402
from bert_tf.run.run_folder import provenance  # noqa: E402

MESSAGE_BYTES = 100_000_000
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
ALL_REDUCE = "--all_reduce"


def start(command: Sequence[str], num_ranks: int) -> str:
    """What `num_ranks` processes print."""
    launcher = ["horovodrun", "--gloo", "-np", str(num_ranks)] if num_ranks > 1 else []
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        [*launcher, sys.executable, *command], env=environment, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def print_all_reduce_secs() -> None:
    """Called on both ranks."""
    import tensorflow as tf

    from bert_tf.ranks.connect import connect

    workers, best = connect(use_horovod=True), math.inf
    values = [tf.ones([MESSAGE_BYTES // 4])]
    for _ in range(15):
        workers.gather(np.zeros([1]))
        started = time.perf_counter()
        workers.mean(values)
        best = min(best, time.perf_counter() - started)
    if workers.is_chief:
        print(f"secs {best}", flush=True)


def write_records(folder: Path, num_records: int) -> None:
    rng, ones = np.random.default_rng(0), np.ones([num_records, 128], np.int64)
    positions = np.tile(np.arange(1, 21), (num_records, 1))
    ids = rng.integers(5, GOOGLE_VOCAB_SIZE, [num_records, 128])
    labels = np.take_along_axis(ids, positions, 1)
    weights = np.ones([num_records, 20], np.float32)
    folder.mkdir()
    with RecordWriter(folder / "x_training_0.tfrecord") as writer:
        writer.write(InstanceArrays(ids, ones, 0 * ones, positions, labels, weights, np.zeros([num_records, 1], int)))


def update_secs(folder: Path, work: Workload, accumulation: int, num_ranks: int, num_updates: int) -> float:
    """The fastest update of a run: whatever else this machine does makes updates only slower."""
    run = folder / f"{num_ranks}_{accumulation}_{time.monotonic_ns()}"
    flags = {
        "bert_config_file": folder / "bert_config.json",
        "input_files": folder / "records",
        "model_dir": run,
        "train_batch_size": work.micro_batch_size,
        "num_accumulation_steps": accumulation,
        "num_train_steps": num_updates,
        "warmup_steps": 1,
        "save_checkpoint_steps": 1000,
        "display_loss_steps": 1,
        "enable_xla": "true",
        "use_horovod": str(num_ranks > 1).lower(),
    }
    start([str(ROOT / "run_pretraining.py"), *(f"--{name}={value}" for name, value in flags.items())], num_ranks)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return min(line["update_secs"] for line in lines if line["event"] == "train" and line["update"] > 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a new one for records and runs; removed at the end")
    parser.add_argument("--bert_model", default="tiny")
    parser.add_argument("--micro_batch", type=int, default=16)
    parser.add_argument("--accumulations", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--num_updates", type=int, default=40, help="of a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(ALL_REDUCE, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.all_reduce:
        print_all_reduce_secs()
        return
    args.folder.mkdir(parents=True)
    work = Workload(
        BertConfig.preset(args.bert_model, GOOGLE_VOCAB_SIZE), 128, 20, "blocks", args.micro_batch, num_ranks=2
    )
    found = {(ranks, steps): math.inf for ranks in (1, 2) for steps in args.accumulations}
    message = math.inf
    try:
        write_records(args.folder / "records", 2048)
        (args.folder / "bert_config.json").write_text(work.bert_config.to_json())
        for _ in range(args.rounds):
            for ranks, steps in found:
                secs = update_secs(args.folder, work, steps, ranks, args.num_updates)
                found[ranks, steps] = min(found[ranks, steps], secs)
                print(f"{ranks} rank(s), {steps} micro-batches: {secs:.3f} s", file=sys.stderr, flush=True)
            text = start([__file__, ALL_REDUCE], 2)
            message = min(message, float(text.partition("secs ")[2].split()[0]))
    finally:
        shutil.rmtree(args.folder)
    few, many = min(args.accumulations), max(args.accumulations)
    each = (found[1, many] - found[1, few]) / (many - few)
    beside = found[1, few] - few * each
    card = Card(1.0, 1.0, math.inf, math.inf, MESSAGE_BYTES / message / LINK_SHARE)
    facts = provenance()
    print(
        f"{facts['processor']}, {facts['num_cores']} cores, load {os.getloadavg()[0]:.1f} at the end; fastest update "
        f"of {args.rounds} runs each. {args.bert_model}, micro-batches of {args.micro_batch} x 128: {each:.3f} s each "
        f"and {beside:.3f} s beside; an all-reduce of {MESSAGE_BYTES / 1e6:.0f} MB {message:.3f} s.\n\n"
        "| micro-batches of a rank | one rank, s | two ranks planned, s | measured, s | error |\n|---|---|---|---|---|"
    )
    for steps in args.accumulations:
        plan = update_time(Cluster(card, 1, 2, math.inf), work, steps, rate=args.micro_batch / each)
        planned, measured = beside + plan.compute + plan.waiting + plan.all_reduce, found[2, steps]
        print(f"| {steps} | {found[1, steps]:.3f} | {planned:.3f} | {measured:.3f} | {planned / measured - 1:+.0%} |")


if __name__ == "__main__":
    main()
