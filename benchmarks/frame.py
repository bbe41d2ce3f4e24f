"""What all benchmarks share: taking turns on pinned cores, timing calls and processes, and composing the result.

    def add_options(parser): ...       # of argparse
    def run(bench: Bench) -> None:
        bench.compare("title", {"theirs": Variant(...), "ours": lambda: ...}, amount=6.0, unit="MB")

The other variants are compared with the first one. Variants take turns within each round, so that a busy machine slows
all of them equally, and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union
from unittest import mock

from benchmarks import peers, results
from benchmarks.child import timed, versions
from bert_tf.base.errors import UserError
from bert_tf.base.files import checkout
from bert_tf.base.progress import Progress
from bert_tf.run.run_folder import provenance

CHECKOUT = checkout() or Path.cwd()
CHILD = Path(__file__).resolve().with_name("child.py")
NUM_SHOWN_LINES = 12  # of a process's output before it failed
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


class Sample(NamedTuple):
    """One measurement, with further figures by name."""

    wall_secs: float
    cpu_secs: float
    figures: dict[str, float] = {}


class Variant(NamedTuple):
    """What is measured in a separate process (`child`): MODULE:FUNCTION and its settings."""

    make: str
    settings: Mapping[str, Any] = {}
    peer: str = ""  # the tool in whose environment it runs; --no_peers leaves such variants out
    warm_up: int = 0
    is_restarted: bool = False  # a new process for each turn, so that no cache is warm
    python: str = sys.executable


Turn = Callable[[], Sample]
Measurable = Union[Variant, Callable[[], Any]]


def run_command(command: Sequence[str | Path], cores: Sequence[int] = (), **environment: str) -> str:
    """Runs a command to its end, on the given cores, and returns its output."""
    done = subprocess.run(
        list(map(str, command)),
        text=True,
        capture_output=True,
        env={**os.environ, **environment},
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-NUM_SHOWN_LINES:])
        print(output, file=sys.stderr, flush=True)
        raise UserError(f"{' '.join(map(str, command))[:200]} ended with code {done.returncode}; see above why")
    return done.stdout


def read_scores(run_folder: Path) -> dict[str, float]:
    """The scores that a program of a task has written, by name."""
    lines = (run_folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    return {name: float(value) for name, value in (line.split(" = ") for line in lines)}


def bert_prep(folder: Path, *arguments: str, cores: Sequence[int] = ()) -> None:
    """Runs an action of bertPrep.py as a user does, in a working directory."""
    run_command([sys.executable, CHECKOUT / "data/bertPrep.py", *arguments], cores, BERT_PREP_WORKING_DIR=str(folder))


def prepare_sample(folder: Path, shapes: Sequence[tuple[int, int]]) -> None:
    """Records of the bundled sample, of each (length, predictions), with a vocabulary of 1,500 pieces."""
    vocabulary = f"--vocab_file={folder / 'vocab.txt'}"
    bert_prep(folder, "--action=download", "--dataset=sample")
    bert_prep(folder, "--action=text_formatting", "--dataset=sample")
    shards = ("--n_training_shards=8", "--n_test_shards=2", "--fraction_test_set=0.005")
    bert_prep(folder, "--action=sharding", "--dataset=sample", *shards)
    bert_prep(folder, "--action=create_vocab", "--dataset=sample", "--vocab_size=1500", vocabulary)
    for length, predictions in shapes:
        shape = (f"--max_seq_length={length}", f"--max_predictions_per_seq={predictions}", "--dupe_factor=1")
        bert_prep(folder, "--action=create_tfrecord_files", "--dataset=sample", *shape, vocabulary)


class Bench:
    """One run of a benchmark: its options and cores, and the parts of its result."""

    def __init__(self, name: str, options: argparse.Namespace, summary: str):
        self.options = options
        self.available = sorted(os.sched_getaffinity(0), reverse=True)
        if not 0 <= options.cores <= len(self.available):
            raise UserError(f"--cores is {options.cores}; this process has {len(self.available)}; 0 takes all")
        # The last cores, because programs without CPU affinity tend to run on the first ones.
        self.cores = self.available[: options.cores or None]
        self._loads: list[float] = [os.getloadavg()[0]]
        facts = provenance()
        self.result: dict[str, Any] = {
            "benchmark": name,
            "what": summary,
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(facts),
            "cores": len(self.cores),
            "versions": {"python": [facts["versions"]["python"]]},
            "commit": facts["commit"],
            "configuration": {
                key: stored_value(value) for key, value in vars(options).items() if key not in results.OPTIONS
            },
            "notes": list(options.note),
            "parts": [],
        }
        self.file = results.result_file(options.results, name, options.label)

    @contextlib.contextmanager
    def pinned(self) -> Iterator[Bench]:
        """Pins this process and its children to the cores, with as many threads, and makes a temporary `folder`."""
        threads = mock.patch.dict(os.environ, dict.fromkeys(THREADS, str(len(self.cores))))
        os.sched_setaffinity(0, self.cores)
        try:
            with threads, tempfile.TemporaryDirectory() as folder:
                self.folder = Path(folder)
                yield self
        finally:
            os.sched_setaffinity(0, self.available)

    def note(self, text: str) -> None:
        """Adds a sentence to the result's page."""
        self.result["notes"].append(text)

    def compare(
        self,
        title: str,
        variants: Mapping[str, Measurable],
        *,
        amount: float | str = 0,
        unit: str = "",
        clock: str = "cpu",
    ) -> dict[str, list[Sample]]:
        """Measures the variants by turns (with --no_peers only ours), and adds a part to the result.

        Args:
          amount: the work of one turn, for the rates, or the name of the figure that tells it; `unit`: its unit.
          clock: "wall" or "cpu", by which ratios are computed.
        """
        if self.options.no_peers:
            variants = {name: each for name, each in variants.items() if not getattr(each, "peer", "")}
        samples: dict[str, list[Sample]] = {name: [] for name in variants}
        total = self.options.rounds * len(variants)
        with contextlib.ExitStack() as stack, Progress(total=total, unit="turns", description=title) as bar:
            turns = {name: self._turn(variant, stack) for name, variant in variants.items()}
            for _ in range(self.options.rounds):
                for name, turn in turns.items():
                    samples[name].append(turn())
                    self._loads.append(os.getloadavg()[0])
                    bar.update(1)
        turns_of_variants = {name: [list(each) for each in turns] for name, turns in samples.items()}
        self._add({"title": title, "amount": amount, "unit": unit, "clock": clock, "variants": turns_of_variants})
        return samples

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Adds a table without a comparison."""
        self._add({"title": title, "columns": list(columns), "rows": [list(row) for row in rows]})

    def _add(self, part: dict[str, Any]) -> None:
        self.result["parts"].append(part)
        print("\n".join(results.part_lines(part)), flush=True)

    def _turn(self, variant: Measurable, stack: contextlib.ExitStack) -> Turn:
        """A function that makes a turn of a variant, until the stack is closed."""
        if not isinstance(variant, Variant):
            return lambda: Sample(*timed(variant))
        if variant.is_restarted:
            return functools.partial(self.single_turn, variant)
        return stack.enter_context(self._process(variant))

    @contextlib.contextmanager
    def _process(self, variant: Variant) -> Iterator[Turn]:
        """Starts the process of a variant; yields a function that makes a turn in it."""
        python = peers.find_python(variant.peer) if variant.peer else variant.python
        process = subprocess.Popen(
            [python, str(CHILD), variant.make], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def ask(content: Any) -> Any:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(content, default=str) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise UserError(f"{variant.make}: its process ended with code {process.wait()}; see above why")
            return json.loads(line)

        try:
            self._note_versions(ask({**variant.settings, "warm_up": variant.warm_up}))
            yield lambda: Sample(*ask("turn"))
        finally:
            process.kill()
            process.wait()

    def single_turn(self, variant: Variant) -> Sample:
        """One turn in a separate process."""
        with self._process(variant) as turn:
            return turn()

    def _note_versions(self, versions: Mapping[str, str]) -> None:
        for name, version in versions.items():
            noted = self.result["versions"].setdefault(name, [])
            noted += [version] * (version not in noted)

    def stage(self, command: str, name: str, source: Path, num_processes: int) -> None:
        """Runs an action of bertPrep.py, one process a core, in a new working directory where `name` is `source`."""
        folder = self.folder / "stage"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / name).parent.mkdir(parents=True)
        (folder / name).symlink_to(source)
        cores = self.available[:num_processes]
        bert_prep(folder, *command.split(), f"--n_processes={num_processes}", cores=cores)

    def save(self) -> None:
        """Writes the result and its page."""
        self._note_versions(versions())
        self.result["load"] = {"before": self._loads[0], "lowest": min(self._loads), "highest": max(self._loads)}
        self.result["versions"] = dict(sorted(self.result["versions"].items()))
        results.write(self.file, self.result)
        print(f"result: {self.file}", flush=True)


def hardware(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The hardware as a result states it."""
    flags = next((line.split() for line in Path("/proc/cpuinfo").read_text().splitlines() if line[:5] == "flags"), [])
    features = [name for name in FEATURES if name in flags]
    return {"processor": facts["processor"], "features": features, "num_cores": facts["num_cores"]}


def stored_value(value: Any) -> Any:
    """An option's value as it is stored; paths, also in NAME=PATH, are reduced to their last names."""
    if isinstance(value, (list, tuple)):
        return [stored_value(each) for each in value]
    if not isinstance(value, (str, Path)):
        return value
    name, equals, path = str(value).rpartition("=")
    return f"{name}{equals}{os.path.basename(path.rstrip('/'))}" if os.path.exists(path) else str(value)


def existing_path(text: str) -> Path:
    """A type for options that name an existing file or folder."""
    if not os.path.exists(text):
        raise argparse.ArgumentTypeError(f"{text} does not exist")
    return Path(text).absolute()
