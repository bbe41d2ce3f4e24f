"""run.sub, the Slurm job of one phase: turns variables into the LAMB recipe's arguments, and requeues the job."""

from __future__ import annotations

import difflib
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object, work_folder
from bert_tf.base.signals import STOP_SIGNALS, STOPPED_EXIT_CODE
from bert_tf.base.values import parse_count
from bert_tf.launch import lamb, launchers
from bert_tf.launch.container import container_options
from bert_tf.launch.environment import SETTINGS, LaunchEnvironment, show
from bert_tf.launch.findings import count_nodes
from bert_tf.launch.pretraining import PLAN, WAY_OUT
from bert_tf.launch.rank import ForwardedSignals, shell_code
from bert_tf.launch.supervisor import newest_update
from bert_tf.settings.declaration import with_variable

# Variables that apply to the job's phase, and their arguments in phases 1 and 2. All other arguments are set by
# variables with their names in capitals.
_OF_PHASE = {
    "BATCHSIZE": ("train_batch_size_phase1", "train_batch_size_phase2"),
    "LEARNING_RATE": ("learning_rate_phase1", "learning_rate_phase2"),
    "NUM_ACCUMULATION_STEPS": ("num_accumulation_phase1", "num_accumulation_steps_phase2"),
    "WARMUP_STEPS": ("warmup_steps_phase1", "warmup_steps_phase2"),
}
# The defaults of NVIDIA's file, for four nodes of eight GPUs, that differ from the recipe's.
_DEFAULTS = {
    "train_batch_size_phase1": "16",
    "train_batch_size_phase2": "2",
    "learning_rate_phase1": "1.875e-4",
    "learning_rate_phase2": "1.25e-4",
}
_USAGE = "BATCHSIZE=16 PHASE=1 sbatch -N4 --ntasks-per-node=8 run.sub"


# Names at least this similar are taken for typing errors; other programs' variables reach about 0.85.
_ALIKE = 0.88


def launch(typed: Sequence[str], environment: LaunchEnvironment) -> int:
    """Runs one phase on all tasks of the job; returns the ranks' exit code.

    Raises:
      UserError: a variable has an invalid value, or this is not a Slurm job.
    """
    if typed:
        raise UserError(
            f"run.sub takes no arguments, but variables, as in {_USAGE}; the first argument is {typed[0]!r}"
        )
    environ = dict(environment.environ)
    phase = environment.values.phase
    if "SLURM_JOB_ID" not in environ and not environment.is_dry_run:
        raise UserError(f"this is no Slurm job; type {_USAGE}, or DRY_RUN=1 bash run.sub to see what it would do")
    refuse_mistyped(environ, phase)
    folder = environment.path("results_dir", work_folder() / "results" / "slurm")
    num_ranks = count_tasks(environment)
    texts = argument_texts(phase, environ, folder, num_ranks)
    script = f"pretraining_lamb_phase{phase}"
    lamb.make_phases(lamb.parse(texts), f"phase_{phase}", variables_of(phase))
    environ["RESULTS_DIR"] = str(folder)
    if num_ranks > 1:
        environ.setdefault("LAUNCHER", "srun")
    num_per_node = launchers.ranks_per_node(num_ranks, "srun", environ)
    srun = [*launchers.launcher_command("srun", num_ranks, num_per_node, []), *container_options(environ)]
    show([f"+ bash scripts/run_{script}.sh {shlex.join(texts)}", f"srun = {shlex.join(srun)}"])
    run_folder = folder / f"phase_{phase}"
    before = newest_update(run_folder)
    code, received = _run([sys.executable, "-m", "bert_tf.launch", script, *texts], environ)
    if code == STOPPED_EXIT_CODE and signal.SIGUSR1 in received:  # SIGTERM: cancelled, or Slurm itself requeues
        if newest_update(run_folder) <= before:
            raise UserError("this start has saved nothing, and nor would the next: not requeued; a longer --time helps")
        show([f"run.sub: saved; back into the queue: scontrol requeue {environ['SLURM_JOB_ID']}"])
        subprocess.run(["scontrol", "requeue", environ["SLURM_JOB_ID"]])
    return code


