"""What every launcher needs: the environment, console output, dry runs, starting a program."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Callable, TypeVar

from bert_tf.base.errors import MissingError
from bert_tf.base.files import work_folder
from bert_tf.base.machine import count_cores, count_gpus
from bert_tf.launch import launchers
from bert_tf.launch.arguments import Argument
from bert_tf.launch.checks import choose_launcher, count_nodes, start_checks
from bert_tf.launch.hosts import rank_python
from bert_tf.launch.rank import describe_signal
from bert_tf.settings.declaration import from_variables
from bert_tf.settings.programs import PRETRAINING, LaunchVariables
from bert_tf.tasks.task import task_settings

Made = TypeVar("Made")

# All classes with settings that have a variable.
SETTINGS = (*PRETRAINING, *itertools.chain(*task_settings().values()), LaunchVariables)


class LaunchEnvironment:
    """The environment variables and the machine, as a launcher sees them.

    Attributes:
      environ: the variables themselves.
      signals: the numbers of those that have arrived while ranks were running.

    Raises:
      UserError: a variable has an invalid value.
    """

    def __init__(self, environ: Mapping[str, str]):
        self.environ = environ
        self._given = from_variables(environ, *SETTINGS)
        self.data_dir = self.path("data_dir", self.path("working_dir", work_folder() / "data"))
        self.is_dry_run = bool(self.given("dry_run"))
        init_checkpoint = self.given("init_checkpoint")
        self.init_checkpoint = init_checkpoint and os.path.abspath(init_checkpoint)
        self.signals: list[int] = []
        self._started_at = time.monotonic()
        self._uses_cpu = self.given("device") == "cpu"
        self.num_gpus = 0 if self._uses_cpu else count_gpus(environ)

    def given(self, name: str) -> Any:
        """The value of a setting that a variable gives; None if none does."""
        return self._given.get(name)

    def hours_left(self) -> float | None:
        """What is left of MAX_HOURS, counted from the creation of this object; None if it is not set."""
        hours = self.given("max_hours")
        return None if hours is None else hours - (time.monotonic() - self._started_at) / 3600

    def describe_limits(self) -> list[str]:
        """The variables that limit how long a training goes on, if they are set."""
        return [f"{name} = {self.given(name):g}" for name in ("restarts", "max_hours") if self.given(name)]

    def path(self, name: str, default: Path) -> Path:
        """The path that the variable of a setting gives, from the working folder."""
        given = self.given(name)
        return Path(os.path.abspath(given)) if given else default

    def prepare(self, num_ranks: int, results: Path, make: Callable[[], Made]) -> Made | None:
        """The result of `make`, if ranks can be started and `results` can be written; None in a dry run.

        Raises:
          UserError: what was typed cannot be run, or `make` raises it; something missing is only noted in a dry run.
        """
        for check in start_checks(num_ranks, self.num_gpus, self.environ, results):
            self._unless_missing(check)
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
        self, command: Sequence[str], flags: Mapping[str, Any], num_ranks: int, *, log_folder: Path
    ) -> launchers.Job:
        """A Python program by its `command`, with these flags, as ranks that are started here."""
        launcher = choose_launcher(num_ranks, self.environ)
        whole_command = [rank_python(self.environ), *command, *flag_texts(flags)]
        return launchers.Job(whole_command, num_ranks, self.num_gpus, launcher, log_folder, self.environ)

    def describe_device(self, num_ranks: int) -> str:
        if self.num_gpus:
            return f"GPU ({self.num_gpus} on this machine)"
        threads = max(1, count_cores() * count_nodes(self.environ) // num_ranks)
        reason = "DEVICE=cpu" if self._uses_cpu else "no GPU can be used here"
        return f"CPU ({num_ranks} rank(s) with {threads} thread(s) each; {reason})"


def program_command(program: str) -> list[str]:
    """The arguments by which Python starts a program of `programs`."""
    return ["-m", f"bert_tf.programs.{program}"]


def flag_texts(flags: Mapping[str, Any]) -> list[str]:
    """Flags as they are typed; None stands for the default, and is left out."""
    return [f"--{name}={as_typed(value)}" for name, value in flags.items() if value is not None]


def as_typed(value: Any) -> Any:
    """True and False as the launchers' arguments have them."""
    return str(value).lower() if isinstance(value, bool) else value


def shown(path: Path) -> str:
    """A path, relative to the working folder if it is inside that."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def show(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


def run_job(title: str, job: launchers.Job, signals: list[int]) -> int:
    """Runs a job, whose logs go to a new subfolder of its log folder; returns the ranks' exit code.

    Args:
      signals: receives the numbers of the signals that arrive meanwhile.
    """
    # To the microsecond, because another launcher may start in the same second on another host.
    log_folder = job.log_folder / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    show([f"--- {title}: logs in {shown(log_folder)}", "+ " + shlex.join(job.command)])
    started = time.monotonic()
    code = launchers.run(dataclasses.replace(job, log_folder=log_folder), signals)
    show([f"--- {title}: ended with code {code}{describe_signal(code)} after {time.monotonic() - started:.0f} s"])
    return code


# A launcher's arguments, and what it does with the texts that were typed; this returns the exit code.
Launcher = tuple[Sequence[Argument], Callable[[Sequence[str], LaunchEnvironment], int]]
