"""The command line and the variables by which N ranks are started: by srun, mpirun, horovodrun, or as one process.

Under Slurm, with NVIDIA's Pyxis plugin, CONTAINER_IMAGE names an image for every rank. The launcher itself stays
outside, so that it can call srun, and every path is the same inside and outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bert_tf.base.files import CHECKOUT
from bert_tf.base.machine.hardware import count_cores
from bert_tf.base.machine.launchers import count_nodes, hosts_of, uses_container
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.programs import LaunchVariables

# Variables that name folders outside the checkout; CONTAINER_MOUNTS names others.
_FOLDERS = [each.variable for each in settings_of(LaunchVariables) if each.variable.endswith("_DIR")]


def rank_python(environ: Mapping[str, str]) -> str:
    return "python3" if uses_container(environ) else sys.executable


def container_options(environ: Mapping[str, str]) -> list[str]:
    """srun's options; empty if CONTAINER_IMAGE is not set."""
    if not uses_container(environ):
        return []
    folders = [str(CHECKOUT), *(os.path.abspath(environ[name]) for name in _FOLDERS if environ.get(name))]
    mounts = [f"{folder}:{folder}" for folder in dict.fromkeys(folders)]
    if environ.get("CONTAINER_MOUNTS"):
        mounts.append(environ["CONTAINER_MOUNTS"])
    return [
        f"--container-image={environ['CONTAINER_IMAGE']}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={CHECKOUT}",
    ]


def ranks_per_node(num_ranks: int, launcher: str, environ: Mapping[str, str]) -> int:
    """The largest number of ranks on one machine; without HOSTS only srun uses several machines."""
    if hosts := hosts_of(environ):
        return max(hosts.values())
    return -(-num_ranks // count_nodes(environ)) if launcher == "srun" else num_ranks


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
    launcher: str, num_ranks: int, environ: Mapping[str, str], variables: Sequence[str] = ()
) -> list[str]:
    """The launcher's part of the command line; it passes `variables` on to other machines."""
    if launcher == "none":
        return []
    hosts = hosts_of(environ)
    on_hosts = ["-H", ",".join(f"{name}:{number}" for name, number in hosts.items())] if hosts else []
    if launcher == "horovodrun":
        # What it has cached about the hosts within the last hour may have changed.
        cache = ["--disable-cache"] if hosts else []
        return [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(num_ranks), *cache, *on_hosts]
    if launcher == "srun":
        # Without the numbers of tasks srun may put all on the first machine that has enough cores. No binding to cores:
        # a rank has as many threads as its share of the machine's cores.
        tasks = f"--ntasks={num_ranks} --ntasks-per-node={ranks_per_node(num_ranks, launcher, environ)}"
        options = f"{tasks} --distribution=block --kill-on-bad-exit=1 --mpi=none --cpu-bind=none"
        return ["srun", *options.split(), *container_options(environ)]
    command = ["mpirun", "-np", str(num_ranks), *on_hosts]
    if "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        command += ["--oversubscribe", "--bind-to", "none", "--map-by", "slot"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [part for name in variables for part in ("-x", name)]
    return command
