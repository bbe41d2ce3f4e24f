"""Time that a run loses to its checkpoints: written while the updates wait, and in a thread while they go on.

Updates of a model from random weights on generated rows (one process), a checkpoint after every few of them. The
variants take turns within each round, so that a busy machine slows all of them alike. A round's loss is its time, until
the last update, over that of as many updates without a checkpoint; then the last write is waited for outside of the
clock, as the next round would wait. What a checkpoint holds and how it is written is the run's own code.

    python benchmarks/saving.py --bert_model base --folder results/saving
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from made_up import made_up_rows, make_state, make_step  # noqa: E402

from bert_tf.config import BertConfig  # noqa: E402
from bert_tf.memory.plan import Workload  # noqa: E402
from bert_tf.run.checkpoint import CheckpointFolder  # noqa: E402
from bert_tf.run.run_folder import provenance  # noqa: E402

VOCABULARY = 30522
VARIANTS = ("without a checkpoint", "the updates wait for the disk", "written in a thread")


class Round(NamedTuple):
    total_secs: float
    waited_secs: float  # for which no update could run
    write_secs: float


class Rounds:
    """Rounds of `num_updates` updates, with a checkpoint after the first of them."""

    def __init__(self, work: Workload, num_updates: int, num_micro_batches: int, folder: Path):
        self._state, self._num_updates = make_state(work), num_updates
        self._step = make_step(work, state=self._state)
        self._features = made_up_rows(work, num_micro_batches)
        self._checkpoints = CheckpointFolder(folder, keep=1, vocab_size=VOCABULARY, companions={})
        self._writer = ThreadPoolExecutor(1)
        self._number = 0

    def update(self) -> None:
        self._number += 1
        float(self._step(self._features, self._number).gradient_norm)

    def _write(self, snapshot) -> float:
        started = time.monotonic()
        self._checkpoints.write(snapshot)
        return time.monotonic() - started

    def run(self, variant: str) -> Round:
        written: Future[float] | None = None
        waited_secs, started = 0.0, time.monotonic()
        self.update()
        if variant != VARIANTS[0]:
            saving = time.monotonic()
            snapshot = self._state.copy(self._checkpoints, {})
            written = self._writer.submit(self._write, snapshot)
            if variant == VARIANTS[1]:
                written.result()
            waited_secs = time.monotonic() - saving
        for _ in range(self._num_updates - 1):
            self.update()
        total_secs = time.monotonic() - started
        return Round(total_secs, waited_secs, written.result() if written else 0.0)


def describe(args: argparse.Namespace, found: dict[str, list[Round]]) -> str:
    facts, plain = provenance(), statistics.median(each.total_secs for each in found[VARIANTS[0]])
    lines = [
        f"{args.bert_model}, {args.num_updates} updates of {args.accumulation} x {args.micro_batch} sequences of 128 "
        f"in a round, {args.rounds} rounds; {facts['processor']}, {facts['num_cores']} cores; load "
        f"{os.getloadavg()[0]:.1f} at the end; medians in seconds.",
        "",
        "| variant | round | lost to the checkpoint | of it the updates stood still | writing took |",
        "|---|---|---|---|---|",
    ]
    for variant, rounds in found.items():
        total, waited, write = (statistics.median(column) for column in zip(*rounds))
        lost = statistics.median(each.total_secs - base.total_secs for each, base in zip(rounds, found[VARIANTS[0]]))
        lines.append(f"| {variant} | {total:.1f} | {lost:.1f} | {waited:.1f} | {write:.1f} |")
    lines.append(f"\nAn update without a checkpoint takes {plain / args.num_updates:.1f} s.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert_model", default="base")
    parser.add_argument("--micro_batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches in an update")
    parser.add_argument("--num_updates", type=int, default=4, help="in a round; together longer than writing takes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="a new one for the checkpoints; removed at the end")
    args = parser.parse_args()
    work = Workload(BertConfig.preset(args.bert_model, VOCABULARY), 128, 20, "blocks", args.micro_batch, "fp32")
    args.folder.mkdir(parents=True)
    rounds = Rounds(work, args.num_updates, args.accumulation, args.folder)
    rounds.update()  # compiles
    found: dict[str, list[Round]] = {variant: [] for variant in VARIANTS}
    for _ in range(args.rounds):
        for variant in VARIANTS:
            found[variant].append(rounds.run(variant))
            print(f"{variant}: {found[variant][-1]}", file=sys.stderr, flush=True)
    print(describe(args, found))
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()
