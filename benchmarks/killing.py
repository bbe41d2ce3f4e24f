"""What the benchmarks that kill programs share: rounds of disturbed runs, and what differs after them."""

from __future__ import annotations

import abc
import argparse
import collections
import random
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from benchmarks.frame import Bench
from bert_tf.base.progress import Progress

Run = TypeVar("Run")


class Subject(abc.ABC, Generic[Run]):
    """A program that is disturbed. A run is one start of it; a round repeats runs until one comes to its end.

    Attributes:
      kinds: those of the disturbances that are still to come.
      counts: how often each kind has happened.
    """

    def __init__(self, title: str, generator: random.Random, kinds: Sequence[str]):
        self.title, self.generator, self.kinds = title, generator, list(kinds)
        self.undisturbed_secs, self.num_ended = 0.0, 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    @abc.abstractmethod
    def reset(self) -> None:
        """Begins a round."""

    @abc.abstractmethod
    def start(self) -> Run: ...

    @abc.abstractmethod
    def disturb(self, run: Run) -> str | None:
        """Disturbs a run; returns which of `kinds` it was, or None if the run came to its end before."""

    @abc.abstractmethod
    def finish(self, run: Run) -> None:
        """Waits for the end of a run that is left alone."""

    @abc.abstractmethod
    def differences(self) -> list[str]:
        """A line for each file that is not as after an undisturbed run."""

    def disturb_runs(self) -> None:
        """Disturbs runs, round after round, until each of `kinds` has had its turn."""
        with Progress(total=len(self.kinds), unit="disturbances", description=self.title) as bar:
            while self.kinds:
                self.reset()
                run = self.start()
                while self.kinds and (kind := self.disturb(run)):
                    self.kinds.remove(kind)
                    self.counts[kind] += 1
                    bar.update(1)
                    run = self.start()
                self.finish(run)
                self.num_ended += 1
                self.faults += self.differences()


def report(bench: Bench, subjects: Sequence[Subject[Any]], kinds: Sequence[str]) -> None:
    """Adds the table of disturbances. Ends the program with an error that lists the faults, if there were any."""
    rows = [
        [subject.title, subject.undisturbed_secs]
        + [*(subject.counts[kind] for kind in kinds), subject.num_ended, len(subject.faults)]
        for subject in subjects
    ]
    bench.table("Disturbances", ["", "undisturbed s", *kinds, "came to its end", "faults"], rows)
    faults = [f"{subject.title}: {fault}" for subject in subjects for fault in subject.faults]
    if faults:
        raise SystemExit("\n".join(faults))


def add_options(parser: argparse.ArgumentParser, kills: int) -> None:
    parser.add_argument("--kills", type=int, default=kills, help="kill -9 of each; %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; %(default)s")


def differences(after: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """A line for each file that differs; the arguments map the names of files to contents or digests."""
    return [
        f"{name} is " + ("missing" if name not in after else "left over" if name not in undisturbed else "different")
        for name in sorted({*after, *undisturbed})
        if after.get(name) != undisturbed.get(name)
    ]
