"""The planner for clusters beside two ranks that really run on this machine.

A small model's updates, by the run's own step, alone and as two ranks of Horovod with Gloo, a thread each, at several
accumulations in turns. From the single rank follow a micro-batch's time and what an update takes beside; from an
all-reduce of one tensor follows the speed of the link. From these the planner adds up what two ranks should take.
The fastest of many updates counts, because whatever else the machine does makes an update only slower.

    python benchmarks/plan_two_ranks.py
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bert_tf.config import BertConfig  # noqa: E402
from bert_tf.memory.plan import FLOAT, Workload  # noqa: E402
from bert_tf.planning.cards import Card  # noqa: E402
from bert_tf.planning.update_time import LINK_SHARE, Cluster, update_time  # noqa: E402
from bert_tf.run.run_folder import provenance  # noqa: E402

WORK = Workload(BertConfig(30522, 64, 2, 1, 256), 64, 10, "off", 8)  # nothing is compiled, which would take longer
ACCUMULATIONS = (1, 4, 8)
MESSAGE_BYTES = 32_000_000
ONE_THREAD = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def start(num_ranks: int, rounds: int) -> dict[str, float]:
    """What `measure` finds on that many ranks."""
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    launcher = ["horovodrun", "--gloo", "-np", str(num_ranks)] if num_ranks > 1 else []
    command = [*launcher, sys.executable, __file__, "--measure", str(num_ranks), "--rounds", str(rounds)]
    answer = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    return json.loads(answer[answer.index("{") : answer.rindex("}") + 1])


def measure(num_ranks: int, rounds: int) -> None:
    """Called on each rank: prints the fastest update by its micro-batches, and the fastest all-reduce."""
    import numpy as np
    import tensorflow as tf
    from made_up import made_up_rows, make_state

    from bert_tf.model.losses import PretrainingObjective
    from bert_tf.ranks.connect import connect
    from bert_tf.training.step import StepSettings, TrainStep

    workers = connect(use_horovod=num_ranks > 1)
    step = TrainStep(make_state(WORK), PretrainingObjective(), workers, StepSettings(seed=1))
    rows = {number: made_up_rows(WORK, number) for number in ACCUMULATIONS}
    values, count = [tf.ones([MESSAGE_BYTES // FLOAT])], iter(range(1 << 30))

    def update(number: int) -> Callable[[], Any]:
        return lambda: float(step(rows[number], next(count)).gradient_norm)

    works = {str(number): update(number) for number in ACCUMULATIONS}
    works["message"] = lambda: workers.mean(values)
    fastest = dict.fromkeys(works, math.inf)
    for number in range(rounds + 1):
        for name, work in works.items():
            workers.gather(np.zeros([1]))
            started = time.perf_counter()
            work()
            if number:  # the first compiles
                fastest[name] = min(fastest[name], time.perf_counter() - started)
    if workers.is_chief:
        print(json.dumps(fastest), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure, args.rounds)
        return
    one, two = start(1, args.rounds), start(2, args.rounds)
    few, many = ACCUMULATIONS[0], ACCUMULATIONS[-1]
    each = (one[str(many)] - one[str(few)]) / (many - few)
    beside, message = one[str(few)] - few * each, two["message"]
    card = Card(1.0, 1.0, math.inf, math.inf, MESSAGE_BYTES / message / LINK_SHARE)
    facts = provenance()
    print(
        f"{facts['processor']}, {facts['num_cores']} cores, load {os.getloadavg()[0]:.1f} at the end; fastest of "
        f"{args.rounds} updates, ms. {WORK.num_parameters / 1e6:.1f} million parameters, micro-batches of "
        f"{WORK.micro_batch_size} x {WORK.max_seq_length}: {1e3 * each:.1f} each and {1e3 * beside:.1f} beside; an "
        f"all-reduce of {MESSAGE_BYTES / 1e6:.0f} MB {1e3 * message:.1f}.\n\n"
        "| micro-batches of a rank | one rank | two planned | two measured | error |\n|---|---|---|---|---|"
    )
    for number in ACCUMULATIONS:
        plan = update_time(Cluster(card, 1, 2, math.inf), WORK, number, rate=WORK.micro_batch_size / each)
        planned, measured = beside + plan.compute + plan.waiting + plan.all_reduce, two[str(number)]
        cells = (one[str(number)], planned, measured)
        shown = " | ".join(f"{1e3 * secs:.1f}" for secs in cells)
        print(f"| {number} | {shown} | {planned / measured - 1:+.0%} |")


if __name__ == "__main__":
    main()
