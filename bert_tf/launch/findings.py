"""What keeps ranks from being started: a list of findings. The doctor prints all, a launcher raises the first problem.

Only the standard library is imported here, because the doctor must work where packages are missing.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_folder
from bert_tf.base.machine import count_cores
from bert_tf.launch.container import uses_container
from bert_tf.launch.hosts import hosts_of
from bert_tf.settings.declaration import find_setting
from bert_tf.settings.launching import LaunchVariables

# States of a finding: a training works; it works, but not as well as it could; it does not work.
OK, WARNING, PROBLEM = "OK", "warning", "problem"
SETUP = "'bash scripts/setup.sh'"
_LAUNCHER = find_setting("launcher", LaunchVariables)
_FOR_REPORTS = ("jinja2", "numpy", "plotly")
# A larger number of ranks per machine is a typing error, unless the machine has as many cores.
_MAX_RANKS_PER_MACHINE = 64


class Finding(NamedTuple):
    """What a check has found."""

    state: str
    message: str  # if the state is not OK, also what to do
    may_come: bool = False  # it may be otherwise on the machine, or with the number of ranks, of the real run

    def raise_problem(self) -> None:
        """Raises `UserError` if this is a problem: a `MissingError`, which a dry run only notes, if it `may_come`."""
        if self.state == PROBLEM:
            raise (MissingError if self.may_come else UserError)(self.message)


Findings = Iterator[Finding]


def judge(is_fine: bool, fine: str, fault: str, state: str = PROBLEM) -> Finding:
    """OK with one text, or `state` with the other, which ends with what to do."""
    return Finding(OK, fine) if is_fine else Finding(state, fault)


def check_start(num_ranks: int, num_gpus: int, environ: Mapping[str, str], results: Path) -> Findings:
    """All that can be said about `num_ranks` in the folder `results` without starting a program.

    Args:
      num_gpus: those of this machine that the run may use; 0: it computes on the CPU.
    """
    yield from check_num_ranks(num_ranks, environ)
    yield from check_gpus(f"num_gpus is {num_ranks}", num_ranks, num_gpus * count_nodes(environ), "here")
    yield from check_writable(results, "RESULTS_DIR")
    yield from check_tensorflow_installed(environ)
    yield from check_launcher(num_ranks, environ)
    yield from check_hosts(environ)
    yield from check_horovod_installed(num_ranks, environ)


def count_nodes(environ: Mapping[str, str]) -> int:
    """The number of machines in HOSTS, or in the Slurm allocation; 1 outside of one.

    Raises:
      UserError: one of the variables has an invalid value.
    """
    text = environ.get("SLURM_JOB_NUM_NODES") or "1"
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"SLURM_JOB_NUM_NODES={text}: must be a whole number of at least 1; Slurm sets it, unset yours")
    return len(hosts_of(environ)) or int(text)


def check_num_ranks(num_ranks: int, environ: Mapping[str, str]) -> Findings:
    num_nodes = count_nodes(environ)
    most = num_nodes * max(_MAX_RANKS_PER_MACHINE, count_cores())
    if num_ranks > most:
        rule = f"at most {most} ranks can be started on {num_nodes} machine(s)"
        yield Finding(PROBLEM, f"num_gpus is {num_ranks}, but {rule}")


def check_gpus(asked: str, num_ranks: int, num_gpus: int, where: str) -> Findings:
    """Checks whether there is a GPU for each rank; none at all are right, because then all compute on the CPU.

    Args:
      asked: begins the message: who asked for so many ranks.
    """
    if 0 < num_gpus < num_ranks:
        remedy = "ask for at most that many. DEVICE=cpu computes on the CPU"
        yield Finding(
            PROBLEM, f"{asked}, but {num_gpus} GPU(s) can be used {where} (nvidia-smi, CUDA_VISIBLE_DEVICES); {remedy}"
        )


def check_writable(folder: Path, variable: str) -> Findings:
    try:
        check_folder(folder, f"{variable}={folder}")
    except UserError as error:
        yield Finding(PROBLEM, str(error))


def is_installed(name: str) -> bool:
    """Whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def check_installed(modules: Sequence[str], remedy: str) -> Findings:
    """Checks that this Python has the modules."""
    if missing := [name for name in modules if not is_installed(name)]:
        yield Finding(PROBLEM, f"{sys.executable} has no {', '.join(missing)}: {remedy}", may_come=True)


def check_tensorflow_installed(environ: Mapping[str, str]) -> Findings:
    """Checks that there is TensorFlow; in a container is another Python, and this one only writes the reports."""
    if uses_container(environ):
        remedy = f"'{sys.executable} -m pip install {' '.join(_FOR_REPORTS)}', with which the reports are written"
        yield from check_installed(_FOR_REPORTS, remedy)
    else:
        yield from check_installed(["tensorflow"], f"{SETUP} sets everything up")


