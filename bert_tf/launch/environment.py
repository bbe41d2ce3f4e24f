"""What every launcher needs: environment variables, dry runs, the checks before a start, console output."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.errors import MissingError
from bert_tf.base.files import check_folder, check_readable_path, work_folder
from bert_tf.base.machine.hardware import count_gpus
from bert_tf.base.machine.launchers import START_CHECKS, Start
from bert_tf.base.output import dropping_unwritable
from bert_tf.settings.declaration import from_variables
from bert_tf.settings.programs import PRETRAINING, LaunchVariables
from bert_tf.tasks.task import TASKS, settings_classes

# The settings classes of each program that is launched; then all settings classes.
SETTINGS_OF = {
    "pretraining": PRETRAINING,
    "squad": settings_classes("squad"),
    "classifier": settings_classes("glue"),
    "ner": settings_classes("entities"),
}
SETTINGS = (*itertools.chain(*map(settings_classes, TASKS)), LaunchVariables)


class LaunchEnvironment:
    """The environment variables and the machine, as a launcher sees them.

    Attributes:
      environ: the variables themselves.
      signals: the numbers of the signals that have arrived while ranks were running.

    Raises:
      UserError: a variable has an invalid value.
    """

    def __init__(self, environ: Mapping[str, str]):
        self.environ = environ
        self._values = from_variables(environ, *SETTINGS)
        self.data_dir = self.path("data_dir", self.path("working_dir", work_folder() / "data"))
        self.is_dry_run = bool(self.value_of("dry_run"))
        init_checkpoint = self.value_of("init_checkpoint")
        self.init_checkpoint = init_checkpoint and os.path.abspath(init_checkpoint)
        self.signals: list[int] = []
        self._started_at = time.monotonic()

    @functools.cached_property  # nvidia-smi takes a second on some machines
    def num_gpus(self) -> int:
        return 0 if self.value_of("device") == "cpu" else count_gpus(self.environ)

    def with_variables(self, variables: Mapping[str, str]) -> LaunchEnvironment:
        """A copy in which these are set, which shares the time that counts for MAX_HOURS and the received signals."""
        other = LaunchEnvironment({**self.environ, **variables})
        other._started_at, other.signals = self._started_at, self.signals
        return other

    def with_defaults(self, defaults: Mapping[str, str]) -> LaunchEnvironment:
        """The same with `defaults` for variables that are unset or, which means the same, empty."""
        return self.with_variables({name: text for name, text in defaults.items() if not self.environ.get(name)})

    def value_of(self, name: str) -> Any:
        """The value that a variable gives a setting; None if no variable does."""
        return self._values.get(name)

    def hours_left(self) -> float | None:
        """What is left of MAX_HOURS, counted from the creation of this object; None if it is not set."""
        hours = self.value_of("max_hours")
        return None if hours is None else hours - (time.monotonic() - self._started_at) / 3600

    def path(self, name: str, default: Path) -> Path:
        """The absolute path that the variable of a setting gives, else `default`."""
        given = self.value_of(name)
        return Path(os.path.abspath(given)) if given else default

    def start(self, num_ranks: int) -> Start:
        return Start(num_ranks, self.num_gpus, self.environ)

    def prepare(self, num_ranks: int, results: Path, make: Callable[[], Any]) -> Any:
        """Checks that ranks can be started and `results` be written; then the result of `make`, or None in a dry run.

        Raises:
          UserError: a check has failed, or `make` raises it; in a dry run missing things are only noted.
        """
        made, start, title = None, self.start(num_ranks), f"RESULTS_DIR={results}"
        steps: list[Callable[[], Any]] = [functools.partial(check, start) for check in START_CHECKS]
        for step in (*steps, lambda: check_folder(results, title), lambda: check_readable_path(results, title), make):
            try:
                made = step()
            except MissingError as error:
                if not self.is_dry_run:
                    raise
                show(f"note: a real run would stop here: {error}")
        show(f"launcher = {start.launcher}")
        if not self.is_dry_run:
            return made
        show("DRY_RUN: nothing was started")
        return None

    def describe_device(self, num_ranks: int) -> str:
        if self.num_gpus:
            return f"GPU ({self.num_gpus} on this machine)"
        start = self.start(num_ranks)
        if start.launcher == "srun" and start.is_beside_job:
            return "what the job's nodes have (not seen from this machine)"
        return f"CPU ({num_ranks} rank(s) with {start.num_threads} thread(s) each)"


def flag_texts(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a command line has them; None stands for the default, and is left out."""
    return [f"--{name}={as_argument(value)}" for name, value in flags.items() if value is not None]


def as_argument(value: Any) -> Any:
    """The value as a launcher's argument: true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else value


def short_path(path: Path) -> str:
    """A path, relative to the working folder if it is inside that."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else os.path.abspath(path)


def show(*lines: str) -> None:
    """Prints the lines, or drops them where they cannot be written."""
    with dropping_unwritable(sys.stdout):
        print(*lines, sep="\n")
