"""Processes that share one GPU: they compile side by side, and what is timed runs alone.

A process that has something to time calls `await_turn` when all is compiled and its first updates are made. It then
waits until no other one compiles: the first updates, and the check of each kernel, run on the GPU. So a measurement
waits for the slowest compilation, which costs little, since compiling is what takes the time. Processes
that time nothing never call it.

This module also runs in the peer's Python, so it needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

READY = "compiled; waiting for the turn to be measured"
POLL_SECS = 0.1
# For so long after the first process is ready others are still started; later ones would delay the first figures.
PATIENCE_SECS = 60.0
# No process is started with less time than this left.
SHORTEST_SECS = 45.0
# Words that mark the line of a log that says why a process failed.
TELLING_WORDS = ("Error", "error", "RESOURCE_EXHAUSTED", "Unknown")


def await_turn() -> None:
    """Returns when nothing else uses the GPU. Ends the process if the one that started it has ended."""
    print(READY, flush=True)
    if not sys.stdin.readline():
        sys.exit("the process that started this one has ended")


class Job(NamedTuple):
    """A process to start."""

    row: Any  # what it is for
    command: Sequence[str]
    memory: float  # bytes of the GPU that it may take
    log: Path  # of its errors; what it prints goes to a file beside it

    @property
    def output(self) -> Path:
        return self.log.with_suffix(".out")

    def output_text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def failure_reason(self, code: int) -> str:
        """Why its process failed, by its log."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        printed = [line.strip() for line in lines if line.strip()]
        telling = [line for line in printed if any(word in line for word in TELLING_WORDS)]
        return f"exit code {code}: {(telling or printed or ['nothing was printed'])[-1][:300]}"


class Limits(NamedTuple):
    end: float  # nothing runs past it; by `time.monotonic`
    secs: float  # for a process until it is ready, and again for its turn
    memory: float  # bytes of the GPU that all may take together
    num_at_once: int


class _Process:
    """A job that runs."""

    def __init__(self, job: Job, environment: Mapping[str, str]):
        self.job, self.began_at, self.has_turn = job, time.monotonic(), False
        self._ready_at: float | None = None
        with open(job.log, "w") as errors, open(job.output, "w") as output:
            self.process = subprocess.Popen(
                job.command,
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                text=True,
                start_new_session=True,  # so that what it has started can be ended with it
            )

    def ready_at(self) -> float | None:
        """When it was first seen to wait for its turn; None if it does not yet."""
        if self._ready_at is None and READY in self.job.output_text():
            self._ready_at = time.monotonic()
        return self._ready_at

    def give_turn(self) -> None:
        self.has_turn, self.began_at = True, time.monotonic()
        with contextlib.suppress(BrokenPipeError), self.process.stdin as line:  # it may have just failed
            line.write("\n")

    def is_late(self, secs: float) -> bool:
        return (self.has_turn or self.ready_at() is None) and time.monotonic() - self.began_at > secs

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def run_all(
    jobs: Sequence[Job],
    limits: Limits,
    environment: Mapping[str, str],
    *,
    started: Callable[[Job], None],
    ended: Callable[[Job, int | None], None],
) -> bool:
    """Runs all of them, the first ones first; returns whether the time was enough for that.

    `ended` gets the exit code, or None where a process took longer than `limits.secs`. It is not called for one that
    was killed because `limits.end` was reached.
    """
    waiting, running = list(jobs), list[_Process]()
    try:
        while waiting or running:
            left = limits.end - time.monotonic()
            if left < (0.0 if running else SHORTEST_SECS):
                return False
            ready = [at for process in running if (at := process.ready_at()) is not None]
            all_ready = len(ready) == len(running) > 0
            may_start = not all_ready and (not ready or time.monotonic() - min(ready) < PATIENCE_SECS)
            if all_ready and not running[0].has_turn:
                running[0].give_turn()
            elif may_start and left >= SHORTEST_SECS and (job := _next_fitting(waiting, running, limits)):
                waiting.remove(job)
                started(job)
                running.append(_Process(job, environment))
            else:
                time.sleep(POLL_SECS)
            for process in list(running):
                code, is_late = process.process.poll(), process.is_late(limits.secs)
                if code is not None or is_late:
                    process.kill()
                    running.remove(process)
                    ended(process.job, code)
        return True
    finally:
        for process in running:
            process.kill()


def _next_fitting(waiting: Sequence[Job], running: Sequence[_Process], limits: Limits) -> Job | None:
    """The first job for which there is room beside those that run; if none runs, the first job in any case."""
    free = limits.memory - sum(process.job.memory for process in running)
    has_room = len(running) < limits.num_at_once
    return next((job for job in waiting if not running or (has_room and job.memory <= free)), None)
