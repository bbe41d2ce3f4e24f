"""Starts a program as N ranks, shows rank 0's output, and returns the ranks' exit code.

    run() -> srun | mpirun | horovodrun | nothing -> `python -m bert_tf.launch.rank` per rank -> program

The small process around each rank makes the launchers behave alike: it gives the rank its own log,
forwards signals to it, and records its exit code, which mpirun and horovodrun replace by one of their own.
Under srun it also tells Horovod's Gloo where the ranks find each other: at a server in the process that
calls `run`, so that neither MPI nor ssh is needed. The output of srun, mpirun or horovodrun itself is shown
only if the ranks could not be started.

Signals (SIGTERM, SIGUSR1, SIGHUP, SIGINT) are passed to the ranks and not to mpirun or horovodrun, which would kill a
rank that is still saving. The ranks, which may be on other machines, read them from a file in the log folder.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from bert_tf.base.files import write_text
from bert_tf.base.machine.launchers import Start
from bert_tf.base.output import dropping_unwritable
from bert_tf.base.progress import COLUMNS_VARIABLE, print_beside_bars
from bert_tf.base.signals import STOP_SIGNALS, STOPPED_EXIT_CODE, handling_signals
from bert_tf.launch.environment import LaunchEnvironment, short_path, show
from bert_tf.launch.rank import (
    ERROR_OF_RANK,
    FAILED_FILE,
    FORWARDED_SIGNALS,
    LAUNCHER_VARIABLE,
    POLL_SECS,
    SIGNALS_FILE,
    describe_signal,
    shell_code,
    start_child,
)
from bert_tf.launch.slurm import serve_addresses
from bert_tf.launch.start import launcher_command, rank_environment, rank_python

_LAUNCHER_LOG = "launcher.log"
# How often it is looked whether the ranks have ended, and how long after them srun, mpirun or horovodrun may end: the
# processes around the ranks stay for `rank.WAIT_AFTER_FAILURE_SECS` after a failure.
_LOOK_SECS, _MOST_SECS_WITHOUT_RANKS = 5.0, 60.0
# What names of secrets end with, or have before a "_". horovodrun writes all variables into the ranks' command lines,
# on other machines and in that of ssh here, which `ps` shows to every user; the ranks need none of these.
_SECRET = re.compile(r"(KEY|PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS)(_|$)", re.IGNORECASE)
# Prefixes of the variables that mpirun is told to pass on to other machines; horovodrun and srun pass on all.
_PASSED_ON = (
    *("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "BERT_TF_"),
    *("CUDA_", "HOROVOD_", "NCCL_", "TF_", "XLA_", "OMP_", "OMPI_MCA_", "MALLOC_"),
)


def run(title: str, command: Sequence[str], num_ranks: int, log_folder: Path, environment: LaunchEnvironment) -> int:
    """Runs a program to its end; returns the exit code of the rank that failed first, or 0.

    The program is called with ``--use_horovod`` if a launcher is used. Its logs are ``rank_<r>.log``; rank 0's is shown
    as it grows.

    Args:
      command: arguments of the ranks' Python: a script or -m module, and its flags.
      log_folder: each start puts its logs into a new subfolder.
      environment: signals that arrive meanwhile are appended to its `signals`.
    """
    received = environment.signals
    # To the microsecond, because another launcher may start in the same second on another host.
    folder = log_folder / datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    folder.mkdir(parents=True)
    start, started = environment.start(num_ranks), time.monotonic()
    python = rank_python(start)
    show(f"--- {title}: logs in {short_path(folder)}", "+ " + shlex.join([python, *command]))
    variables = {**environment.environ, **rank_environment(start)}
    if start.launcher == "srun":
        variables.update(
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(serve_addresses()),
            # Without it, srun inside a Slurm step, such as `srun --pty bash`, would wait until that step has ended.
            SLURM_OVERLAP="1",
        )
    else:  # srun ends its tasks itself, and may start them where this process is not visible
        variables[LAUNCHER_VARIABLE] = f"{os.getpid()} {platform.node()}"
    if start.launcher == "horovodrun":
        variables = without_secrets(variables)
    if sys.stdout.isatty() and sys.stderr.isatty():
        variables[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    full_command = [
        *launcher_command(start, [name for name in variables if name.startswith(_PASSED_ON)]),
        *(python, "-m", "bert_tf.launch.rank", str(folder), str(num_ranks)),
        *(python, *command, *(["--use_horovod"] if start.uses_horovod else [])),
    ]
    # If this process is killed, mpirun and horovodrun must live on, or they would kill ranks that are still saving.
    # Ranks on this machine notice by themselves that it is gone. srun passes SIGUSR1 on, upon which they save, but ends
    # them by SIGTERM.
    death_signal: int = signal.SIGUSR1 if start.launcher == "srun" else signal.SIGTERM
    if start.launcher in ("mpirun", "horovodrun") and not start.hosts:
        death_signal = 0
    write_text(folder / SIGNALS_FILE, "\n")  # now, so that the file exists even if the disk is full later

    def pass_on(number: int) -> None:
        received.append(number)
        print_beside_bars(f"{signal.Signals(number).name}: passed on to the ranks")
        with open(folder / SIGNALS_FILE, "a", encoding="utf-8") as file:
            file.write(f"{int(number)}\n")

    with handling_signals(FORWARDED_SIGNALS, pass_on):
        with open(folder / _LAUNCHER_LOG, "wb") as launcher_log:
            process = start_child(full_command, launcher_log, variables, death_signal)
        _show(folder, process, received, num_ranks)
    code = _exit_code(folder, start, process.returncode, received)
    try:
        (folder / SIGNALS_FILE).touch()  # made above, so this fails only if the disk is gone or has become read-only
    except OSError as error:
        print_beside_bars(
            f"{short_path(folder)} cannot be written to ({error.strerror}), so the ranks' last messages are lost: "
            "put that right, and the same command goes on from the last checkpoint"
        )
    show(f"--- {title}: ended with code {code}{describe_signal(code)} after {time.monotonic() - started:.0f} s")
    return code


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables but for those whose names say that they hold a secret; NCCL_IB_PKEY and its like stay."""
    return {name: text for name, text in variables.items() if name.startswith(_PASSED_ON) or not _SECRET.search(name)}


