"""Wraps each rank: keeps its log and exit code, forwards signals, and ends it when another rank has failed.

Started by `job` as ``python -m bert_tf.launch.rank <log folder> <number of ranks> <program> ...``.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import platform
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.files import write_text
from bert_tf.base.machine.hardware import process_state, rank_number
from bert_tf.base.progress import COLUMNS_VARIABLE
from bert_tf.base.signals import STOP_SIGNALS, STOPPED_EXIT_CODE, without_ignored_hangup
from bert_tf.launch.slurm import slurm_place
from bert_tf.ranks import rendezvous

FORWARDED_SIGNALS = (*STOP_SIGNALS, signal.SIGINT)
POLL_SECS = 0.2
# How often each rank polls the file system, which many ranks may share.
WATCH_SECS = 1.0
# A rank that is stopped (SIGSTOP) at this many consecutive polls is killed: MPI would wait for it forever.
MAX_STOPPED_POLLS = 20
# A file in the log folder: a rank has failed. If each of thousands of ranks read the exit codes of all
# the others every second, they would keep a shared file system busy.
FAILED_FILE = "failed"
# "<process id> <host>" of the launcher, set if the ranks would outlive it.
LAUNCHER_VARIABLE = "BERT_TF_LAUNCHER"
# A file in the log folder: the numbers of the signals that the launcher has received.
SIGNALS_FILE = "signals.txt"
# Begins a rank's message when the rank sees no log folder, so that only the launcher's output can show it.
ERROR_OF_RANK = "no log of rank"
# Useless lines that TensorFlow prints at any log level.
_NOISE = re.compile(
    rb"(WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|I0000 [^\n]*Compiled cluster using XLA![^\n]*"
    rb"|[0-9-]+ [0-9:.]+: E external/[^\n]*\] SetPriority unimplemented for this stream\.)\r?\n"
)

# Characters reserved for a rank's exit code, the time of its end, and its host's name.
_REPORT_LENGTH = 40 + 64
# How long the wrapper of a rank that has ended delays its own exit, upon which the launcher kills the other ranks:
# after a stop, because rank 0 may still be saving, and after a failure, so that the others can report what they saw.
# The first is also the time that a rank gets to save when the launcher is gone.
WAIT_FOR_SAVING_SECS, WAIT_AFTER_FAILURE_SECS = 600.0, 5.0


@exit_on_user_error
def main(argv: Sequence[str]) -> int:
    """`argv`: the program name, then log folder, number of ranks, and the rank's command line."""
    folder, num_ranks, command = Path(argv[1]), int(argv[2]), argv[3:]
    rank = rank_number(os.environ) if num_ranks > 1 else 0
    # Ranks that horovodrun starts in a Slurm step have these variables, too, but get their addresses from horovodrun.
    if {"SLURM_PROCID", "HOROVOD_GLOO_RENDEZVOUS_PORT"} <= os.environ.keys() and "HOROVOD_RANK" not in os.environ:
        os.environ.update(slurm_place(os.environ))
    received: list[int] = []  # signals, also those that arrive before the rank is started
    for number in without_ignored_hangup(FORWARDED_SIGNALS):
        signal.signal(number, lambda number, _: received.append(number))
    if not folder.is_dir():
        raise UserError(
            f"{ERROR_OF_RANK} {rank} on {platform.node()}: it does not see {folder}, which the launcher has made; by "
            "RESULTS_DIR= name a folder that all hosts share"
        )
    if rank:
        os.environ.pop(COLUMNS_VARIABLE, None)  # the terminal shows only what rank 0 prints
    if num_ranks > 1:
        os.environ[rendezvous.VARIABLE] = f"{rank} {num_ranks} {folder.absolute()}"
    # Made now, with room for the report at the end, when the disk may be full.
    ending = folder / f"rank_{rank}.ending"
    write_text(ending, " " * _REPORT_LENGTH)
    with open(folder / f"rank_{rank}.log", "wb", buffering=0) as log, open(ending, "rb+", buffering=0) as report:
        child = start_child(command, subprocess.PIPE, os.environ, signal.SIGKILL)
        name = f"rank {rank} on {platform.node()}" if num_ranks > 1 else ""
        threading.Thread(target=_watch, args=(child, folder, received, log, name), daemon=True).start()
        _copy_until_end(log, child)
        code = shell_code(child.wait())
        if code - 128 in received and code - 128 != signal.SIGINT:
            # Killed by the signal before it could handle it, when there was nothing to save yet.
            code = STOPPED_EXIT_CODE
        with contextlib.suppress(OSError):  # the disk cannot be written any more; the launcher says so
            report.write(f"{code} {time.time()} {platform.node()}".encode())
            ending.rename(folder / f"rank_{rank}.exit")
    if code not in (0, STOPPED_EXIT_CODE):
        with contextlib.suppress(OSError):  # a full disk; the launcher ends the other ranks as well
            (folder / FAILED_FILE).touch()
    _wait_for_others(folder, num_ranks, code)
    rendezvous.arrival_file(folder, rank).unlink(missing_ok=True)
    return code


