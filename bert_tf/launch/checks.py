"""What keeps ranks from being started; the launchers and the doctor say it in the same words.

A check raises `UserError`, or `MissingError` for what may be otherwise where or when the real run starts. Only the
standard library is imported here, because the doctor must work where packages are missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Callable

from bert_tf.base import installed
from bert_tf.base.command_line import parse_count
from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_folder
from bert_tf.base.installed import SETUP, is_installed
from bert_tf.base.machine import count_cores
from bert_tf.launch.hosts import hosts_of, uses_container

_FOR_REPORTS = ("jinja2", "numpy", "plotly")
# A larger number of ranks per machine is a typing error, unless the machine has as many cores.
_MAX_RANKS_PER_MACHINE = 64


def start_checks(
    num_ranks: int, num_gpus: int, environ: Mapping[str, str], results: Path
) -> Iterator[Callable[[], None]]:
    """All checks of `num_ranks` in the folder `results` that start no program.

    Args:
      num_gpus: those of this machine that the run may use; 0: it computes on the CPU.
    """
    yield partial(check_num_ranks, num_ranks, environ)
    yield partial(check_gpus, num_ranks, num_gpus * count_nodes(environ))
    yield partial(check_folder, results, f"RESULTS_DIR={results}")
    yield partial(check_tensorflow, environ, num_gpus)
    yield partial(check_launcher, num_ranks, environ)
    yield partial(check_horovod_installed, num_ranks, environ)


def count_nodes(environ: Mapping[str, str]) -> int:
    """The number of machines in HOSTS, or in the Slurm allocation; 1 outside of one."""
    return len(hosts_of(environ)) or slurm_count(environ, "SLURM_JOB_NUM_NODES") or 1


def slurm_count(environ: Mapping[str, str], name: str) -> int:
    """One of Slurm's numbers; 0 if it is not set. Raises `UserError` if it is no number."""
    try:
        return parse_count(environ.get(name) or "0")
    except ValueError as error:
        raise UserError(f"{name}={environ[name]}: {error}; Slurm sets it, unset yours") from None


def check_num_ranks(num_ranks: int, environ: Mapping[str, str]) -> None:
    num_nodes = count_nodes(environ)
    most = num_nodes * max(_MAX_RANKS_PER_MACHINE, count_cores())
    if num_ranks > most:
        raise UserError(f"num_gpus is {num_ranks}, but at most {most} ranks can be started on {num_nodes} machine(s)")


def check_gpus(num_ranks: int, num_gpus: int) -> None:
    """Checks whether there is a GPU for each rank; none at all are right, because then all compute on the CPU."""
    if 0 < num_gpus < num_ranks:
        raise UserError(
            f"num_gpus is {num_ranks}, but {num_gpus} GPU(s) can be used here (nvidia-smi, CUDA_VISIBLE_DEVICES); ask "
            "for at most that many. DEVICE=cpu computes on the CPU"
        )


def check_installed(modules: Sequence[str], remedy: str) -> None:
    """Checks that this Python has the modules."""
    if missing := [name for name in modules if not is_installed(name)]:
        raise MissingError(f"{sys.executable} has no {', '.join(missing)}: {remedy}")


def check_tensorflow(environ: Mapping[str, str], num_gpus: int) -> None:
    """Checks TensorFlow; in a container is another Python, which checks its own, and this one only writes the reports.

    Args:
      num_gpus: those of this machine that the run may use.
    """
    if uses_container(environ):
        remedy = f"'{sys.executable} -m pip install {' '.join(_FOR_REPORTS)}', with which the reports are written"
        check_installed(_FOR_REPORTS, remedy)
    else:
        check_installed(["tensorflow"], f"{SETUP} sets everything up")
        installed.check_tensorflow(num_gpus)


def check_launcher(num_ranks: int, environ: Mapping[str, str]) -> None:
    """Checks that what would start `num_ranks` is there, and goes with LAUNCHER, HOSTS and CONTAINER_IMAGE."""
    hosts, typed = hosts_of(environ), environ.get("LAUNCHER", "")
    launcher = "srun" if uses_container(environ) else typed
    if typed not in ("", launcher):
        raise UserError(f"LAUNCHER={typed}: only srun starts ranks in CONTAINER_IMAGE; unset one of them")
    if hosts and launcher in ("srun", "none"):
        raise UserError(
            "HOSTS is for mpirun and horovodrun; with srun (CONTAINER_IMAGE) sbatch names the hosts: unset it"
        )
    if hosts and sum(hosts.values()) != num_ranks:
        raise UserError(f"num_gpus is {num_ranks}, but HOSTS={environ['HOSTS']} has {sum(hosts.values())} rank(s)")
    if launcher == "none" and num_ranks > 1:
        raise UserError(
            f"LAUNCHER=none starts one process, but num_gpus is {num_ranks}; unset LAUNCHER or set num_gpus to 1"
        )
    # A dry run may be made elsewhere than on the cluster, with which srun comes.
    for needed, error in (("srun", MissingError), ("mpirun", UserError), ("ssh", UserError)):
        if needed in (launcher, "ssh" if hosts else "") and not shutil.which(needed):
            raise error(f"there is no {needed} on this machine's PATH, which LAUNCHER, HOSTS or CONTAINER_IMAGE needs")


def check_horovod_installed(num_ranks: int, environ: Mapping[str, str]) -> None:
    """Checks that this Python has the Horovod that `num_ranks` need."""
    if uses_container(environ) or choose_launcher(num_ranks, environ) == "none":
        return
    if horovod_library() is None:
        raise MissingError(
            f"num_gpus={num_ranks} needs Horovod, which is not installed: {SETUP} builds it on Linux with a C++ "
            "compiler (apt-get install g++ make); num_gpus=1 works without"
        )
    installed.check_horovod(installed.tensorflow_version())
    if environ.get("LAUNCHER") == "mpirun" and not horovod_has_mpi():
        raise UserError(
            "LAUNCHER=mpirun needs a Horovod with MPI, and this one was built without: LAUNCHER=horovodrun works; or "
            "install an MPI with its compiler (apt-get install libopenmpi-dev openmpi-bin), delete .venv, and type "
            f"{SETUP}"
        )


def horovod_library() -> Path | None:
    """Horovod's compiled library for TensorFlow, or None if Horovod is not installed."""
    package = importlib.util.find_spec("horovod")
    folders = package.submodule_search_locations if package else None
    return next((library for folder in folders or () for library in Path(folder).glob("tensorflow/mpi_lib*.so")), None)


def horovod_has_mpi() -> bool:
    """Whether Horovod was built with MPI (asking Horovod itself would import TensorFlow)."""
    library = horovod_library()
    return library is not None and b"libmpi" in library.read_bytes()


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
    return "mpirun" if horovod_has_mpi() and shutil.which("mpirun") else "horovodrun"