def _show(folder: Path, launcher: subprocess.Popen, received: Sequence[int], num_ranks: int) -> None:
    """Copies rank 0's log to stdout until the launcher has ended, by itself or by a second SIGINT.

    It is ended, too, if the ranks have ended long ago: srun waits for ever for a node whose slurmstepd has died.
    """
    num_copied, look_at, until = 0, time.monotonic(), math.inf
    while True:
        ended = launcher.poll() is not None
        if received.count(signal.SIGINT) > 1:  # the user does not want to wait
            launcher.terminate()
        if time.monotonic() > look_at:
            look_at += _LOOK_SECS
            if until == math.inf and _have_ended(folder, num_ranks):
                until = time.monotonic() + _MOST_SECS_WITHOUT_RANKS
            elif time.monotonic() > until:
                launcher.terminate()
                until = look_at = math.inf
        # No log yet, or a disk that does not answer.
        with contextlib.suppress(OSError), open(folder / "rank_0.log", "rb") as file:
            file.seek(num_copied)
            text = file.read()
            num_copied += len(text)
            with dropping_unwritable(sys.stdout):
                sys.stdout.buffer.write(text)
        if ended:
            return
        time.sleep(POLL_SECS)


def _have_ended(folder: Path, num_ranks: int) -> bool:
    """Whether all ranks have ended, or one has failed, upon which the others end; False if the disk does not answer."""
    with contextlib.suppress(OSError):
        if (folder / FAILED_FILE).exists():
            return True
        # The files, perhaps of thousands of ranks, are counted only at the end.
        return (folder / "rank_0.exit").exists() and len(list(folder.glob("rank_*.exit"))) == num_ranks
    return False


def _exit_code(folder: Path, start: Start, launcher_code: int, received: Sequence[int]) -> int:
    """The exit code of the rank that failed first; prints the reason where rank 0's log, already shown, lacks it."""
    ends = []
    for file in folder.glob("rank_*.exit"):
        rank_code, ended_at, host = file.read_text().split(" ", 2)
        ends.append((float(ended_at), int(file.stem[len("rank_") :]), host.strip(), int(rank_code)))
        file.unlink()
    stop_requested, all_have_ended = any(number in STOP_SIGNALS for number in received), len(ends) == start.num_ranks
    # If a rank has left no code and no stop was requested, the launcher has stopped the other ranks: not their failure.
    not_failures = (0,) if stop_requested or all_have_ended else (0, STOPPED_EXIT_CODE)
    if failures := [end for end in ends if end[-1] not in not_failures]:
        _, rank, host, code = min(failures)
        if rank != 0 and code != STOPPED_EXIT_CODE:
            print_beside_bars(f"rank {rank} on {host} ended first, with code {code}{describe_signal(code)}:")
            _print_end(folder / f"rank_{rank}.log")
        if code == 128 + signal.SIGKILL:  # which a process cannot report itself
            print_beside_bars(
                f"rank {rank} on {host} was killed (SIGKILL). If its log does not say that it stood still, most likely "
                "the kernel killed it because that machine's memory ran out ('dmesg' there says so): try a smaller "
                "micro-batch with more accumulation, fewer ranks, or a smaller model"
            )
        return code
    if all_have_ended and not launcher_code:
        return 0
    if stop_requested:  # before any rank was running that could react to it
        return STOPPED_EXIT_CODE
    if start.launcher != "none":
        needs = "; docs/troubleshooting.md says what hosts need to have in common" if start.hosts else ""
        print_beside_bars(f"{start.launcher} ended with code {launcher_code}{needs}:")
    _print_end(folder / _LAUNCHER_LOG)
    return shell_code(launcher_code) or 1


def _print_end(log: Path, num_lines: int = 20) -> None:
    """Prints the last lines of a log, or only its lines about ranks without a log; nothing if it does not exist."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    if log.name == _LAUNCHER_LOG:  # drops the frames of Horovod's tracebacks, which it prints even for a mistyped host
        lines = [line for line in lines if line and line[0] != " "]
    for line in [line for line in lines if ERROR_OF_RANK in line] or lines[-num_lines:]:
        print_beside_bars(f"  {line}")
