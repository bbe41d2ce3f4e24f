"""Starts a program as N ranks, shows rank 0's output, and returns the ranks' exit code.

    run() -> srun | mpirun | horovodrun | nothing -> `python -m bert_tf.launch.rank` per rank -> program

The small process around each rank makes the launchers behave alike: it gives the rank its own log,
forwards signals to it, and records its exit code, which mpirun and horovodrun replace by their own.
Under srun it also tells Horovod's Gloo where the ranks find each other: at a server in this process,
so that Slurm needs neither MPI nor ssh. The launchers' own output is shown only if they could not
start the ranks.

Signals (SIGTERM, SIGUSR1, SIGINT) go to the ranks and not to the launcher, which would kill a rank that is still
saving. The ranks, which may be on other machines, read them from a file in the log folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from bert_tf.base.machine import count_cores
from bert_tf.base.progress import COLUMNS_VARIABLE
from bert_tf.base.signals import STOP_SIGNALS, STOPPED_EXIT_CODE, handling
from bert_tf.launch.checks import count_nodes
from bert_tf.launch.hosts import container_options, hosts_of, rank_python
from bert_tf.launch.rank import (
    ERROR_OF_RANK,
    FORWARDED_SIGNALS,
    LAUNCHER_VARIABLE,
    POLL_SECS,
    SIGNALS,
    STOOD_STILL,
    describe_signal,
    shell_code,
    start_child,
)

_LAUNCHER_LOG = "launcher.log"
# Variables (or their prefixes) that mpirun passes on to other machines; horovodrun and srun pass on all.
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_", "HOROVOD_", "NCCL_", "TF_", "XLA_")


def ranks_per_node(num_ranks: int, launcher: str, environ: Mapping[str, str]) -> int:
    """The largest number of ranks on one machine; without HOSTS only srun uses several machines."""
    if hosts := hosts_of(environ):
        return max(hosts.values())
    return -(-num_ranks // count_nodes(environ)) if launcher == "srun" else num_ranks


# --- How ranks are started -----------------------------------------------------------------------


def rank_environment(num_ranks: int, num_gpus: int) -> dict[str, str]:
    """Variables for `num_ranks` on a machine with `num_gpus`; those that the user has set are kept."""
    variables = {
        # No fusion by Horovod (`ranks.workers` makes buckets): the order of a sum must not depend on
        # which tensors happen to be ready together.
        "HOROVOD_FUSION_THRESHOLD": "0",
        # If a rank hangs, all end within a minute, with a reason. (Horovod checks every 5 s; with
        # its response cache it would start counting later.)
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "5",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30",
        "HOROVOD_CACHE_CAPACITY": "0",
        # Most containers forbid reading another process's memory, and Open MPI would complain with
        # every message.
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        # MPI waits forever for a host that has become unreachable. With these, mpirun probes a silent connection after
        # 10 s, and ends all ranks after four probes, 5 s apart, without an answer.
        "OMPI_MCA_oob_tcp_keepalive_time": "10",
        "OMPI_MCA_oob_tcp_keepalive_intvl": "5",
        "OMPI_MCA_oob_tcp_keepalive_probes": "4",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "PYTHONUNBUFFERED": "1",
    }
    if num_gpus == 0:
        threads = str(max(1, count_cores() // num_ranks))
        variables.update(
            dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), threads)
        )
        # By default Horovod polls for work every millisecond, and Open MPI does not sleep while it
        # waits: this takes half a core per rank from the computation.
        variables.update(HOROVOD_CYCLE_TIME="5", OMPI_MCA_mpi_yield_when_idle="1")
        # Saves 2-8 % of an update on a CPU: an update's memory is reused by the next one, not returned to the system.
        variables.update(
            MALLOC_MMAP_MAX_="0",
            MALLOC_TRIM_THRESHOLD_="17179869184",
            MALLOC_TOP_PAD_="268435456",
            MALLOC_ARENA_MAX="1",
        )
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def launcher_command(
    launcher: str, num_ranks: int, num_per_node: int, variables: Sequence[str], hosts: Mapping[str, int] | None = None
) -> list[str]:
    """The launcher's part of the command line; it passes `variables` on to other machines. `hosts`: see `hosts_of`."""
    if launcher == "none":
        return []
    on_hosts = ["-H", ",".join(f"{name}:{number}" for name, number in hosts.items())] if hosts else []
    if launcher == "horovodrun":
        # What it has cached about the hosts within the last hour may have changed.
        cache = ["--disable-cache"] if hosts else []
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks), *cache, *on_hosts]
    if launcher == "srun":
        # No binding to cores: a rank has as many threads as its share of the machine's cores.
        return [
            "srun",
            f"--ntasks={num_ranks}",
            f"--ntasks-per-node={num_per_node}",
            "--distribution=block",
            "--kill-on-bad-exit=1",
            "--mpi=none",
            "--cpu-bind=none",
        ]
    command = ["mpirun", "-np", str(num_ranks), *on_hosts]
    if "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        command += ["--oversubscribe", "--bind-to", "none", "--map-by", "slot"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [part for name in variables for part in ("-x", name)]
    return command


