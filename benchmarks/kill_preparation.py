"""Kills every stage of data preparation at random moments and compares the results.

First every stage runs undisturbed. Then each is started in a copy of its input, killed with `kill -9` after
a random fraction of the time that it took undisturbed, and started again at once, until there have been
--kills kills. Whenever it finishes, all files must have the same bytes as the undisturbed ones, with
no extra files, and the next round begins. A kill ends the main program, one of its worker processes,
or all of them. The last "stage" is --action verify --repair on damaged files.

    python -m benchmarks kill_preparation --kills 20 --n_processes 1,2,3
    python -m benchmarks kill_preparation --corpus FILE_OR_FOLDER_OF_TEXT      # or a dump of Wikipedia, .xml.bz2

Ends with exit code 1 if anything differs.
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
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.killing import differences, flip_bit, numbers
from benchmarks.results import table
from bert_tf.base.progress import Progress
from bert_tf.prepare.corpora import documents, formatting
from bert_tf.prepare.sharding import sharding
from bert_tf.programs import prepare as bertPrep

NEEDS = "nothing; --corpus for real text"
# Small, so that even a small corpus can be killed between two checkpoints.
CHECKPOINT_BYTES, BATCH_CHARACTERS, HELD_BYTES = 100_000, 20_000, 300_000
DUMP = Path("download/wikicorpus_en/wikicorpus_en.xml.bz2")
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
NUM_BROKEN = 6
INPUT_TIME = re.compile(rb'"modified_ns": \d+')
SECS_TO_DIE = 20


class Outcome(NamedTuple):
    """The result for one stage with one number of processes."""

    stage: str
    num_processes: int
    undisturbed_secs: float
    killed: dict[str, int]  # number of kills, by what was killed
    num_at_work: int  # kills after it had written something
    num_ended: int
    differences: list[str]


def prepare(arguments: list[str]) -> None:
    """Runs bertPrep.py with small checkpoints and pieces; the other functions start and kill this."""
    formatting.CHECKPOINT_BYTES, documents.BATCH_CHARACTERS = CHECKPOINT_BYTES, BATCH_CHARACTERS
    sharding.HELD_BYTES = HELD_BYTES
    bertPrep.main(arguments)


def start(stage: str, working_dir: Path, num_processes: int, corpus: list[str]) -> subprocess.Popen:
    is_dump = corpus and corpus[0].endswith(".xml.bz2")
    dataset = ["--dataset", "wikicorpus_en" if is_dump else "custom" if corpus else "sample"]
    if corpus and not is_dump and stage == "text_formatting":
        dataset += ["--input_files", ",".join(corpus)]
    action = ["--action", stage, *dataset, *STAGES[stage], "--n_processes", str(num_processes)]
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kill_preparation", "prepare", *action],
        env={**os.environ, "BERT_PREP_WORKING_DIR": str(working_dir)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen) -> None:
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode} without a kill:\n{output}")


def files_below(folder: Path) -> dict[str, str]:
    """sha256 by file name, ignoring locks, which remain, and the modification times of inputs in manifests."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(INPUT_TIME.sub(b"", path.read_bytes())).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


def damage(working_dir: Path, generator: random.Random) -> None:
    """Flips one bit in each of some files of sharded text, tokens, pairs and records."""
    for pattern in ("sharded/*/*/*.txt", "tokens/*/*/*/*.tokens", "tokens/*/*/*/*.pairs", "tfrecord/*/*/*/*.tfrecord"):
        for path in sorted(working_dir.glob(pattern))[:NUM_BROKEN]:
            flip_bit(path, generator)


def workers_of(process: subprocess.Popen) -> list[int]:
    with contextlib.suppress(psutil.Error):
        children = psutil.Process(process.pid).children()
        return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
    return []


def kill(process: subprocess.Popen, generator: random.Random) -> str:
    """Kills the program, a worker, or all; returns which."""
    workers = workers_of(process)
    what = generator.choice(["program", "worker", "all"] if workers else ["program"])
    try:
        if what == "all":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(generator.choice(workers) if what == "worker" else process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return "nothing"
    # With a dead worker the program ends by itself.
    process.wait()
    return what


def require_dead(groups: list[int]) -> None:
    """Fails if workers outlive a killed program."""
    deadline = time.monotonic() + SECS_TO_DIE
    for group in groups:
        while True:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"processes of group {group} still run {SECS_TO_DIE} s after the kill")
            time.sleep(0.05)


