"""The command line and the variables with which ranks are started: by srun, mpirun, horovodrun, or as one process.

Under Slurm, with NVIDIA's Pyxis plugin, every rank runs in a container of the image CONTAINER_IMAGE. The launcher
itself stays outside, so that it can call srun, and every path is the same inside and outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from bert_tf.base.command_line import expand_home
from bert_tf.base.files import CHECKOUT
from bert_tf.base.machine.launchers import Start, horovodrun
from bert_tf.settings.declaration import settings_of
from bert_tf.settings.programs import LaunchVariables

# Variables that name folders to mount; CONTAINER_MOUNTS adds others.
_FOLDER_VARIABLES = [item.variable for item in settings_of(LaunchVariables) if item.variable.endswith("_DIR")]


def rank_python(start: Start) -> str:
    return "python3" if start.uses_container else sys.executable


def container_options(environ: Mapping[str, str]) -> list[str]:
    """srun's options for ranks in CONTAINER_IMAGE."""
    named = (os.path.abspath(expand_home(environ[name])) for name in _FOLDER_VARIABLES if environ.get(name))
    mounts = [f"{folder}:{folder}" for folder in dict.fromkeys((str(CHECKOUT), *named))]
    if environ.get("CONTAINER_MOUNTS"):
        mounts.append(environ["CONTAINER_MOUNTS"])
    return [
        f"--container-image={environ['CONTAINER_IMAGE']}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={CHECKOUT}",
    ]


def rank_environment(start: Start) -> dict[str, str]:
    """Variables to set for the ranks, with the user's values for those that the user has set."""
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
    if start.num_gpus == 0:
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        variables.update(dict.fromkeys(names, str(start.num_threads)))
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


def launcher_command(start: Start, variables: Sequence[str] = ()) -> list[str]:
    """The launcher's part of the command line; it passes `variables` on to other machines."""
    launcher, number = start.launcher, str(start.num_ranks)
    if launcher == "none":
        return []
    if launcher == "srun":
        # Without the numbers of tasks srun may put all on the first machine that has enough cores. Ranks are not bound
        # to cores: each has as many threads as its share of the machine's cores.
        tasks = f"--ntasks-per-node={start.ranks_per_node} --distribution=block"
        if start.num_ranks % start.num_nodes:  # srun ignores --ntasks-per-node
            tasks = f"--nodes={start.num_nodes} --distribution=plane={start.ranks_per_node}"
        command = f"srun --ntasks={number} {tasks} --kill-on-bad-exit=1 --mpi=none --cpu-bind=none".split()
        return [*command, *(container_options(start.environ) if start.uses_container else [])]
    on_hosts = ["-H", ",".join(f"{name}:{ranks}" for name, ranks in start.hosts.items())] if start.hosts else []
    if launcher == "horovodrun":
        return [*horovodrun("gloo", start.num_ranks), *on_hosts]
    command = ["mpirun", "-np", number, *on_hosts]
    if "Open MPI" in subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout:
        command += ["--oversubscribe", "--bind-to", "none", "--map-by", "slot"]
        if os.geteuid() == 0:
            command.append("--allow-run-as-root")
        command += [part for name in variables for part in ("-x", name)]
    return command
