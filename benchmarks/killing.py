"""What the benchmarks that kill programs share: rounds of disturbed runs, and what differs after them."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.results import table
from bert_tf.base.progress import Progress

Run = TypeVar("Run")


@dataclasses.dataclass
class Outcome:
    """The result of one thing that was disturbed many times."""

    title: str
    undisturbed_secs: float = 0.0
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # kinds and states met
    num_ended: int = 0
    faults: list[str] = dataclasses.field(default_factory=list)


class Subject(Protocol[Run]):
    """What is disturbed. A run is one start of it; a round is as many runs as it takes until one is left alone.

    `reset` begins a round; `disturb` returns the kind of disturbance, one of `kinds`, after all of the run's processes
    have ended, or None if the run came to its end before; `finish` waits for the end of a run that was left alone;
    `differences` names what is not as after an undisturbed run.
    """

    outcome: Outcome

    def reset(self) -> None: ...
    def start(self) -> Run: ...
    def disturb(self, run: Run, kinds: Sequence[str], /) -> str | None: ...
    def finish(self, run: Run) -> None: ...
    def differences(self) -> list[str]: ...


def torment(subject: Subject[Run], kinds: Sequence[str]) -> None:
    """Disturbs runs, round after round, until each of `kinds` has had its turn."""
    outcome, left = subject.outcome, list(kinds)
    with Progress(total=len(left), unit="disturbances", description=outcome.title) as bar:
        while left:
            subject.reset()
            started, is_fresh = time.monotonic(), True
            while True:
                run = subject.start()
                kind = subject.disturb(run, left) if left else None
                if kind is None:
                    break
                left.remove(kind)
                bar.update(1)
                is_fresh = False
            subject.finish(run)
            outcome.num_ended += 1
            if is_fresh:  # on a busy machine the first run may have been slow
                outcome.undisturbed_secs = min(outcome.undisturbed_secs, time.monotonic() - started)
            outcome.faults += subject.differences()


def report(outcomes: Sequence[Outcome], kinds: Sequence[str]) -> None:
    """Prints a table and the faults; ends with exit code 1 if there are any."""
    columns = ["", "undisturbed s", *kinds, "came to its end", "faults"]
    rows = [
        [each.title, each.undisturbed_secs, *(each.counts[kind] for kind in kinds), each.num_ended, len(each.faults)]
        for each in outcomes
    ]
    print("\n".join(table(columns, rows)))
    for outcome in outcomes:
        for fault in outcome.faults:
            print(f"{outcome.title}: {fault}")
    sys.exit(any(outcome.faults for outcome in outcomes))


def make_parser(description: str | None, kills: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills, help="kill -9 of each; %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; %(default)s")
    return parser


def numbers(text: str) -> list[int]:
    """The value of an option such as ``1,2,3``."""
    return list(map(int, text.split(",")))


def flip_bit(path: Path, generator: random.Random) -> None:
    """Damages a file."""
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def differences(after: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """The files, given with their contents or digests, that are not as they should be."""
    return [
        f"{name} is " + ("missing" if name not in after else "left over" if name not in undisturbed else "different")
        for name in sorted({*after, *undisturbed})
        if after.get(name) != undisturbed.get(name)
    ]