def is_begun(folder: Path, before: Path) -> bool:
    """Whether anything was written besides a lock and an empty journal."""

    def written(of: Path) -> set[tuple[Path, int]]:
        return {
            (path.relative_to(of), path.stat().st_mtime_ns)
            for path in of.rglob("*")
            if path.is_file() and path.suffix != ".lock"
        }

    return any(
        name.suffix != ".journal" or (folder / name).read_bytes().count(b"\n") > 1
        for name, _ in written(folder) - written(before)
    )


def torment(
    stage: str,
    before: Path,
    wanted: dict[str, str],
    undisturbed_secs: float,
    num_processes: int,
    options: argparse.Namespace,
    generator: random.Random,
) -> Outcome:
    """Kills one stage until `options.kills` kills have hit it at work, then lets it finish."""
    killed = {"program": 0, "worker": 0, "all": 0}
    num_at_work = 0
    found: list[str] = []
    groups: list[int] = []
    num_ended = 0
    folder = before.with_name("tormented")
    with Progress(total=options.kills, unit="kills", description=f"{stage}, {num_processes} processes") as bar:
        while True:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(before, folder)
            is_ended, is_fresh = False, True
            while not is_ended:
                started = time.monotonic()
                process = start(stage, folder, num_processes, options.corpus)
                groups.append(process.pid)
                if sum(killed.values()) < options.kills:
                    try:
                        process.wait(generator.uniform(0, undisturbed_secs))
                    except subprocess.TimeoutExpired:
                        what = kill(process, generator)
                        if what != "nothing":
                            killed[what] += 1
                            num_at_work += is_begun(folder, before)
                            is_fresh = False
                            bar.update(1)
                            process.stdout.close()
                            continue
                finish(process)
                is_ended = True
                if is_fresh:
                    # On a busy machine the first run may have been slow.
                    undisturbed_secs = min(undisturbed_secs, time.monotonic() - started)
            num_ended += 1
            require_dead(groups)
            found += differences(files_below(folder), wanted)
            if sum(killed.values()) >= options.kills:
                return Outcome(stage, num_processes, undisturbed_secs, killed, num_at_work, num_ended, found)


def run_all(options: argparse.Namespace, scratch: Path) -> list[Outcome]:
    generator = random.Random(options.seed)
    outcomes = []
    stages = [stage for stage in STAGES if not (stage == "download" and options.corpus)]
    for number, num_processes in enumerate(options.n_processes):
        reference, before = scratch / "undisturbed", scratch / "before"
        shutil.rmtree(reference, ignore_errors=True)
        reference.mkdir()
        if options.corpus and options.corpus[0].endswith(".xml.bz2"):
            (reference / DUMP).parent.mkdir(parents=True)
            shutil.copy2(options.corpus[0], reference / DUMP)
        for stage in stages:
            shutil.rmtree(before, ignore_errors=True)
            shutil.copytree(reference, before)
            wanted = files_below(reference)
            if stage == "verify":
                damage(before, generator)
                shutil.rmtree(reference)
                shutil.copytree(before, reference)
            started = time.monotonic()
            finish(start(stage, reference, num_processes, options.corpus))
            secs = time.monotonic() - started
            if stage == "verify":
                assert files_below(reference) == wanted, "an undisturbed repair gives other bytes"
            wanted = files_below(reference)
            outcomes.append(torment(stage, before, wanted, secs, num_processes, options, generator))
        if number == 0:
            first = files_below(reference)
        elif files_below(reference) != first:
            raise SystemExit(f"{num_processes} processes give other bytes than {options.n_processes[0]}, undisturbed")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each stage; %(default)s")
    parser.add_argument("--n_processes", type=numbers, default=[1, 2, 3], help="one after the other; 1,2,3")
    parser.add_argument(
        "--corpus",
        type=lambda value: value.split(","),
        default=[],
        help="files or folders of text, or a dump; default: the sample",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments; %(default)s")
    options = parser.parse_args()
    options.corpus = [str(Path(name).absolute()) for name in options.corpus]
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = run_all(options, Path(scratch))
    columns = "stage|processes|undisturbed s|program killed|worker|all|at work|came to its end|different files"
    rows = [
        [each.stage, each.num_processes, each.undisturbed_secs, *each.killed.values()]
        + [each.num_at_work, each.num_ended, len(each.differences)]
        for each in outcomes
    ]
    print("\n".join(table(columns.split("|"), rows)))
    for outcome in outcomes:
        for difference in outcome.differences:
            print(f"{outcome.stage}, {outcome.num_processes} processes: {difference}")
    sys.exit(any(outcome.differences for outcome in outcomes))


if __name__ == "__main__":
    if sys.argv[1:2] == ["prepare"]:
        prepare(sys.argv[2:])
    else:
        main()
