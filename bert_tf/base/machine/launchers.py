"""What starts the ranks, on which machines, and what keeps them from being started."""

from __future__ import annotations

import dataclasses
import functools
import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.machine import software
from bert_tf.base.machine.hardware import count_cores
from bert_tf.base.machine.software import SETUP

# horovodrun puts the name into a shell's command; one that begins with a dash would be an option of ssh.
_HOST = re.compile(r"([\w.@][\w.@-]*):?([1-9]\d{0,5})?", re.ASCII)
# A larger number of ranks per machine is a typing error, unless the machine has as many cores.
_MAX_RANKS_PER_MACHINE = 64


def slurm_count(environ: Mapping[str, str], name: str) -> int:
    """One of Slurm's numbers; 0 if it is not set."""
    text = environ.get(name) or "0"
    if not text.isdecimal():  # typed for a dry run, or set in a file that the shell reads
        raise UserError(f"{name}={text}: must be a whole number, as Slurm sets it: correct or unset it")
    return int(text)


def horovodrun(library: str, num_ranks: int) -> list[str]:
    """Its command up to the program; without its cache, which needs a home folder, and may be out of date."""
    options = f"--{library} --disable-cache -np {num_ranks}"
    return [sys.executable, "-m", "horovod.runner.launch", *options.split()]


