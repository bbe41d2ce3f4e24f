"""What every launcher needs: the environment, console output, dry runs, starting a program."""

from __future__ import annotations

import dataclasses
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, TypeVar

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.machine import count_cores, count_gpus
from bert_tf.base.values import parse_count, parse_number, parse_switch
from bert_tf.config import MAX_HOURS
from bert_tf.launch import launchers
from bert_tf.launch.container import CHECKOUT, rank_python
from bert_tf.launch.findings import check_start, choose_launcher, count_nodes
from bert_tf.launch.rank import describe_signal

Made = TypeVar("Made")

# Variables that are on or off.
SWITCHES = tuple("ALLOW_MISSING_WEIGHTS CONTINUE_WITH_CHANGES DRY_RUN PACKING RECOMPUTE WHOLE_WORD_MASKING".split())


class LaunchEnvironment:
    """The environment variables and the machine, as a launcher sees them.

    Raises:
      UserError: a variable has an invalid value.
    """

    def __init__(self, environ: Mapping[str, str]):
        self.environ = environ
        self._switched_on = [name for name in SWITCHES if self.parsed(name, parse_switch)]
        self.data_dir = self.path("DATA_DIR", self.path("BERT_PREP_WORKING_DIR", CHECKOUT / "data"))
        self.is_dry_run = self.is_set("DRY_RUN")
        self.init_checkpoint = os.path.abspath(environ["INIT_CHECKPOINT"]) if environ.get("INIT_CHECKPOINT") else None
        self.max_eval_steps = self.parsed("MAX_EVAL_STEPS", parse_count)
        self.restarts: int = self.parsed("RESTARTS", parse_count) or 0
        self.max_hours: float | None = self.parsed("MAX_HOURS", _parse_hours)
        self._started_at = time.monotonic()
        device = environ.get("DEVICE") or "auto"
        if device not in ("auto", "cpu"):
            raise UserError(f"DEVICE={device}: must be auto or cpu")
        self._uses_cpu = device == "cpu"
        self.num_gpus = 0 if self._uses_cpu else count_gpus(environ)

    def is_set(self, name: str) -> bool:
        """Whether one of `SWITCHES` is on."""
        return name in self._switched_on

    def parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        """The value of a variable; None if it is not set or empty. Raises `UserError` if it is invalid."""
        text = self.environ.get(name, "")
        try:
            return parse(text) if text else None
        except ValueError as error:
            raise UserError(f"{name}={text}: {error}") from None

    def hours_left(self) -> float | None:
        """What is left of MAX_HOURS, counted from the creation of this object; None if it is not set."""
        return None if self.max_hours is None else self.max_hours - (time.monotonic() - self._started_at) / 3600

    def describe_limits(self) -> list[str]:
        """The variables that limit how long a training goes on, if they are set."""
        return [
            *([f"restarts = {self.restarts}"] if self.restarts else []),
            *([] if self.max_hours is None else [f"max_hours = {self.max_hours:g}"]),
        ]

    def path(self, name: str, default: Path) -> Path:
        return Path(os.path.abspath(self.environ[name])) if self.environ.get(name) else default

    def prepare(self, num_ranks: int, results: Path, make: Callable[[], Made]) -> Made | None:
        """The result of `make`, if ranks can be started and `results` can be written; None in a dry run.

        Raises:
          UserError: what was typed cannot be run, or `make` raises it; something missing is only noted in a dry run.
        """
        for finding in check_start(num_ranks, self.num_gpus, self.environ, results):
            self._unless_missing(finding.raise_problem)
        made = self._unless_missing(make)
        show([f"launcher = {choose_launcher(num_ranks, self.environ)}"])
        if not self.is_dry_run:
            return made
        show(["DRY_RUN: nothing was started"])
        return None

    def _unless_missing(self, make: Callable[[], Made]) -> Made | None:
        try:
            return make()
        except MissingError as error:
            if not self.is_dry_run:
                raise
            show([f"note: a real run would stop here: {error}"])
            return None

    def job(
        self, program: str, flags: Mapping[str, Any], switches: Sequence[str], num_ranks: int, log_folder: Path
    ) -> launchers.Job:
        """A job: a program with its flags, the `switches` that are on (--packing for PACKING), and --device=cpu."""
        command = [
            rank_python(self.environ),
            str(CHECKOUT / program),
            *(f"--{name}={value}" for name, value in flags.items()),
            *(f"--{name.lower()}" for name in switches if self.is_set(name)),
            *(["--device=cpu"] if self._uses_cpu else []),
        ]
        launcher = choose_launcher(num_ranks, self.environ)
        return launchers.Job(command, num_ranks, self.num_gpus, launcher, log_folder)

    def describe_device(self, num_ranks: int) -> str:
        if self.num_gpus:
            return f"GPU ({self.num_gpus} on this machine)"
        threads = max(1, count_cores() * count_nodes(self.environ) // num_ranks)
        reason = "DEVICE=cpu" if self._uses_cpu else "no GPU can be used here"
        return f"CPU ({num_ranks} rank(s) with {threads} thread(s) each; {reason})"


def _parse_hours(text: str) -> float:
    hours = parse_number(text)
    if not 0 < hours <= MAX_HOURS:
        raise ValueError(f"must be positive and at most {MAX_HOURS:g}")
    return hours


def shown(path: Path) -> str:
    """A path, relative to the working folder if it is inside that."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def show(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


def run_job(what: str, job: launchers.Job, signals: list[int]) -> int:
    """Runs a job, whose logs go to a new subfolder of its log folder; returns the ranks' exit code.

    Args:
      signals: receives the numbers of the signals that arrive meanwhile.
    """
    # To the microsecond, because another launcher may start in the same second on another host.
    log_folder = job.log_folder / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    show([f"--- {what}: logs in {shown(log_folder)}", "+ " + shlex.join(job.command)])
    started = time.monotonic()
    code = launchers.run(dataclasses.replace(job, log_folder=log_folder), signals)
    show([f"--- {what}: ended with code {code}{describe_signal(code)} after {time.monotonic() - started:.0f} s"])
    return code