def serve_addresses() -> int:
    """A rendezvous server for Horovod's Gloo: ranks started by srun publish and read their addresses there.

    Serves the same by HTTP as Horovod's own launcher: PUT and GET of /<scope>/<key>, and 404 for a key not yet put. It
    does not need Horovod, because if the ranks run in a container the machine around it may not have Horovod. It serves
    as long as this process lives; returns the port, which is open on all of the machine's interfaces.
    """
    values: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_GET(self) -> None:
            self._answer(200 if self.path in values else 404, values.get(self.path, b""))

        def do_DELETE(self) -> None:
            self._answer(200)  # but keeps the address: a slower rank may still need it

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


@dataclasses.dataclass(frozen=True)
class Job:
    """A program, and how many ranks of it to start."""

    command: Sequence[str]
    num_ranks: int
    num_gpus: int  # on this machine; 0: the ranks compute on the CPU
    launcher: str
    log_folder: Path
    environ: Mapping[str, str] = dataclasses.field(default_factory=lambda: os.environ)


def run(job: Job, received: list[int] | None = None) -> int:
    """Runs the job to its end; returns the exit code of the rank that failed first, or 0.

    `received` gets the numbers of the signals that arrive meanwhile.

    The program is called with ``--use_horovod`` if a launcher is used. Its logs are ``rank_<r>.log`` in
    the log folder; rank 0's is shown as it grows.
    """
    folder = job.log_folder
    folder.mkdir(parents=True, exist_ok=True)
    num_per_node = ranks_per_node(job.num_ranks, job.launcher, job.environ)
    variables = rank_environment(num_per_node, job.num_gpus)
    if job.launcher == "srun":
        variables.update(
            HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo",
            HOROVOD_GLOO_RENDEZVOUS_PORT=str(serve_addresses()),
        )
    else:  # srun ends its tasks itself, and may start them where this process is not visible
        variables[LAUNCHER_VARIABLE] = f"{os.getpid()} {platform.node()}"
    environment = {**job.environ, **variables}
    if sys.stdout.isatty() and sys.stderr.isatty():
        environment[COLUMNS_VARIABLE] = str(shutil.get_terminal_size().columns)
    wrapper = [rank_python(job.environ), "-m", "bert_tf.launch.rank", str(folder), str(job.num_ranks)]
    program = [*job.command, *([] if job.launcher == "none" else ["--use_horovod"])]
    passed_on = [*variables, *(name for name in job.environ if name.startswith(_PASSED_ON) and name not in variables)]
    starter = launcher_command(job.launcher, job.num_ranks, num_per_node, passed_on, hosts_of(job.environ))
    command = [*starter, *container_options(job.environ), *wrapper, *program]
    (folder / SIGNALS).write_text("\n")  # now, so that it exists even if the disk is full later
    received = [] if received is None else received

    def pass_on(number: int) -> None:
        received.append(number)
        print(f"{signal.Signals(number).name}: passed on to the ranks", file=sys.stderr, flush=True)
        with open(folder / SIGNALS, "a", encoding="utf-8") as file:
            file.write(f"{int(number)}\n")

    with handling(FORWARDED_SIGNALS, pass_on):
        with open(folder / _LAUNCHER_LOG, "wb") as launcher_log:
            launcher = start_child(command, launcher_log, environment, signal.SIGTERM)
        _show(folder / "rank_0.log", launcher, received)
    return _exit_code(job, launcher.returncode, received)


