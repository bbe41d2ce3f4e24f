"""What starts the ranks, on which machines, and what keeps them from being started.

A check raises `UserError`, or `MissingError` for what may be otherwise where or when the real run starts. The launchers
make all of them (`START_CHECKS`), and the doctor tells what they say.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from bert_tf.base.command_line import parse_count
from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.machine import software
from bert_tf.base.machine.hardware import count_cores
from bert_tf.base.machine.software import SETUP

_FOR_REPORTS = ("jinja2", "numpy", "plotly")
# A name that begins with a dash would be an option of ssh.
_HOST = re.compile(r"([^\s:-][^\s:]*):?([1-9]\d{0,5})?", re.ASCII)
# A larger number of ranks per machine is a typing error, unless the machine has as many cores.
_MAX_RANKS_PER_MACHINE = 64


# --- Where ranks run, and what starts them -------------------------------------------------------


def hosts_of(environ: Mapping[str, str]) -> dict[str, int]:
    """``a:4,b`` -> the number of ranks by host, 1 if it is omitted; empty if HOSTS is not set. Raises `UserError`."""
    hosts: dict[str, int] = {}
    text = environ.get("HOSTS")
    for entry in text.split(",") if text else ():
        host = _HOST.fullmatch(entry.strip())
        if not host or host[1] in hosts:
            raise UserError(
                f"HOSTS={text}: {entry!r} is not a host's name and number of ranks, once each, as in a:4,b:4"
            )
        hosts[host[1]] = int(host[2] or 1)
    return hosts


def uses_container(environ: Mapping[str, str]) -> bool:
    """Whether Slurm starts each rank in an image, with NVIDIA's Pyxis; the launcher itself stays outside."""
    return bool(environ.get("CONTAINER_IMAGE"))


def count_nodes(environ: Mapping[str, str]) -> int:
    """The number of machines in HOSTS, or in the Slurm allocation; 1 outside of one."""
    return len(hosts_of(environ)) or slurm_count(environ, "SLURM_JOB_NUM_NODES") or 1


def slurm_count(environ: Mapping[str, str], name: str) -> int:
    """One of Slurm's numbers; 0 if it is not set. Raises `UserError` if it is no number."""
    try:
        return parse_count(environ.get(name) or "0")
    except ValueError as error:
        raise UserError(f"{name}={environ[name]}: {error}; Slurm sets it, unset yours") from None


def choose_launcher(num_ranks: int, environ: Mapping[str, str]) -> str:
    """LAUNCHER if set, else what is installed; `check_launcher` says what keeps it from working."""
    if uses_container(environ):
        return "srun"
    if environ.get("LAUNCHER"):
        return environ["LAUNCHER"]
    hosts = hosts_of(environ)
    if num_ranks == 1 and not hosts:
        return "none"
    if "SLURM_JOB_ID" in environ and shutil.which("srun") and not hosts:
        return "srun"
    return "mpirun" if software.horovod_has_mpi() and shutil.which("mpirun") else "horovodrun"


# --- What keeps ranks from being started ---------------------------------------------------------

# All checks have the same arguments: how many ranks shall be started; how many GPUs of this machine they may use, none
# if they compute on the CPU; and the environment.


def check_number(num_ranks: int, num_gpus: int, environ: Mapping[str, str]) -> None:
    """Checks whether so many ranks can be meant, and whether each has a GPU, if any is used."""
    num_nodes = count_nodes(environ)
    most = num_nodes * max(_MAX_RANKS_PER_MACHINE, count_cores())
    if num_ranks > most:
        raise UserError(f"num_gpus is {num_ranks}, but at most {most} ranks can be started on {num_nodes} machine(s)")
    if 0 < num_gpus * num_nodes < num_ranks:
        raise UserError(
            f"num_gpus is {num_ranks}, but {num_gpus * num_nodes} GPU(s) can be used (CUDA_VISIBLE_DEVICES); ask for "
            "at most that many, or for the CPU by DEVICE=cpu"
        )


def check_tensorflow(_: int, num_gpus: int, environ: Mapping[str, str]) -> None:
    """Checks TensorFlow; a container's Python checks its own, and then this one only writes the reports."""
    if uses_container(environ):
        check_installed(_FOR_REPORTS, f"the reports need '{sys.executable} -m pip install {' '.join(_FOR_REPORTS)}'")
    else:
        check_installed(["tensorflow"], f"{SETUP} sets everything up")
        software.check_tensorflow(num_gpus)


def check_launcher(num_ranks: int, _: int, environ: Mapping[str, str]) -> None:
    """Checks that what would start the ranks is there, and goes with LAUNCHER, HOSTS and CONTAINER_IMAGE."""
    hosts, typed = hosts_of(environ), environ.get("LAUNCHER", "")
    launcher = "srun" if uses_container(environ) else typed
    if typed not in ("", launcher):
        raise UserError(f"LAUNCHER={typed}: only srun starts ranks in CONTAINER_IMAGE; unset one of them")
    if hosts and launcher in ("srun", "none"):
        raise UserError("HOSTS is for mpirun and horovodrun; with srun sbatch names the hosts: unset it")
    if hosts and sum(hosts.values()) != num_ranks:
        raise UserError(f"num_gpus is {num_ranks}, but HOSTS={environ['HOSTS']} has {sum(hosts.values())} rank(s)")
    if launcher == "none" and num_ranks > 1:
        raise UserError(f"LAUNCHER=none starts one process, but num_gpus is {num_ranks}: unset it, or ask for 1")
    # A dry run may be made elsewhere than on the cluster, with which srun comes.
    for needed, error in (("srun", MissingError), ("mpirun", UserError), ("ssh", UserError)):
        if needed in (launcher, "ssh" if hosts else "") and not shutil.which(needed):
            raise error(f"there is no {needed} on this machine's PATH, which LAUNCHER, HOSTS or CONTAINER_IMAGE needs")


def check_horovod(num_ranks: int, _: int, environ: Mapping[str, str]) -> None:
    """Checks that this Python has the Horovod that the ranks need."""
    launcher = choose_launcher(num_ranks, environ)
    if uses_container(environ) or launcher == "none":
        return
    if software.horovod_library() is None:
        raise MissingError(
            f"{launcher} needs Horovod, which is not installed: {SETUP} builds it where a C++ compiler is (g++, make); "
            "num_gpus=1 works without, where neither LAUNCHER nor HOSTS is set"
        )
    software.check_horovod(software.tensorflow_version())
    if environ.get("LAUNCHER") == "mpirun" and not software.horovod_has_mpi():
        raise UserError(
            f"LAUNCHER=mpirun needs a Horovod with MPI: install an MPI, delete .venv, type {SETUP}; or horovodrun"
        )


# All of them; none starts a program.
START_CHECKS = (check_number, check_tensorflow, check_launcher, check_horovod)


def check_installed(modules: Sequence[str], remedy: str) -> None:
    """Checks that this Python has the modules."""
    if missing := [name for name in modules if not software.is_installed(name)]:
        raise MissingError(f"{sys.executable} has no {', '.join(missing)}: {remedy}")