def check_hosts(environ: Mapping[str, str]) -> Findings:
    """Checks that the hosts in HOSTS, if it is set, have addresses, and that there is ssh."""
    hosts = hosts_of(environ)
    if hosts:
        yield from check_ssh()
    for name in hosts:
        try:
            find_address(name)
        except UserError as error:
            yield Finding(PROBLEM, f"HOSTS={environ['HOSTS']}: {error}")


def check_ssh() -> Findings:
    if not shutil.which("ssh"):
        remedy = "apt-get install openssh-client, or start by srun, which needs none"
        yield Finding(PROBLEM, f"HOSTS needs ssh, which is not on this machine's PATH: {remedy}")


def find_address(name: str, family: int = socket.AF_UNSPEC) -> str:
    """A host's address. Raises `UserError` if its name has none."""
    try:
        return str(socket.getaddrinfo(name, None, family)[0][4][0])
    except (OSError, UnicodeError) as error:  # the latter if a part between dots is empty or too long
        reason = getattr(error, "strerror", error)
        raise UserError(f"{name} has no address ({reason}); correct it, or add it to DNS or to /etc/hosts") from None


def check_launcher(num_ranks: int, environ: Mapping[str, str]) -> Findings:
    """Checks that what would start `num_ranks` is there."""
    launcher, hosts = environ.get("LAUNCHER", ""), hosts_of(environ)
    if hosts and (uses_container(environ) or launcher in ("srun", "none")):
        reason = "with srun (CONTAINER_IMAGE) sbatch names the hosts"
        yield Finding(PROBLEM, f"HOSTS is for mpirun and horovodrun; {reason}: unset it")
    elif hosts and sum(hosts.values()) != num_ranks:
        has = f"HOSTS={environ['HOSTS']} has {sum(hosts.values())} rank(s)"
        yield Finding(PROBLEM, f"num_gpus is {num_ranks}, but {has}")
    elif uses_container(environ):
        yield from _check_container(environ)
    elif launcher and not _LAUNCHER.allows(launcher):
        yield Finding(PROBLEM, str(_LAUNCHER.refusal("LAUNCHER", launcher)))
    elif launcher in ("srun", "mpirun") and not shutil.which(launcher):
        # A dry run may be made elsewhere than on the cluster, with which srun comes.
        message = f"LAUNCHER={launcher}: there is no {launcher} on this machine's PATH"
        yield Finding(PROBLEM, message, may_come=launcher == "srun")
    elif launcher == "none" and num_ranks > 1:
        remedy = "unset LAUNCHER or set num_gpus to 1"
        yield Finding(PROBLEM, f"LAUNCHER=none starts one process, but num_gpus is {num_ranks}; {remedy}")


def _check_container(environ: Mapping[str, str]) -> Findings:
    if environ.get("LAUNCHER", "srun") != "srun":
        message = f"LAUNCHER={environ['LAUNCHER']}: only srun starts ranks in CONTAINER_IMAGE; unset one of them"
        yield Finding(PROBLEM, message)
    elif not shutil.which("srun"):
        yield Finding(PROBLEM, "CONTAINER_IMAGE is set, but there is no srun on this machine's PATH; unset it")
    elif b"--container-image" not in subprocess.run(["srun", "--help"], capture_output=True).stdout:
        fault = "this Slurm has no Pyxis (srun --help lists no --container-image)"
        yield Finding(PROBLEM, f"CONTAINER_IMAGE is set, but {fault}; unset it to run without a container")


def check_horovod_installed(num_ranks: int, environ: Mapping[str, str]) -> Findings:
    """Checks that this Python has the Horovod that `num_ranks` need."""
    launcher = environ.get("LAUNCHER", "")
    if uses_container(environ) or choose_launcher(num_ranks, environ) == "none":
        return
    if horovod_library() is None:
        remedy = f"{SETUP} builds it where there is a C++ compiler (apt-get install g++ make); num_gpus=1 works without"
        message = f"num_gpus={num_ranks} needs Horovod, which is not installed: {remedy}"
        yield Finding(PROBLEM, message, may_come=not launcher)
    elif launcher == "mpirun" and not horovod_has_mpi():
        remedy = (
            "LAUNCHER=horovodrun works; or install an MPI with its compiler (apt-get install libopenmpi-dev "
            f"openmpi-bin), delete .venv, and type {SETUP}"
        )
        yield Finding(PROBLEM, f"LAUNCHER=mpirun needs a Horovod with MPI, and this one was built without: {remedy}")


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
    """LAUNCHER if set, else what is installed; `check_start` says what keeps it from working."""
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
