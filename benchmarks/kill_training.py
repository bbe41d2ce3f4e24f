"""Disturbs a two-phase pre-training at random moments and compares the results.

First `scripts/run_pretraining_lamb.sh` runs undisturbed, with a tiny model and a checkpoint every
few updates. Then the same command is started, disturbed and started again, until it finishes. Then
every file of every remaining checkpoint (weights, moments, position) and the evaluation must have the
same bytes as the undisturbed ones (but see `checkpoint_differences`), and the next round begins. The
disturbances, shuffled:

* kill -9 of the launcher, of one rank's program, or of every process at once;
* SIGTERM or SIGUSR1 to the launcher, which must exit with 75 (unless it has finished before);
* SIGSTOP of one of several ranks: all must end by themselves within a minute;
* a flipped byte in the newest of several checkpoints, after everything was killed.

Half of them come at a random moment within the time that the undisturbed phases took, the others right
after the run has begun to save, has started (and is compiling), or has made its last update. Afterwards
the files in the run's folder show what the run was doing.

    python -m benchmarks kill_training --kills 30 --num_ranks 1,2
    python -m benchmarks kill_training --data_dir PREPARED    # with 128/20 and 512/80; default: the sample

Ends with exit code 1 if anything differs. Ctrl-C ends it with the results so far.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import psutil

from benchmarks.frame import CHECKOUT, bert_prep
from benchmarks.killing import differences, flip_bit, numbers
from benchmarks.results import table
from bert_tf.base.progress import Progress
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.run.events import read_events

NEEDS = "nothing; an hour"
# 36 updates with 16 sequences per rank, then 32 with 2.
ARGUMENTS = "16 2 16 1e-2 5e-3 fp32 {use_xla} {num_ranks} 4 2 40 4 1 1 tiny"
SECS_TO_DIE, SECS_TO_GIVE_UP = 60, 900
SECS_AFTER_EVENT = 0.5
KINDS = ("launcher", "rank", "all", "signal", "stop", "damage")
STATES = ("starting", "compiling", "training", "saving", "evaluating", "ending")


@dataclasses.dataclass
class Outcome:
    """The result for one number of ranks."""

    num_ranks: int
    undisturbed_secs: float = 0.0
    counts: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    met: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(STATES, 0))
    met_in_phase_2: int = 0
    longest_end: dict[str, float] = dataclasses.field(default_factory=dict)  # s until all was over, by kind
    num_ended: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


class Run:
    """One start of the launcher in `folder`."""

    def __init__(self, folder: Path, data_dir: Path, num_ranks: int, use_xla: str):
        self.folder = folder
        self._before = {phase: len(self.events(phase)) for phase in (1, 2)}
        environment = {**os.environ, "DATA_DIR": str(data_dir), "RESULTS_DIR": str(folder), "CUDA_VISIBLE_DEVICES": ""}
        self.log = open(folder.with_suffix(".log"), "ab")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [
                "bash",
                str(CHECKOUT / "scripts/run_pretraining_lamb.sh"),
                *ARGUMENTS.format(num_ranks=num_ranks, use_xla=use_xla).split(),
            ],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            cwd=CHECKOUT,
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
        return any(self.folder.glob(f"phase_{self.phase}/checkpoints/.unfinished-ckpt-*"))

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
            parent = psutil.Process(self.process.pid)
            return parent.children(recursive=True)
        return []

    def ranks(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[1:2] == [str(CHECKOUT / "run_pretraining.py")]:
                    found.append(process)
        return found

    def wait(self, timeout: float | None = None) -> int:
        return self.process.wait(timeout)

    def finish(self) -> None:
        code = self.wait()
        if code:
            raise SystemExit(f"exit code {code} without a disturbance; see {self.log.name}")


def wait_for_moment(run: Run, secs: float, generator: random.Random) -> bool:
    """Waits for a random moment; returns False if the run finished before."""
    events: dict[str, Callable[[], bool]] = {
        "save": run.is_saving,
        "start": lambda: run.state() == "compiling",
        "last update": lambda: run.state() == "evaluating",
    }
    if generator.random() < 0.5:
        deadline = time.monotonic() + generator.uniform(0, secs)
        has_come = lambda: time.monotonic() > deadline  # noqa: E731
        delay = 0.0
    else:
        has_come = events[generator.choice(list(events))]
        delay = generator.choice([0.0, generator.uniform(0, SECS_AFTER_EVENT)])
    while not has_come():
        if run.process.poll() is not None:
            return False
        time.sleep(0.005)
    time.sleep(delay)
    return run.process.poll() is None


def wait_for_end(processes: list[psutil.Process]) -> str:
    """Waits until all processes of a run have ended; returns those that took longer than they may."""
    _, late = psutil.wait_procs(processes, timeout=SECS_TO_DIE)
    names = []
    for process in late:
        with contextlib.suppress(psutil.Error):
            names.append(" ".join(process.cmdline()[:4]))
    _, alive = psutil.wait_procs(late, timeout=SECS_TO_GIVE_UP)
    if alive:
        raise SystemExit(f"{SECS_TO_GIVE_UP} s after the disturbance there are still {alive}")
    return "; ".join(names)


def newest_checkpoints(run: Run) -> list[Path]:
    return sorted(run.folder.glob(f"phase_{run.phase}/checkpoints/ckpt-*"))


def disturb(run: Run, kind: str, generator: random.Random, outcome: Outcome) -> bool:
    """Applies one disturbance; returns False if the run is not in a state for this kind."""
    processes, ranks = run.processes(), run.ranks()
    if (kind in ("rank", "stop") and not ranks) or (kind == "damage" and len(newest_checkpoints(run)) < 2):
        return False
    if kind in ("all", "damage"):
        run.process.kill()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    elif kind == "signal":
        run.process.send_signal(generator.choice([signal.SIGTERM, signal.SIGUSR1]))
    elif kind == "launcher":
        run.process.kill()
    else:
        with contextlib.suppress(psutil.NoSuchProcess):
            generator.choice(ranks).send_signal(signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
    disturbed = time.monotonic()
    code = run.wait()  # not with psutil, which would consume the exit code
    late = wait_for_end(processes)
    secs = time.monotonic() - disturbed
    if not late and secs > SECS_TO_DIE:
        late = "the launcher"
    if late:
        outcome.faults.append(f"{secs:.0f} s after {kind} while {run.state()} there was still: {late}")
    outcome.longest_end[kind] = max(secs, outcome.longest_end.get(kind, 0.0))
    # In its first second a program has no signal handlers yet.
    if kind == "signal" and code not in (0, STOPPED_EXIT_CODE) and run.state() != "starting":
        outcome.faults.append(f"exit code {code} after a signal while {run.state()}")
    if kind in ("rank", "stop") and code in (0, STOPPED_EXIT_CODE):
        outcome.faults.append(f"exit code {code} after a rank was lost while {run.state()}")
    outcome.counts[kind] += 1
    outcome.met[run.state()] += 1
    outcome.met_in_phase_2 += run.phase == 2
    if kind == "damage":
        flip_bit(generator.choice(list(newest_checkpoints(run)[-1].iterdir())), generator)
    return True


def result_files(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("phase_*/checkpoints/**/*"), *folder.glob("phase_*/eval_results.txt")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files) if path.is_file()}


def of_shared_checkpoints(files: dict[str, bytes], others: dict[str, bytes], last: list[str]) -> dict[str, bytes]:
    """The files in folders that `others` has, too, or that are in `last`."""
    folders = {str(Path(name).parent) for name in others} | set(last)
    return {name: content for name, content in files.items() if str(Path(name).parent) in folders}


def checkpoint_differences(found: dict[str, bytes], wanted: dict[str, bytes], had_signal: bool) -> list[str]:
    """The files whose bytes differ, or that are missing or left over.

    After a signal the run saves an extra checkpoint, so that a different one of the few kept may have
    been deleted; then only checkpoints that both runs have are compared, and the last one of each phase.
    """
    if had_signal:
        folders = sorted({str(Path(name).parent) for name in wanted if "ckpt-" in name})
        last = [max(of_phase) for _, of_phase in itertools.groupby(folders, lambda name: name.split("/")[0])]
        found, wanted = (of_shared_checkpoints(found, wanted, last), of_shared_checkpoints(wanted, found, last))
    return differences(found, wanted)


def torment(
    outcome: Outcome, data_dir: Path, scratch: Path, options: argparse.Namespace, generator: random.Random
) -> None:
    """Disturbs runs, round after round, until every disturbance has had its turn."""
    num_ranks = outcome.num_ranks
    folder = scratch / f"run_{num_ranks}"  # the same for all rounds: checkpoints name where they began

    def start() -> Run:
        folder.mkdir(exist_ok=True)
        return Run(folder, data_dir, num_ranks, options.use_xla)

    started = time.monotonic()
    start().finish()
    outcome.undisturbed_secs = time.monotonic() - started
    wanted = result_files(folder)
    kinds = [generator.choice(KINDS[:3]) for _ in range(options.kills)] + ["signal"] * options.signals
    kinds += ["damage"] * options.damages + ["stop"] * (options.stops if num_ranks > 1 else 0)
    generator.shuffle(kinds)
    with Progress(total=len(kinds), unit="disturbances", description=f"{num_ranks} rank(s)") as bar:
        while kinds:
            shutil.rmtree(folder)
            started, is_fresh, had_signal = time.monotonic(), True, False
            while True:
                run = start()
                if kinds and wait_for_moment(run, outcome.undisturbed_secs / 2, generator):
                    # A disturbance for which the run is not in the right state gets its turn later.
                    kind = next((kind for kind in kinds if disturb(run, kind, generator, outcome)), None)
                    if kind is not None:
                        kinds.remove(kind)
                        bar.update(1)
                        is_fresh, had_signal = False, had_signal or kind == "signal"
                        continue
                run.finish()
                break
            outcome.num_ended += 1
            if is_fresh:  # on a busy machine the first run may have been slow
                outcome.undisturbed_secs = min(outcome.undisturbed_secs, time.monotonic() - started)
            outcome.faults += checkpoint_differences(result_files(folder), wanted, had_signal)


def prepare_sample(data_dir: Path) -> None:
    def prep(action: str, *arguments: str) -> None:
        bert_prep(data_dir, "--action", action, "--dataset", "sample", *arguments)

    prep("download")
    prep("text_formatting")
    prep("sharding", "--n_training_shards", "8", "--n_test_shards", "2", "--fraction_test_set", "0.005")
    prep("create_vocab", "--vocab_size", "1500", "--vocab_file", str(data_dir / "vocab.txt"))
    for length, predictions in ((128, 20), (512, 80)):
        shape = ["--max_seq_length", str(length), "--max_predictions_per_seq", str(predictions)]
        prep("create_tfrecord_files", *shape, "--dupe_factor", "1", "--vocab_file", str(data_dir / "vocab.txt"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="kill -9, for each number of ranks; %(default)s")
    parser.add_argument("--signals", type=int, default=4, help="SIGTERM and SIGUSR1; %(default)s")
    parser.add_argument("--stops", type=int, default=2, help="ranks stopped; %(default)s")
    parser.add_argument("--damages", type=int, default=3, help="damaged checkpoints; %(default)s")
    parser.add_argument("--num_ranks", type=numbers, default=[1, 2], help="one after the other; 1,2")
    parser.add_argument(
        "--data_dir", type=lambda value: Path(value).absolute(), help="prepared data; default: the sample is prepared"
    )
    parser.add_argument("--use_xla", choices=["true", "false"], default="false", help="longer starts; %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; %(default)s")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as scratch:
        data_dir = options.data_dir or Path(scratch) / "data"
        if not options.data_dir:
            prepare_sample(data_dir)
        for num_ranks in options.num_ranks:
            outcomes.append(Outcome(num_ranks))
            torment(outcomes[-1], data_dir, Path(scratch), options, random.Random(options.seed))
    columns = ["ranks", "undisturbed s", *KINDS, *STATES, "in phase 2", "came to its end", "faults"]
    rows = [
        [each.num_ranks, round(each.undisturbed_secs), *each.counts.values(), *each.met.values()]
        + [each.met_in_phase_2, each.num_ended, len(each.faults)]
        for each in outcomes
    ]
    print("\n".join(table(columns, rows)))
    for outcome in outcomes:
        ends = ", ".join(f"{kind} {secs:.1f} s" for kind, secs in outcome.longest_end.items())
        print(f"{outcome.num_ranks} rank(s), longest until nothing was left: {ends}")
        for fault in outcome.faults:
            print(f"{outcome.num_ranks} rank(s): {fault}")
    sys.exit(any(outcome.faults for outcome in outcomes))


if __name__ == "__main__":
    main()
