"""run.sub, the Slurm job of one phase: turns variables into the LAMB recipe's arguments, and requeues the job."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import read_json_object, work_folder
from bert_tf.base.machine.launchers import Start, slurm_count
from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.launch.arguments import Argument, Positionals
from bert_tf.launch.call import newest_update
from bert_tf.launch.environment import SETTINGS, LaunchEnvironment, show
from bert_tf.launch.pretraining import LAMB, PLAN, make_lamb
from bert_tf.launch.start import launcher_command
from bert_tf.settings.declaration import with_variable

# The defaults of NVIDIA's file, for four nodes of eight GPUs, that differ from the recipe's.
_DEFAULTS = {
    "train_batch_size_phase1": "16",
    "train_batch_size_phase2": "2",
    "learning_rate_phase1": "1.875e-4",
    "learning_rate_phase2": "1.25e-4",
}
_USAGE = "BATCHSIZE=16 PHASE=1 sbatch -N4 --ntasks-per-node=8 run.sub"
# Variables' names at least this similar are taken for typing errors; other programs' variables reach about 0.85.
_ALIKE = 0.88


@dataclasses.dataclass(frozen=True)
class RunSub:
    """One phase on all tasks of the job.

    Raises:
      UserError: a variable has an invalid value, or this is not a Slurm job.
    """

    positionals: Positionals
    environment: LaunchEnvironment

    def launch(self) -> int:
        """Returns the ranks' exit code."""
        environ = dict(self.environment.environ)
        phase = self.environment.value_of("phase") or 1
        if "SLURM_JOB_ID" not in environ and not self.environment.is_dry_run:
            raise UserError(f"this is no Slurm job; type {_USAGE}, or DRY_RUN=1 bash run.sub to see what it would do")
        refuse_mistyped(environ, phase)
        folder = self.environment.path("results_dir", work_folder() / "results" / "slurm")
        num_ranks = count_tasks(self.environment)
        texts = argument_texts(phase, environ, folder, num_ranks)
        environ["RESULTS_DIR"] = str(folder)
        if num_ranks > 1:
            environ.setdefault("LAUNCHER", "srun")
        start = Start(num_ranks, 0, environ)
        with contextlib.suppress(MissingError):  # a dry run goes on; a real run refuses it below
            start.check_launcher()
        show(
            f"+ bash scripts/run_pretraining_lamb_phase{phase}.sh {shlex.join(texts)}",
            f"srun = {shlex.join(launcher_command(start))}",
        )
        run_folder = folder / f"phase_{phase}"
        before = newest_update(run_folder)
        environment = LaunchEnvironment(environ)
        code = make_lamb(Positionals(LAMB, texts), environment, f"phase_{phase}").launch()
        # After SIGTERM the job was cancelled, or Slurm itself requeues it. But Slurm does not requeue a preempted job
        # that ends within its grace time; then only the ranks have got a signal.
        if code == STOPPED_EXIT_CODE and signal.SIGTERM not in environment.signals:
            job, is_time_over = environ["SLURM_JOB_ID"], signal.SIGUSR1 in environment.signals
            preempted = is_preempted(job)
            if is_time_over and not preempted and newest_update(run_folder) <= before:
                raise UserError("this start has saved nothing, and nor would the next: not requeued; raise --time")
            if is_time_over or preempted:
                show(f"run.sub: back into the queue: scontrol requeue {job}")
                subprocess.run(["scontrol", "requeue", job])
        return code


def is_preempted(job: str) -> bool:
    """Whether Slurm is preempting a running job, to make room for another one."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True)
    return re.search(r"\bPreemptTime=\d", shown.stdout) is not None


def count_tasks(environment: LaunchEnvironment) -> int:
    """The number of tasks of the job; outside of a job the number that sbatch would give it, by default 8 per node."""
    environ, num_nodes = environment.environ, environment.start(1).num_nodes
    num_tasks = slurm_count(environ, "SLURM_NTASKS") or num_nodes * slurm_count(environ, "SLURM_NTASKS_PER_NODE")
    if not num_tasks and not environment.is_dry_run:
        raise UserError(f"sbatch lacks --ntasks-per-node, the GPUs of a node, as in {_USAGE}")
    return num_tasks or num_nodes * 8


def variable_of(argument: Argument, phase: int) -> str:
    """The variable that sets one of the recipe's arguments; "" if none does in this phase.

    It has the name of the setting for an argument of this phase, else that of the argument.
    """
    if argument.name.endswith(f"_phase{phase}"):
        name = argument.setting.name
        return "BATCHSIZE" if name == "train_batch_size" else name.upper()
    return "" if re.search(r"num_gpus|_phase\d$", argument.name) else argument.name.upper()


def refuse_mistyped(environ: Mapping[str, str], phase: int) -> None:
    """Raises `UserError` for a variable that has no effect, but has an argument's name or is probably mistyped."""
    effective = {variable_of(argument, phase) for argument in LAMB}
    effective |= {setting.variable for setting in with_variable(*SETTINGS)}
    suggestions = {}  # by what a user may have typed
    for number in (3 - phase, phase):  # what has an effect in this phase goes before what has one in the other
        for argument in LAMB:
            if variable := variable_of(argument, number):
                variable += "" if number == phase else f" with PHASE={number}"
                suggestions.update({argument.setting.name.upper(): variable, argument.name.upper(): variable})
    suggestions |= {**dict(zip(effective, effective)), "NUM_GPUS": "sbatch's -N and --ntasks-per-node"}
    for name in sorted(set(environ) - effective):
        likely = name if name in suggestions else re.sub(r"_PHASE\d$", "", name)
        close = difflib.get_close_matches(likely, suggestions, 1, _ALIKE)
        if environ[name] and close:
            raise UserError(
                f"{name}={environ[name]}: run.sub reads no such variable; did you mean {suggestions[close[0]]}? Else "
                f"take it out: env -u {name} sbatch ..."
            )


def argument_texts(phase: int, environ: Mapping[str, str], folder: Path, num_ranks: int) -> list[str]:
    """The recipe's arguments: from their variables, else from the plan of a run begun in `folder`, else defaults."""
    defaults: dict[str, Any] = {**{argument.name: argument.default for argument in LAMB}, **_DEFAULTS}
    if (folder / PLAN).exists():
        defaults.update(read_json_object(folder / PLAN, "set RESULTS_DIR to another folder"))
    defaults["num_gpus"] = num_ranks
    return [environ.get(variable_of(argument, phase)) or str(defaults[argument.name]) for argument in LAMB]
