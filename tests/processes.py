"""Starts of the training programs that do not import TensorFlow anew, which costs more than a small training.

A server of `multiprocessing` has imported it, without using it, and forks itself for each start. The program is a
process of its own: it has its own arguments, environment and output, can be killed, and ends with its own code.
What is about starting a program (launchers, ranks, what a Python without packages says) starts it by `subprocess`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parent.parent
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["bert_tf.tasks.pretraining.evaluation", "bert_tf.tasks.job", "horovod.tensorflow"])


class Program:
    """A started program, with the methods of `subprocess.Popen` that tests need.

    Args:
      command: as for `subprocess.Popen`: Python, the script, its arguments.
      input: what the program reads from its standard input.
      environment: variables besides those of this process.
    """

    def __init__(self, command: list[str], input: str = "", **environment: str):
        assert command[0] == sys.executable
        with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="3"):
            forkserver.ensure_running()
        self.command = list(map(str, command))
        self._folder = tempfile.TemporaryDirectory()  # of the program's standard files
        self._paths = [Path(self._folder.name) / name for name in ("input", "output", "error")]
        for path, text in zip(self._paths, (input, "", "")):
            path.write_text(text)
        variables = {**os.environ, **environment}
        self._process = _CONTEXT.Process(target=_run, args=(self.command[1:], variables, self._paths), daemon=True)
        self._process.start()
        self.kill, self.pid = self._process.kill, self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; that of a killed one is the signal's number, negated."""
        return self._process.exitcode

    poll = returncode.fget

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.command, timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to its two outputs, when it has ended."""
        self.wait(timeout)
        return self._paths[1].read_text(), self._paths[2].read_text()


def run(command: list[str], input: str = "", timeout: float = 540, **environment: str) -> subprocess.CompletedProcess:
    """A program from its start to its end; arguments as those of `Program`."""
    program = Program(command, input, **environment)
    output = program.communicate(timeout)
    return subprocess.CompletedProcess(program.command, program.returncode, *output)


def answer(*command: object, cwd: Path | None = None, **variables: str | None) -> subprocess.CompletedProcess:
    """What another program answers; `variables`: besides this process's, without those that are None."""
    environment = {name: value for name, value in {**os.environ, **variables}.items() if value is not None}
    parts = list(map(str, command))
    return subprocess.run(parts, cwd=cwd, env=environment, capture_output=True, text=True, timeout=540)


def wait_for(condition: Callable[[], object], process: Program | subprocess.Popen | None = None) -> None:
    """Until the condition holds; where a process is given, it must not end before."""
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.005)


@contextlib.contextmanager
def two_ranks(command: list[str], **environment: str) -> Iterator[list[Program]]:
    """The same program started as two ranks of Horovod, with no launcher; killed at the end. Skips without Horovod."""
    pytest.importorskip("horovod", reason="Horovod is not installed")
    from horovod.runner import gloo_run
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server, slots = RendezvousServer(), get_host_assignments(parse_hosts("localhost:2"), 2)
    common = gloo_run.create_run_env_vars("127.0.0.1", ["lo"], str(server.start()))
    common["HOROVOD_CYCLE_TIME"] = "5"  # ms, as the launchers have it where there is no GPU
    server.init(slots)
    ranks = [Program(command, **environment, **common, **gloo_run.create_slot_env_vars(slot)) for slot in slots]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
        server.stop()


def run_two_ranks(command: list[str], timeout: float = 540, **environment: str) -> subprocess.CompletedProcess:
    """From their start to their end; the first code that is not 0, and all outputs.

    Where a rank has failed, the other one has a minute to end by itself.
    """
    deadline = time.monotonic() + timeout
    with two_ranks(command, **environment) as ranks:
        while None in (codes := [rank.poll() for rank in ranks]) and time.monotonic() < deadline:
            if any(codes):
                deadline = min(deadline, time.monotonic() + 60)
            time.sleep(0.05)
    outputs = zip(*(rank.communicate() for rank in ranks))
    return subprocess.CompletedProcess(command, next((code for code in codes if code != 0), 0), *map("".join, outputs))


def _run(arguments: list[str], variables: dict[str, str], paths: list[Path]) -> None:
    """In the fork: becomes the program."""
    for number, path in enumerate(paths):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")