def start_child(command: Sequence[str], output, environment: Mapping[str, str], death_signal: int) -> subprocess.Popen:
    """Starts a child in its own session, which gets `death_signal` (0: none) if this process is killed.

    macOS cannot send that signal: there `_watch` looks for the launcher, and a program whose wrapper was killed ends
    when it next prints.
    """
    prctl, parent = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()

    def ask_for_signal() -> None:
        # The shell of a script ignores it in what it starts with &.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if prctl is not None:
            prctl(1, death_signal)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent was killed before the call above, which then had no effect
            os._exit(128 + signal.SIGKILL)

    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=ask_for_signal,
    )


def shell_code(code: int) -> int:
    """The exit code that a shell reports: 128 + n for a process ended by signal n."""
    return code if code >= 0 else 128 - code


def describe_signal(code: int) -> str:
    """The signal that an exit code of 128 + n stands for, such as " (SIGKILL)"; empty for other codes."""
    return f" ({signal.Signals(code - 128).name})" if code - 128 in set(signal.Signals) else ""


def _copy_until_end(log: io.FileIO, child: subprocess.Popen) -> None:
    """Copies the child's output to the log until it has ended and all is read; does not wait for its own children."""
    assert child.stdout
    reader = child.stdout.fileno()
    while True:
        ended = child.poll() is not None
        ready, _, _ = select.select([reader], [], [], 0 if ended else POLL_SECS)
        text = os.read(reader, 1 << 16) if ready else b""
        if text:
            with contextlib.suppress(OSError):  # a full disk, which the rank notices itself
                log.write(_NOISE.sub(b"", text))
        elif ready or ended:
            return


def _watch(child: subprocess.Popen, folder: Path, received: list[int], log: io.FileIO, name: str) -> None:
    """Passes signals on to the rank, those `received` here and the launcher's, and kills it if it would never end.

    It is killed if another rank has failed, or if its process is stopped while others wait for it (it has a `name` if
    there are others). If the launcher is gone it gets SIGTERM, and is killed only after it had time to save.
    """
    launcher, _, host = os.environ.get(LAUNCHER_VARIABLE, "").partition(" ")
    num_read = num_sent = 0
    num_stopped = 0  # polls are counted, not time, during which this process may have been stopped, too
    until = math.inf
    while child.poll() is None:
        time.sleep(WATCH_SECS)
        with contextlib.suppress(OSError):
            numbers = (folder / SIGNALS_FILE).read_text(encoding="utf-8").split()
            received += map(int, numbers[num_read:])
            num_read = len(numbers)
        if until == math.inf and host == platform.node() and process_state(launcher) in ("", "Z"):
            received.append(signal.SIGTERM)
            until = time.monotonic() + WAIT_FOR_SAVING_SECS
        for number in received[num_sent:]:
            child.send_signal(number)
            num_sent += 1
        if time.monotonic() > until:
            child.kill()
        if os.path.exists(folder / FAILED_FILE):  # False, unlike Path.exists, where a disk does not answer
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(WAIT_AFTER_FAILURE_SECS)
            child.kill()
        num_stopped = num_stopped + 1 if name and process_state(str(child.pid)) == "T" else 0
        if num_stopped == MAX_STOPPED_POLLS:
            with contextlib.suppress(OSError):  # a full disk
                log.write(
                    f"error: {name} has stood still for {num_stopped * WATCH_SECS:.0f} s (SIGSTOP, say) and is ended, "
                    "because all others wait for it. The same command goes on from the last checkpoint\n".encode()
                )
            child.kill()


def _wait_for_others(folder: Path, num_ranks: int, code: int) -> None:
    until = time.monotonic() + {0: 0.0, STOPPED_EXIT_CODE: WAIT_FOR_SAVING_SECS}.get(code, WAIT_AFTER_FAILURE_SECS)
    while num_ranks > 1 and time.monotonic() < until and folder.is_dir():  # the user may have removed it
        if len(list(folder.glob("rank_*.exit"))) >= num_ranks:
            return
        time.sleep(POLL_SECS)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
