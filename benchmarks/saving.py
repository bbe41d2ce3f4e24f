"""Time that a run loses to its checkpoints: written while the updates wait, and in a thread while they continue.

Updates of a model with random weights on generated rows (one process), with a checkpoint after the first update of a
turn. A turn's time ends with its last update; the wait for the last write, so that it does not delay the next turn,
is not timed. Checkpoints are collected and written by the run's own code.

    python -m benchmarks saving --bert_model base
"""

from __future__ import annotations

import argparse
import functools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from benchmarks.child import cpu_secs
from benchmarks.frame import Bench
from benchmarks.made_up import made_up_rows, make_state, make_step
from bert_tf.bert_config import BertConfig
from bert_tf.memory.plan import Workload
from bert_tf.run.checkpoint import CheckpointFolder

NEEDS = "nothing"
ROUNDS, CORES = 3, 0
VOCABULARY = 30522
VARIANTS = ("without a checkpoint", "the updates wait for the disk", "written in a thread")


class Updates:
    """Turns of `num_updates` updates, with a checkpoint after the first of them."""

    def __init__(self, options: argparse.Namespace, folder: Path):
        config = BertConfig.preset(options.bert_model, VOCABULARY)
        work = Workload(config, 128, 20, "blocks", options.micro_batch, "fp32")
        self._state, self._num_updates = make_state(work), options.num_updates
        self._step = make_step(work, state=self._state)
        self._features = made_up_rows(work, options.accumulation)
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

    def run(self, variant: str) -> dict[str, float]:
        written: Future[float] | None = None
        waited_secs, started, cpu = 0.0, time.monotonic(), cpu_secs()
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
        secs = {"wall_secs": time.monotonic() - started, "cpu_secs": cpu_secs() - cpu}
        write_secs = written.result() if written else 0.0
        return {**secs, "updates stood still, s": waited_secs, "writing took, s": write_secs}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bert_model", default="base")
    parser.add_argument("--micro_batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches in an update")
    parser.add_argument("--num_updates", type=int, default=4, help="in a turn; together longer than writing takes")


def run(bench: Bench) -> None:
    options = bench.options
    updates = Updates(options, bench.folder)
    updates.update()  # compiles
    title = f"{options.num_updates} updates of {options.accumulation} x {options.micro_batch} sequences of 128"
    variants = {name: functools.partial(updates.run, name) for name in VARIANTS}
    bench.compare(title, variants, amount=options.num_updates, unit="updates", clock="wall")
