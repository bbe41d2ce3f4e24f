"""Disturbs a two-phase pre-training at random moments and compares the results.

First `scripts/run_pretraining_lamb.sh` runs undisturbed, with a tiny model and a checkpoint every few updates. Then the
same command is started, disturbed and started again, until it finishes. Then every file of every remaining checkpoint
and the evaluation must have the same bytes as the undisturbed ones (but see `checkpoint_differences`), and the next
round begins. The disturbances, shuffled:

* kill -9 of the launcher, of one rank's program, or of every process at once;
* SIGTERM or SIGUSR1 to the launcher, which must exit with 75 (unless it has finished before);
* SIGSTOP of one of several ranks: all must end by themselves within a minute;
* a flipped byte in the newest of several checkpoints, after everything was killed.

Half of them come at a random moment within the time that the undisturbed phases took, the others right after the run
has begun to save, has started (and is compiling), or has made its last update.

    python -m benchmarks kill_training --kills 30 --num_ranks 1,2

Ends with exit code 1 if anything differs. Ctrl-C ends it with the results so far.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import psutil

from benchmarks import killing
from benchmarks.frame import CHECKOUT, prepare_sample
from benchmarks.killing import Outcome, differences, flip_bit, numbers
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.run.events import read_events

NEEDS = "nothing; an hour"
# 36 updates with 16 sequences per rank, then 32 with 2.
ARGUMENTS = "16 2 16 1e-2 5e-3 fp32 {use_xla} {num_ranks} 4 2 40 4 1 1 tiny"
SECS_TO_DIE, SECS_TO_GIVE_UP = 60, 900
SECS_AFTER_EVENT = 0.5
KINDS = ("launcher", "rank", "all", "signal", "stop", "damage")
STATES = ("starting", "compiling", "training", "saving", "evaluating", "ending")
IN_PHASE_2 = "in phase 2"


class Run:
    """One start of the launcher in `folder`."""

    def __init__(self, folder: Path, data_dir: Path, num_ranks: int, use_xla: str):
        self.folder = folder
        self._before = {phase: len(self.events(phase)) for phase in (1, 2)}
        environment = {**os.environ, "DATA_DIR": str(data_dir), "RESULTS_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        command = f"bash scripts/run_pretraining_lamb.sh {ARGUMENTS.format(num_ranks=num_ranks, use_xla=use_xla)}"
        with open(folder.with_suffix(".log"), "ab") as log:
            self.process = subprocess.Popen(
                command.split(), env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=CHECKOUT
            )

    def events(self, phase: int) -> list[dict]:
        return read_events(self.folder / f"phase_{phase}")

    def new_events(self, phase: int) -> list[dict]:
        return self.events(phase)[self._before[phase] :]

    @property
    def phase(self) -> int:
        is_over = any(event["event"] == "end" and event["reason"] == "done" for event in self.events(1))
        return 2 if is_over or self.new_events(2) else 1

    def is_saving(self) -> bool:
        return any(self.folder.glob(f"phase_{self.phase}/checkpoints/.ckpt-*"))

    def state(self) -> str:
        """What the run is doing, or was doing when it was killed."""
        events = self.new_events(self.phase)
        kinds = [event["event"] for event in events]
        if self.is_saving():
            return "saving"
        if "evaluation" in kinds:
            return "ending"
        updates = [event["update"] for event in events if event["event"] in ("start", "train")]
        if updates and updates[-1] == next(event["total_updates"] for event in events if event["event"] == "start"):
            return "evaluating"
        return "training" if "train" in kinds else "compiling" if "start" in kinds else "starting"

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

    def checkpoints(self) -> list[Path]:
        return sorted(self.folder.glob(f"phase_{self.phase}/checkpoints/ckpt-*"))


def wait_for_end(processes: list[psutil.Process]) -> str:
    """Waits until all processes of a run have ended; returns those that took longer than they may."""
    _, late = psutil.wait_procs(processes, timeout=SECS_TO_DIE)
    names = "; ".join(map(str, late))
    _, alive = psutil.wait_procs(late, timeout=SECS_TO_GIVE_UP)
    if alive:
        raise SystemExit(f"{SECS_TO_GIVE_UP} s after the disturbance there are still {alive}")
    return names


def result_files(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("phase_*/checkpoints/**/*"), *folder.glob("phase_*/eval_results.txt")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files) if path.is_file()}


def shared(files: dict[str, bytes], others: dict[str, bytes], last: list[str]) -> dict[str, bytes]:
    """The files in folders that `others` has, too, or that are in `last`."""
    folders = {str(Path(name).parent) for name in others} | set(last)
    return {name: content for name, content in files.items() if str(Path(name).parent) in folders}


def checkpoint_differences(after: dict[str, bytes], undisturbed: dict[str, bytes], had_signal: bool) -> list[str]:
    """The files whose bytes differ, or that are missing or left over.

    After a signal the run saves an extra checkpoint, so that a different one of the few kept may have
    been deleted; then only checkpoints that both runs have are compared, and the last one of each phase.
    """
    if had_signal:
        folders = sorted({str(Path(name).parent) for name in undisturbed if "ckpt-" in name})
        last = [max(names) for _, names in itertools.groupby(folders, lambda name: name.split("/")[0])]
        after, undisturbed = shared(after, undisturbed, last), shared(undisturbed, after, last)
    return differences(after, undisturbed)


class Training:
    """A pre-training on some number of ranks, in one folder for all rounds: checkpoints name where they began."""

    def __init__(self, num_ranks: int, data_dir: Path, folder: Path, options: argparse.Namespace):
        self._folder, self._data_dir, self._num_ranks = folder, data_dir, num_ranks
        self._use_xla, self._generator = options.use_xla, random.Random(options.seed)
        self._had_signal = False
        self.outcome = Outcome(f"{num_ranks} rank(s)")
        started = time.monotonic()
        self.finish(self.start())
        self.outcome.undisturbed_secs = time.monotonic() - started
        self._undisturbed = result_files(folder)
        kinds = [self._generator.choice(KINDS[:3]) for _ in range(options.kills)] + ["signal"] * options.signals
        kinds += ["damage"] * options.damages + ["stop"] * (options.stops if num_ranks > 1 else 0)
        self._generator.shuffle(kinds)
        self.kinds = kinds

    def reset(self) -> None:
        shutil.rmtree(self._folder)
        self._had_signal = False

    def start(self) -> Run:
        self._folder.mkdir(exist_ok=True)
        return Run(self._folder, self._data_dir, self._num_ranks, self._use_xla)

    def finish(self, run: Run) -> None:
        code = run.process.wait()
        if code:
            raise SystemExit(f"exit code {code} without a disturbance; see {self._folder.with_suffix('.log')}")

    def differences(self) -> list[str]:
        return checkpoint_differences(result_files(self._folder), self._undisturbed, self._had_signal)

    def disturb(self, run: Run, kinds: Sequence[str]) -> str | None:
        """The first kind for which the run is in the right state; the others get their turn later."""
        if not self._wait_for_moment(run):
            return None
        processes, ranks = run.processes(), run.ranks()
        impossible = ("rank", "stop") * (not ranks) + ("damage",) * (len(run.checkpoints()) < 2)
        kind = next((kind for kind in kinds if kind not in impossible), None)
        if kind is None:
            return None
        if kind in ("all", "damage"):
            run.process.kill()
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        elif kind == "signal":
            run.process.send_signal(self._generator.choice([signal.SIGTERM, signal.SIGUSR1]))
        elif kind == "launcher":
            run.process.kill()
        else:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._generator.choice(ranks).send_signal(signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        self._await_end(run, kind, processes)
        self._had_signal |= kind == "signal"
        if kind == "damage":
            flip_bit(self._generator.choice(list(run.checkpoints()[-1].iterdir())), self._generator)
        return kind

    def _wait_for_moment(self, run: Run) -> bool:
        """Waits for a random moment; returns False if the run finished before."""
        generator, delay = self._generator, 0.0
        events = [run.is_saving, lambda: run.state() == "compiling", lambda: run.state() == "evaluating"]
        if generator.random() < 0.5:
            deadline = time.monotonic() + generator.uniform(0, self.outcome.undisturbed_secs / 2)
            has_come: Callable[[], bool] = lambda: time.monotonic() > deadline  # noqa: E731
        else:
            has_come = generator.choice(events)
            delay = generator.choice([0.0, generator.uniform(0, SECS_AFTER_EVENT)])
        while not has_come():
            if run.process.poll() is not None:
                return False
            time.sleep(0.005)
        time.sleep(delay)
        return run.process.poll() is None

    def _await_end(self, run: Run, kind: str, processes: list[psutil.Process]) -> None:
        """Waits until nothing is left of a disturbed run, and notes how it ended."""
        disturbed = time.monotonic()
        code = run.process.wait()  # not with psutil, which would consume the exit code
        late = wait_for_end(processes)
        secs, state = time.monotonic() - disturbed, run.state()
        if late or secs > SECS_TO_DIE:
            self.outcome.faults.append(f"{secs:.0f} s after {kind} while {state} there was still: {late or 'launcher'}")
        # In its first second a program has no signal handlers yet.
        if kind == "signal" and code not in (0, STOPPED_EXIT_CODE) and state != "starting":
            self.outcome.faults.append(f"exit code {code} after a signal while {state}")
        if kind in ("rank", "stop") and code in (0, STOPPED_EXIT_CODE):
            self.outcome.faults.append(f"exit code {code} after a rank was lost while {state}")
        self.outcome.counts.update([kind, state, *[IN_PHASE_2] * (run.phase == 2)])


def main() -> None:
    parser = killing.make_parser(__doc__, kills=30)
    parser.add_argument("--signals", type=int, default=4, help="SIGTERM and SIGUSR1; %(default)s")
    parser.add_argument("--stops", type=int, default=2, help="ranks stopped; %(default)s")
    parser.add_argument("--damages", type=int, default=3, help="damaged checkpoints; %(default)s")
    parser.add_argument("--num_ranks", type=numbers, default=[1, 2], help="one after the other; 1,2")
    parser.add_argument("--use_xla", choices=["true", "false"], default="false", help="longer starts; %(default)s")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as scratch:
        data_dir = Path(scratch) / "data"
        prepare_sample(data_dir, ((128, 20), (512, 80)))
        for num_ranks in options.num_ranks:
            training = Training(num_ranks, data_dir, Path(scratch) / f"run_{num_ranks}", options)
            outcomes.append(training.outcome)
            killing.torment(training, training.kinds)
    killing.report(outcomes, (*KINDS, *STATES, IN_PHASE_2))


if __name__ == "__main__":
    main()
