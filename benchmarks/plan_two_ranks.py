"""The planner for clusters beside two ranks that really run on this machine.

Two processes with one thread each make a small model's updates with the run's own step, in turns each for itself and as
two Horovod ranks with Gloo. The former give the time of a micro-batch and of the rest of an update; an all-reduce of
one tensor gives the speed of the link. From these the planner adds up what two ranks should take. The fastest of many
updates counts, because other load on the machine can only make an update slower.

    python -m benchmarks plan_two_ranks
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

from bert_tf.config import BertConfig
from bert_tf.memory.plan import FLOAT, Workload
from bert_tf.planning.gpus import Gpu
from bert_tf.planning.update_time import LINK_SHARE, Cluster, update_time
from bert_tf.run.run_folder import provenance

NEEDS = "Horovod, and a machine that does nothing else"
WORK = Workload(BertConfig(30522, 64, 2, 1, 256), 64, 10, "off", 8)  # without compilation, which would take longer
ACCUMULATIONS = (1, 4)
MESSAGE_BYTES = 32_000_000
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def start(rounds: int) -> dict[str, float]:
    """Runs `measure` and returns its figures."""
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    this_program = [sys.executable, "-m", "benchmarks", "plan_two_ranks", "--measure", "--rounds", str(rounds)]
    command = ["horovodrun", "--gloo", "-np", "2", *this_program]
    answer = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    return json.loads(answer[answer.index("{") : answer.rindex("}") + 1])


def measure(rounds: int) -> None:
    """Called on each rank: prints the fastest update by its micro-batches, and the fastest all-reduce."""
    import numpy as np
    import tensorflow as tf

    from benchmarks.made_up import made_up_rows, make_state
    from bert_tf.model.losses import PretrainingObjective
    from bert_tf.ranks.connect import connect
    from bert_tf.ranks.workers import Workers
    from bert_tf.training.step import TrainStep

    together = connect(use_horovod=True)
    rows = {number: made_up_rows(WORK, number) for number in ACCUMULATIONS}
    values, count = [tf.ones([MESSAGE_BYTES // FLOAT])], itertools.count()

    def updates(workers: Workers) -> dict[int, Callable[[], Any]]:
        step = TrainStep(make_state(WORK), PretrainingObjective(), workers, seed=1)
        return {
            number: lambda features=features: float(step(features, next(count), is_long=False).gradient_norm)
            for number, features in rows.items()
        }

    works = {f"alone {number}": work for number, work in updates(Workers()).items()}
    works.update({f"together {number}": work for number, work in updates(together).items()})
    works["message"] = lambda: together.mean(values)
    fastest = dict.fromkeys(works, math.inf)
    for number in range(rounds + 1):
        for name, work in works.items():
            together.gather(np.zeros([1]))
            started = time.perf_counter()
            work()
            if number:  # the first compiles
                fastest[name] = min(fastest[name], time.perf_counter() - started)
    if together.is_chief:
        print(json.dumps(fastest), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.rounds)
        return
    found = start(args.rounds)
    one, two = ({number: found[f"{how} {number}"] for number in ACCUMULATIONS} for how in ("alone", "together"))
    few, many = ACCUMULATIONS[0], ACCUMULATIONS[-1]
    each = (one[many] - one[few]) / (many - few)
    beside, message = one[few] - few * each, found["message"]
    gpu = Gpu(1.0, 1.0, math.inf, math.inf, MESSAGE_BYTES / message / LINK_SHARE)
    facts = provenance()
    print(
        f"{facts['processor']}, {facts['num_cores']} cores, load {os.getloadavg()[0]:.1f} at the end; fastest of "
        f"{args.rounds} updates, ms. {WORK.num_parameters / 1e6:.1f} million parameters, micro-batches of "
        f"{WORK.micro_batch_size} x {WORK.max_seq_length}: {1e3 * each:.1f} each and {1e3 * beside:.1f} beside; an "
        f"all-reduce of {MESSAGE_BYTES / 1e6:.0f} MB {1e3 * message:.1f}.\n\n"
        "| micro-batches of a rank | for itself | two planned | two measured | error |\n|---|---|---|---|---|"
    )
    for number in ACCUMULATIONS:
        plan = update_time(Cluster(gpu, 1, 2, math.inf), WORK, number, rate=WORK.micro_batch_size / each)
        planned, measured = beside + plan.compute + plan.waiting + plan.all_reduce, two[number]
        cells = (one[number], planned, measured)
        shown = " | ".join(f"{1e3 * secs:.1f}" for secs in cells)
        print(f"| {number} | {shown} | {planned / measured - 1:+.0%} |")


if __name__ == "__main__":
    main()