def count_tasks(environment: LaunchEnvironment) -> int:
    """The number of tasks of the job; outside of a job the number that sbatch would give it, by default 8 per node."""
    num_tasks = _count(environment.environ, "SLURM_NTASKS")
    num_nodes = count_nodes(environment.environ)
    num_per_node = _count(environment.environ, "SLURM_NTASKS_PER_NODE")
    if not num_tasks and not num_per_node and not environment.is_dry_run:
        raise UserError(f"sbatch lacks --ntasks-per-node, the GPUs of a node, as in {_USAGE}")
    return num_tasks or num_nodes * (num_per_node or 8)


def _count(environ: Mapping[str, str], name: str) -> int | None:
    """One of Slurm's numbers of tasks; None if it is not set."""
    try:
        return parse_count(environ[name]) if environ.get(name) else None
    except ValueError as error:
        raise UserError(f"{name}={environ[name]}: {error}") from None


def variables_of(phase: int) -> dict[str, str]:
    """The variables of the recipe's arguments that can be set in a phase, by argument."""
    variables = {argument.name: argument.name.upper() for argument in lamb.ARGUMENTS if argument.name != "num_gpus"}
    for variable, names in _OF_PHASE.items():
        variables[names[phase - 1]] = variable
        del variables[names[2 - phase]]
    return variables


def refuse_mistyped(environ: Mapping[str, str], phase: int) -> None:
    """Raises `UserError` for a variable that has no effect: NUM_GPUS, or one that is probably mistyped, such as
    BATCH_SIZE for BATCHSIZE.
    """
    if environ.get("NUM_GPUS"):
        raise UserError(
            f"NUM_GPUS={environ['NUM_GPUS']}: has no effect on run.sub, whose ranks are the job's tasks: say it by "
            f"sbatch's -N and --ntasks-per-node, as in {_USAGE}, and take it out: env -u NUM_GPUS sbatch ..."
        )
    read = {*variables_of(phase).values(), *(each.variable for each in with_variable(*SETTINGS))}
    meant = {name.replace("_", ""): name for name in read}
    for variable, names in _OF_PHASE.items():  # under the arguments' names, with and without their phase
        for name in names:
            meant.update(dict.fromkeys((name.upper().replace("_", ""), name.upper()[:-7].replace("_", "")), variable))
    for name in sorted(set(environ) - read):
        if environ[name] and (close := difflib.get_close_matches(name.replace("_", ""), meant, 1, _ALIKE)):
            raise UserError(
                f"{name}={environ[name]}: run.sub reads no such variable; did you mean {meant[close[0]]}? "
                f"Else take it out: env -u {name} sbatch ..."
            )


def argument_texts(phase: int, environ: Mapping[str, str], folder: Path, num_ranks: int) -> list[str]:
    """The recipe's fifteen arguments: from their variables, else from the plan of the run in `folder`, else defaults.

    Raises:
      UserError: a value is invalid.
    """
    begun: dict[str, Any] = read_json_object(folder / PLAN, WAY_OUT) if (folder / PLAN).exists() else {}
    variables, texts = variables_of(phase), []
    for argument in lamb.ARGUMENTS:
        variable = variables.get(argument.name, "")
        text = environ.get(variable) or str(begun.get(argument.name, _DEFAULTS.get(argument.name, argument.default)))
        if argument.name == "num_gpus":
            text = str(num_ranks)
        try:
            argument.parse(text)
        except ValueError:
            where = variable if environ.get(variable) else f"{folder / PLAN}: {argument.name}"
            raise UserError(f"{where}={text}: must be {argument.rule}") from None
        texts.append(text)
    return texts


def _run(command: Sequence[str], environ: Mapping[str, str]) -> tuple[int, list[int]]:
    """Runs a launcher; returns its exit code and the stop signals that were forwarded to it."""
    signals = ForwardedSignals(STOP_SIGNALS)
    child = subprocess.Popen(command, env=dict(environ))
    signals.pass_to(child)
    code = shell_code(child.wait())
    return STOPPED_EXIT_CODE if code - 128 in signals.received else code, signals.received