def _show(log: Path, launcher: subprocess.Popen, received: Sequence[int]) -> None:
    """Copies a growing file to stdout until the launcher has ended, by itself or by a second SIGINT."""
    shown = 0
    while True:
        ended = launcher.poll() is not None
        if received.count(signal.SIGINT) > 1:  # the user does not want to wait
            launcher.terminate()
        with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
            file.seek(shown)
            text = file.read()
            shown += len(text)
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
        if ended:
            return
        time.sleep(POLL_SECS)


# A process that is killed by SIGKILL cannot report it. (One that stood still was killed by us, and its log says so.)
_WHY_KILLED = (
    "rank {rank} was killed (SIGKILL), by somebody or, mostly, by the kernel because the machine's memory ran out "
    "('dmesg' says so): try a smaller micro-batch with more accumulation, fewer ranks, or a smaller model"
)


def _exit_code(job: Job, launcher_code: int, received: Sequence[int]) -> int:
    """The exit code of the rank that failed first; prints what only other ranks or the launcher reported."""
    ends = {}
    for file in job.log_folder.glob("rank_*.exit"):
        written, _, ended_at = file.read_text().partition(" ")
        ends[int(file.stem[len("rank_") :])] = (float(ended_at), int(written))
        file.unlink()
    stop_requested = any(number in STOP_SIGNALS for number in received)
    # If a rank has left no code and no stop was requested, then the launcher has stopped the others.
    final = (0,) if stop_requested or len(ends) == job.num_ranks else (0, STOPPED_EXIT_CODE)
    failures = sorted((ended_at, rank, code) for rank, (ended_at, code) in ends.items() if code not in final)
    if failures:
        _, rank, code = failures[0]
        log = job.log_folder / f"rank_{rank}.log"
        if rank != 0 and code != STOPPED_EXIT_CODE:
            print(f"rank {rank} ended first, with code {code}{describe_signal(code)}:", file=sys.stderr)
            _print_end(log)
        if code == 128 + signal.SIGKILL and not any(STOOD_STILL in line for line in _last_lines(log)):
            print(_WHY_KILLED.format(rank=rank), file=sys.stderr, flush=True)
        return code
    if launcher_code or len(ends) < job.num_ranks:
        if stop_requested:  # before any rank was running that could react to it
            return STOPPED_EXIT_CODE
        if job.launcher != "none":
            print(f"{job.launcher} ended with code {launcher_code}:", file=sys.stderr)
        _print_end(job.log_folder / _LAUNCHER_LOG)
        if job.environ.get("HOSTS"):
            print("docs/troubleshooting.md says what hosts need to have in common", file=sys.stderr)
        return shell_code(launcher_code) or 1
    return 0


def _print_end(log: Path) -> None:
    if lines := _last_lines(log):
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr, flush=True)


def _last_lines(log: Path, num_lines: int = 20) -> list[str]:
    """The end of a log, or only its lines about ranks that could not have a log; empty if it cannot be read."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    if log.name == _LAUNCHER_LOG:  # without the frames of Horovod's traceback, also for a host's mistyped name
        lines = [line for line in lines if line and line[0] != " "]
    return [line for line in lines if ERROR_OF_RANK in line] or lines[-num_lines:]