@dataclasses.dataclass(frozen=True)
class Start:
    """The start of ranks on this machine, or on those that the environment names.

    A check raises `UserError`, or `MissingError` for what may differ where or when the real run starts. The launchers
    make all checks (`START_CHECKS`), and the doctor reports their errors. No check starts a program.

    Attributes:
      num_gpus: the GPUs of this machine that the ranks may use; 0: they compute on the CPU.
    """

    num_ranks: int
    num_gpus: int
    environ: Mapping[str, str]

    @functools.cached_property
    def hosts(self) -> dict[str, int]:
        """``a:4,b`` in HOSTS -> the number of ranks by host, 1 if it is omitted; empty if it is not set."""
        hosts: dict[str, int] = {}
        text = self.environ.get("HOSTS")
        for entry in text.split(",") if text else ():
            host = _HOST.fullmatch(entry.strip())
            if not host or host[1] in hosts:
                raise UserError(
                    f"HOSTS={text}: {entry!r} is not a host's name and number of ranks, once each, as in a:4,b:4"
                )
            hosts[host[1]] = int(host[2] or 1)
        return hosts

    @property
    def uses_container(self) -> bool:
        """Whether Slurm starts each rank in an image, with NVIDIA's Pyxis; the launcher itself stays outside."""
        return bool(self.environ.get("CONTAINER_IMAGE"))

    @property
    def is_beside_job(self) -> bool:
        """Whether this machine is none of the Slurm job's, such as the login node on which salloc leaves its shell."""
        return "SLURM_JOB_ID" in self.environ and "SLURMD_NODENAME" not in self.environ

    @property
    def uses_horovod(self) -> bool:
        return self.launcher != "none" and not (self.launcher == "srun" and self.num_ranks == 1)

    @property
    def num_nodes(self) -> int:
        """The number of machines in HOSTS, or in the Slurm allocation; 1 outside of one."""
        return len(self.hosts) or slurm_count(self.environ, "SLURM_JOB_NUM_NODES") or 1

    @property
    def ranks_per_node(self) -> int:
        """The largest number of ranks on one machine; without HOSTS only srun uses several machines."""
        if self.hosts:
            return max(self.hosts.values())
        return -(-self.num_ranks // self.num_nodes) if self.launcher == "srun" else self.num_ranks

    @property
    def num_threads(self) -> int:
        """The threads of a rank on the CPU: its share of a machine's cores."""
        return max(1, count_cores() // self.ranks_per_node)

    @functools.cached_property
    def launcher(self) -> str:
        """LAUNCHER if set, else what is installed; `check_launcher` says what keeps it from working."""
        if self.uses_container:
            return "srun"
        if self.environ.get("LAUNCHER"):
            return self.environ["LAUNCHER"]
        is_in_job = "SLURM_JOB_ID" in self.environ and shutil.which("srun") is not None and not self.hosts
        if self.num_ranks == 1 and not self.hosts and not (is_in_job and self.is_beside_job):
            return "none"
        if is_in_job:
            return "srun"
        return "mpirun" if software.horovod_has_mpi() and shutil.which("mpirun") else "horovodrun"

    def check_number(self) -> None:
        """Checks that the number of ranks is plausible, and that each rank has a GPU, if GPUs are used."""
        most = self.num_nodes * max(_MAX_RANKS_PER_MACHINE, count_cores())
        if self.num_ranks > most:
            raise UserError(f"num_gpus is {self.num_ranks}, but at most {most} ranks can be started here")
        num_gpus = self.num_gpus * self.num_nodes
        if 0 < num_gpus < self.num_ranks:
            raise UserError(
                f"num_gpus is {self.num_ranks}, but {num_gpus} GPU(s) can be used (CUDA_VISIBLE_DEVICES); ask for at "
                "most that many, or for the CPU by DEVICE=cpu"
            )

    def check_tensorflow(self) -> None:
        """Checks TensorFlow; a container's Python checks its own, and then this one only writes the reports."""
        if self.uses_container:
            names = "jinja2", "numpy", "plotly"
            check_installed(names, f"the reports need '{sys.executable} -m pip install {' '.join(names)}'")
        else:
            check_installed(["tensorflow"], f"{SETUP} sets everything up")
            software.check_tensorflow(self.num_gpus)

    def check_launcher(self) -> None:
        """Checks that what would start the ranks is installed, and that LAUNCHER, HOSTS and CONTAINER_IMAGE agree."""
        setting, num_host_ranks = self.environ.get("LAUNCHER", ""), sum(self.hosts.values())
        launcher = "srun" if self.uses_container else setting
        if setting not in ("", launcher):
            raise UserError(f"LAUNCHER={setting}: only srun starts ranks in CONTAINER_IMAGE; unset one of them")
        if self.hosts and launcher in ("srun", "none"):
            raise UserError("HOSTS is for mpirun and horovodrun; with srun sbatch names the hosts: unset it")
        if self.hosts and num_host_ranks != self.num_ranks:
            raise UserError(
                f"num_gpus is {self.num_ranks}, but HOSTS={self.environ['HOSTS']} has {num_host_ranks} rank(s)"
            )
        if self.launcher == "srun" and (started := slurm_count(self.environ, "SLURM_STEP_NUM_TASKS")) > 1:
            raise UserError(
                f"srun has started {started} of this launcher, which starts the ranks by srun itself: type it without "
                "srun, in a job's script or a shell that salloc gives"
            )
        if launcher == "none" and self.num_ranks > 1:
            raise UserError(
                f"LAUNCHER=none starts one process, but num_gpus is {self.num_ranks}: unset it, or ask for 1"
            )
        # No srun is a `MissingError`, because a dry run may be made outside the cluster.
        for needed, error in (("srun", MissingError), ("mpirun", UserError), ("ssh", UserError)):
            if needed in (launcher, "ssh" if self.hosts else "") and not shutil.which(needed):
                raise error(
                    f"there is no {needed} on this machine's PATH, which LAUNCHER, HOSTS or CONTAINER_IMAGE needs"
                )

    def check_horovod(self) -> None:
        """Checks that this Python has the Horovod that the ranks need."""
        if self.uses_container or not self.uses_horovod:
            return
        if software.horovod_library() is None:
            raise MissingError(
                f"{self.launcher} needs Horovod, which is not installed: {SETUP} builds it where a C++ compiler is "
                "(g++, make); num_gpus=1 works without, where neither LAUNCHER nor HOSTS is set"
            )
        software.check_horovod(software.tensorflow_version())
        if self.environ.get("LAUNCHER") == "mpirun" and not software.horovod_has_mpi():
            raise UserError(
                f"LAUNCHER=mpirun needs a Horovod with MPI: install an MPI, delete .venv, type {SETUP}; or set "
                "LAUNCHER=horovodrun"
            )


START_CHECKS = (Start.check_number, Start.check_tensorflow, Start.check_launcher, Start.check_horovod)


def check_installed(modules: Sequence[str], remedy: str) -> None:
    """Checks that this Python has the modules."""
    if missing := [name for name in modules if not software.is_installed(name)]:
        raise MissingError(f"{sys.executable} has no {', '.join(missing)}: {remedy}")
