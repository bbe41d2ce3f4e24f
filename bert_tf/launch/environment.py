"""What every launcher needs: the environment, what is shown, dry runs, starting a program."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.errors import UserError
from bert_tf.launch import launchers

CHECKOUT = Path(__file__).resolve().parents[2]


class LaunchEnvironment:
    """The environment variables and the machine, as a launcher sees them."""

    def __init__(self, environ: Mapping[str, str]):
        self.environ = environ
        self.data_dir = self.path("DATA_DIR", self.path("BERT_PREP_WORKING_DIR", CHECKOUT / "data"))
        self.is_dry_run = self.is_set("DRY_RUN")
        self.may_change = self.is_set("CONTINUE_WITH_CHANGES")
        self.init_checkpoint = os.path.abspath(environ["INIT_CHECKPOINT"]) if environ.get("INIT_CHECKPOINT") else None
        self.num_gpus = launchers.count_gpus(environ)

    def is_set(self, name: str) -> bool:
        return self.environ.get(name, "") not in ("", "0", "false")

    def extra_flags(self, names: Sequence[str]) -> list[str]:
        """A program's switches, of the variables that are called as they are."""
        return [f"--{name.lower()}" for name in names if self.is_set(name)]

    def path(self, name: str, default: Path) -> Path:
        return Path(os.path.abspath(self.environ[name])) if self.environ.get(name) else default

    def check_num_gpus(self, wanted: int) -> None:
        """Raises `UserError` where the machine, or the allocation, has GPUs but too few of them."""
        num_nodes = int(self.environ.get("SLURM_JOB_NUM_NODES", "1"))
        if self.num_gpus and wanted > self.num_gpus * num_nodes:
            raise UserError(
                f"num_gpus is {wanted}, but {self.num_gpus * num_nodes} GPU(s) can be used here "
                "(nvidia-smi, CUDA_VISIBLE_DEVICES); ask for at most that many. CUDA_VISIBLE_DEVICES= "
                "(empty) computes on the CPU"
            )

    def describe_device(self, num_ranks: int) -> str:
        if self.num_gpus:
            return f"GPU ({self.num_gpus} on this machine)"
        threads = max(1, launchers.count_cores() // num_ranks)
        return f"CPU ({num_ranks} rank(s) with {threads} thread(s) each; no GPU can be used here)"


def shown(path: Path) -> str:
    """A path as short as it can be typed from here."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def show(lines: Sequence[str]) -> None:
    print("\n".join(lines), flush=True)


def end_dry_run(prepare: Callable[[], Any]) -> int:
    """Shows what `prepare` finds; what a real run would stop with is a note here."""
    try:
        prepare()
    except UserError as error:
        show([f"note: a real run would stop here: {error}"])
    show(["DRY_RUN: nothing was started"])
    return 0


def check_tensorflow() -> None:
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(f"{sys.executable} has no TensorFlow; 'bash scripts/setup.sh' sets everything up")


def program_command(program: str, flags: Mapping[str, Any], extra_flags: Sequence[str]) -> list[str]:
    return [
        sys.executable,
        str(CHECKOUT / program),
        *(f"--{name}={value}" for name, value in flags.items()),
        *extra_flags,
    ]


def run_program(
    what: str, command: Sequence[str], num_ranks: int, launcher: str, environment: LaunchEnvironment, logs: Path
) -> int:
    log_folder = logs / time.strftime("%Y%m%d-%H%M%S")
    show([f"--- {what}: logs in {shown(log_folder)}", "+ " + shlex.join(command)])
    started = time.monotonic()
    code = launchers.run(launchers.Job(command, num_ranks, environment.num_gpus, launcher, log_folder))
    show([f"--- {what}: ended with code {code} after {time.monotonic() - started:.0f} s"])
    return code
