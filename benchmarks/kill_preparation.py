"""Kills every stage of data preparation at random moments and compares the results.

First every stage runs undisturbed. Then each is started in a copy of its input, killed with `kill -9` after a random
fraction of the time that it took undisturbed, and started again at once, until there have been --kills kills. Whenever
it finishes, all files must have the same bytes as the undisturbed ones, with no extra files. A kill ends the main
program, one of its worker processes, or all of them. The last "stage" is --action verify --repair on damaged files.

    python -m benchmarks kill_preparation --kills 20 --n_processes 1 2 3

Ends with an error if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks import killing
from benchmarks.frame import Bench
from benchmarks.killing import Subject, differences
from bert_tf.prepare.corpora import documents, formatting
from bert_tf.prepare.sharding import sharding
from bert_tf.programs import prepare as bertPrep

NEEDS = "nothing"
ROUNDS, CORES = 1, 0
# Small, so that even a small corpus can be killed between two checkpoints.
CHECKPOINT_BYTES, BATCH_CHARACTERS, BUFFER_BYTES = 100_000, 20_000, 300_000
STAGES: dict[str, tuple[str, ...]] = {
    "download": (),
    "text_formatting": (),
    "sharding": ("--n_training_shards", "20", "--n_test_shards", "4"),
    "create_vocab": ("--vocab_size", "3000"),
    "create_token_files": (),
    "create_pairs": ("--max_seq_length", "64"),
    "create_tfrecord_files": ("--max_seq_length", "64", "--max_predictions_per_seq", "10", "--dupe_factor", "2"),
    "verify": ("--repair",),
}
KINDS = ("program", "worker", "all")
NUM_BROKEN = 6
INPUT_TIME = re.compile(rb'"modified_ns": \d+')
SECS_TO_DIE = 20


def prepare(arguments: list[str]) -> None:
    """Runs bertPrep.py with small checkpoints and pieces; this is what is killed."""
    formatting.CHECKPOINT_BYTES, documents.BATCH_CHARACTERS = CHECKPOINT_BYTES, BATCH_CHARACTERS
    sharding.BUFFER_BYTES = BUFFER_BYTES
    bertPrep.main(arguments)


def files_below(folder: Path) -> dict[str, str]:
    """sha256 by file name, ignoring locks, which remain, and the modification times of inputs in manifests."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(INPUT_TIME.sub(b"", path.read_bytes())).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def damage(working_dir: Path, generator: random.Random) -> None:
    """Flips one bit in each of some files of sharded text, tokens and records."""
    for pattern in ("sharded/*/*/*.txt", "tokens/*/*/*/*.tokens", "tfrecord/*/*/*/*.tfrecord"):
        for path in sorted(working_dir.glob(pattern))[:NUM_BROKEN]:
            content = bytearray(path.read_bytes())
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
            path.write_bytes(content)


class Stage(Subject[subprocess.Popen]):
    """A stage whose input is in `before`, and whose undisturbed output is left in `reference`."""

    def __init__(
        self, name: str, before: Path, reference: Path, num_processes: int, generator: random.Random, kills: int
    ):
        super().__init__(f"{name}, {num_processes} processes", generator, ["kill"] * kills)
        self._name, self._before, self._folder = name, before, before.with_name("tormented")
        self._num_processes = num_processes
        self._groups: list[int] = []
        started = time.monotonic()
        self.finish(self._start_in(reference))
        self.undisturbed_secs = time.monotonic() - started
        self.undisturbed = files_below(reference)

    def reset(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._before, self._folder)

    def start(self) -> subprocess.Popen:
        process = self._start_in(self._folder)
        self._groups.append(process.pid)
        return process

    def _start_in(self, working_dir: Path) -> subprocess.Popen:
        processes = ["--n_processes", str(self._num_processes)]
        action = ["--action", self._name, "--dataset", "sample", *STAGES[self._name], *processes]
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kill_preparation", *action],
            env={**os.environ, "BERT_PREP_WORKING_DIR": str(working_dir)},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def disturb(self, run: subprocess.Popen) -> str | None:
        """Kills the program, a worker, or all, after a random time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(self.generator.uniform(0, self.undisturbed_secs))
            return None
        workers: list[int] = []
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(run.pid).children()
            workers = [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
        kind = self.generator.choice(KINDS if workers else KINDS[:1])
        try:
            if kind == "all":
                os.killpg(run.pid, signal.SIGKILL)
            else:
                os.kill(self.generator.choice(workers) if kind == "worker" else run.pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        run.wait()  # with a dead worker the program ends by itself
        run.stdout.close()
        self.counts[kind] += 1
        return "kill"

    def finish(self, run: subprocess.Popen) -> None:
        output = run.communicate()[0]
        if run.returncode:
            raise SystemExit(f"exit code {run.returncode} without a kill:\n{output}")

    def differences(self) -> list[str]:
        self._require_dead()
        return differences(files_below(self._folder), self.undisturbed)

    def _require_dead(self) -> None:
        """Fails if workers outlive a killed program."""
        deadline = time.monotonic() + SECS_TO_DIE
        while self._groups:
            try:
                os.killpg(self._groups[-1], 0)
            except ProcessLookupError:
                self._groups.pop()
                continue
            if time.monotonic() > deadline:
                raise SystemExit(f"processes of group {self._groups[-1]} still run {SECS_TO_DIE} s after the kill")
            time.sleep(0.05)


def add_options(parser: argparse.ArgumentParser) -> None:
    killing.add_options(parser, kills=20)
    parser.add_argument("--n_processes", type=int, nargs="+", default=[1, 2, 3], help="one after the other")


def run(bench: Bench) -> None:
    options, reference, before = bench.options, bench.folder / "undisturbed", bench.folder / "before"
    generator, stages = random.Random(options.seed), list[Stage]()
    first_output: dict[str, str] = {}
    for num_processes in options.n_processes:
        shutil.rmtree(reference, ignore_errors=True)
        reference.mkdir()
        for name in STAGES:
            undamaged = files_below(reference)
            if name == "verify":
                damage(reference, generator)
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(reference, before)
            stages.append(Stage(name, before, reference, num_processes, generator, options.kills))
            assert name != "verify" or stages[-1].undisturbed == undamaged, "an undisturbed repair gives other bytes"
            stages[-1].disturb_runs()
        first_output = first_output or files_below(reference)
        if files_below(reference) != first_output:
            raise SystemExit(f"{num_processes} processes give other bytes than {options.n_processes[0]}, undisturbed")
    killing.report(bench, stages, KINDS)


if __name__ == "__main__":
    prepare(sys.argv[1:])
