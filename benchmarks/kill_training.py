"""Kills a two-phase pre-training at random moments and compares the results.

First `scripts/run_pretraining_lamb.sh` runs undisturbed, with a tiny model and a checkpoint every few updates. Then the
same command is started, killed and started again, until it finishes. Then every file of every remaining checkpoint and
the evaluation must have the same bytes as the undisturbed ones, and the next round begins. `kill -9` ends the launcher,
one rank's program, or every process at once; all must have ended within a minute.

Half of the kills come at a random moment within the time that the undisturbed phases took, the others right after the
run has begun to save, has started (and is compiling), or has made its last update.

    python -m benchmarks kill_training --kills 30 --num_ranks 1 2

Ends with an error if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks import killing
from benchmarks.frame import CHECKOUT, Bench, prepare_sample
from benchmarks.killing import Subject, differences
from bert_tf.run.events import read_events

NEEDS = "nothing; an hour"
ROUNDS, CORES = 1, 0
# 36 updates with 16 sequences per rank, then 32 with 2.
ARGUMENTS = "16 2 16 1e-2 5e-3 fp32 false {num_ranks} 4 2 40 4 1 1 tiny"
SECS_TO_DIE, SECS_AFTER_MOMENT = 60, 0.5
KINDS = ("launcher", "rank", "all")


class Run:
    """One start of the launcher in `folder`."""

    def __init__(self, folder: Path, data_dir: Path, num_ranks: int):
        self.folder = folder
        self._num_before = {phase: len(self._events(phase)) for phase in (1, 2)}
        environment = {**os.environ, "DATA_DIR": str(data_dir), "RESULTS_DIR": str(folder)}
        command = f"bash scripts/run_pretraining_lamb.sh {ARGUMENTS.format(num_ranks=num_ranks)}"
        with open(folder.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                command.split(), env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=CHECKOUT
            )

    def _events(self, phase: int) -> list[dict]:
        return read_events(self.folder / f"phase_{phase}")

    @property
    def phase(self) -> int:
        return 2 if self._events(2) else 1

    def state(self) -> str:
        """What the run is doing, or was doing when it was killed."""
        if any(self.folder.glob(f"phase_{self.phase}/checkpoints/.ckpt-*")):
            return "saving"
        events = self._events(self.phase)[self._num_before[self.phase] :]
        totals = [event["total_updates"] for event in events if event["event"] == "start"]
        updates = [event["update"] for event in events if event["event"] in ("start", "train")]
        if not totals:
            return "starting"
        if updates[-1] == totals[-1]:
            return "evaluating"
        return "compiling" if len(updates) == 1 else "training"

    def processes(self) -> list[psutil.Process]:
        """All descendants of the launcher."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def ranks(self) -> list[psutil.Process]:
        program = ["-m", "bert_tf.programs.pretraining"]
        ranks = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                ranks += [process] * (process.cmdline()[1:3] == program)
        return ranks


def result_files(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("phase_*/checkpoints/**/*"), *folder.glob("phase_*/eval_results.txt")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files) if path.is_file()}


class Training(Subject[Run]):
    """A pre-training on some number of ranks, in one folder for all rounds: checkpoints name where they began."""

    def __init__(self, num_ranks: int, data_dir: Path, folder: Path, generator: random.Random, kills: int):
        super().__init__(f"{num_ranks} rank(s)", generator, generator.choices(KINDS, k=kills))
        self._folder, self._data_dir, self._num_ranks = folder, data_dir, num_ranks
        started = time.monotonic()
        self.finish(self.start())
        self.undisturbed_secs = time.monotonic() - started
        self._undisturbed = result_files(folder)

    def reset(self) -> None:
        shutil.rmtree(self._folder)

    def start(self) -> Run:
        self._folder.mkdir(exist_ok=True)
        return Run(self._folder, self._data_dir, self._num_ranks)

    def finish(self, run: Run) -> None:
        code = run.process.wait()
        if code:
            raise SystemExit(f"exit code {code} without a disturbance; see {self._folder.with_suffix('.log')}")

    def differences(self) -> list[str]:
        return differences(result_files(self._folder), self._undisturbed)

    def disturb(self, run: Run) -> str | None:
        """Kills by the first of `kinds` that is possible, as there may be no rank; others get their turn later."""
        if not self._wait_for_moment(run):
            return None
        processes, ranks = run.processes(), run.ranks()
        victims: dict[str, list[Any]] = {"launcher": [run.process], "all": [run.process, *processes]}
        victims["rank"] = self.generator.sample(ranks, min(1, len(ranks)))
        kind = next((kind for kind in self.kinds if victims[kind]), None)
        if kind is None:
            return None
        for process in victims[kind]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        code = run.process.wait()  # not with psutil, which would consume the exit code
        _, late = psutil.wait_procs(processes, timeout=SECS_TO_DIE)
        if late:
            raise SystemExit(f"{SECS_TO_DIE} s after a kill ({kind}) while {run.state()} there is still: {late}")
        if kind == "rank" and code == 0:
            self.faults.append(f"exit code 0 after a rank was killed while {run.state()}")
        return kind

    def _wait_for_moment(self, run: Run) -> bool:
        """Waits for a random moment; returns False if the run finished before."""
        generator = self.generator
        if generator.random() < 0.5:
            delay = generator.uniform(0, self.undisturbed_secs / 2)
        else:
            state = generator.choice(["saving", "compiling", "evaluating"])
            delay = generator.choice([0.0, generator.uniform(0, SECS_AFTER_MOMENT)])
            while run.state() != state:
                if run.process.poll() is not None:
                    return False
                time.sleep(0.005)
        time.sleep(delay)
        return run.process.poll() is None


def add_options(parser: argparse.ArgumentParser) -> None:
    killing.add_options(parser, kills=30)
    parser.add_argument("--num_ranks", type=int, nargs="+", default=[1, 2], help="one after the other")


def run(bench: Bench) -> None:
    generator, trainings, data_dir = random.Random(bench.options.seed), list[Training](), bench.folder / "data"
    prepare_sample(data_dir, ((128, 20), (512, 80)))
    for num_ranks in bench.options.num_ranks:
        folder = bench.folder / f"run_{num_ranks}"
        trainings.append(Training(num_ranks, data_dir, folder, generator, bench.options.kills))
        trainings[-1].disturb_runs()
    killing.report(bench, trainings, KINDS)
