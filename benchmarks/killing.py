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
    """What is disturbed. A run is one start of it; a round is as many runs as it takes until one is left alone.

    Attributes:
      kinds: of disturbances that are still to come.
      counts: how often each was met.
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
        """Returns which of `kinds` it was, or None if the run came to its end before."""

    @abc.abstractmethod
    def finish(self, run: Run) -> None:
        """Waits for the end of a run that is left alone."""

    @abc.abstractmethod
    def differences(self) -> list[str]:
        """What is not as after an undisturbed run."""

    def torment(self) -> None:
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
    """Adds a table. Ends the program with what was wrong, if anything was."""
    rows = [
        [each.title, each.undisturbed_secs, *(each.counts[kind] for kind in kinds), each.num_ended, len(each.faults)]
        for each in subjects
    ]
    bench.table("Disturbances", ["", "undisturbed s", *kinds, "came to its end", "faults"], rows)
    faults = [f"{each.title}: {fault}" for each in subjects for fault in each.faults]
    if faults:
        raise SystemExit("\n".join(faults))


def add_options(parser: argparse.ArgumentParser, kills: int) -> None:
    parser.add_argument("--kills", type=int, default=kills, help="kill -9 of each; %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; %(default)s")


def differences(after: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[str]:
    """The files, given with their contents or digests, that are not as they should be."""
    return [
        f"{name} is " + ("missing" if name not in after else "left over" if name not in undisturbed else "different")
        for name in sorted({*after, *undisturbed})
        if after.get(name) != undisturbed.get(name)
    ]
