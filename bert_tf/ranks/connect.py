"""Connects the ranks of this job, and assigns each its GPU.

Before Horovod starts, ranks wait for each other, so that a rank that never starts can be named. Horovod does not name
it: Gloo gives up after 30 s without saying which rank is missing, and MPI waits forever. So each rank creates a file in
the launcher's log folder, which all ranks share.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import LostRankError, UserError
from bert_tf.base.files import write_text
from bert_tf.base.machine import count_gpus, list_gpus
from bert_tf.ranks.horovod_workers import connect_horovod
from bert_tf.ranks.workers import Workers

# Set by the launchers: "<rank> <number of ranks> <folder>".
VARIABLE = "BERT_TF_RENDEZVOUS"
LIMIT_SECS = 120.0
_POLL_SECS = 0.2
_VERDICT = "missing_ranks.txt"


def arrival_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.here"


def await_ranks(environ: MutableMapping[str, str] = os.environ) -> None:
    """Returns once all ranks of this job have called it.

    Without our launchers there is no such folder; then Horovod is told to give up on ranks that do not answer
    for `LIMIT_SECS`. It lists them in the log of rank 0.

    Raises:
      LostRankError: some ranks did not start in time. All others raise the same error.
    """
    if VARIABLE not in environ:
        environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", f"{LIMIT_SECS:.0f}")
        return
    rank, num_ranks, folder = environ[VARIABLE].split(" ", 2)
    missing = set(range(int(num_ranks)))
    verdict, until = Path(folder) / _VERDICT, time.monotonic() + LIMIT_SECS
    arrival_file(Path(folder), int(rank)).touch()
    while True:
        # A single listing: thousands of ranks looking up every file by name would keep a shared file system busy.
        here = set(os.listdir(folder))
        missing = {number for number in missing if arrival_file(Path(folder), number).name not in here}
        with contextlib.suppress(FileNotFoundError):
            raise LostRankError(verdict.read_text(encoding="utf-8"))
        if not missing:
            return
        if time.monotonic() > until:
            write_text(
                verdict,
                f"rank {', '.join(map(str, sorted(missing)))} of {num_ranks} has not started within {LIMIT_SECS:.0f} s "
                f"after rank {rank}; rank_<number>.log in {folder} may say why. Nothing is lost: the same command "
                "starts again",
            )
        time.sleep(_POLL_SECS)


# The longest host name on Linux.
_HOST_BYTES = 64


def connect(use_horovod: bool) -> Workers:
    """The ranks of this job: one process, or Horovod's if `use_horovod`.

    Each rank takes the GPU with its local rank's number; if it sees only one (Slurm's --gpus-per-task), that one.

    Raises:
      UserError: Horovod is requested but cannot be used; this machine has GPUs that TensorFlow cannot use; or ranks
        would share a GPU.
      LostRankError: a rank has not started.
    """
    gpus = tf.config.list_physical_devices("GPU")
    _check_gpus(gpus)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if not use_horovod:
        return Workers()
    await_ranks()
    workers = connect_horovod()
    workers.hosts = _gather_hosts(workers)
    number = _gpu_number(gpus, workers)
    if gpus:
        tf.config.set_visible_devices(gpus[number], "GPU")
    return workers


def _gather_hosts(workers: Workers) -> list[str]:
    name = platform.node().encode()[:_HOST_BYTES].ljust(_HOST_BYTES)
    return [row.tobytes().decode().rstrip() for row in workers.gather(np.frombuffer(name, np.uint8))]


def _check_gpus(gpus: Sequence[Any]) -> None:
    """Raises `UserError` if this machine has GPUs but TensorFlow finds none: it would train on the CPU."""
    num_gpus = 0 if gpus else count_gpus(os.environ)
    if num_gpus:
        raise UserError(
            f"nvidia-smi lists {num_gpus} GPU(s) that may be used here, TensorFlow has 0: 'bash scripts/doctor.sh' "
            "says why; 'bash scripts/setup.sh' installs the CUDA libraries, and --device=cpu (launchers: DEVICE=cpu) "
            "trains on the CPU"
        )


def _gpu_number(gpus: Sequence[Any], workers: Workers) -> int:
    """The number of this rank's own GPU among those that it sees."""
    # A rank that sees only one GPU checks whether other ranks see the same one.
    seen = "\n".join([platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), *list_gpus()])
    mark = int(hashlib.sha256(seen.encode()).hexdigest()[:15], 16) if len(gpus) == 1 else -1
    alike = np.flatnonzero(workers.gather(np.array([mark]))[:, 0] == mark)
    if len(gpus) == 1 and len(alike) > 1:
        raise UserError(
            f"ranks {', '.join(map(str, alike))} on {platform.node()} see the same GPU; start one rank "
            "there, or let each see its own GPU"
        )
    if len(gpus) > 1 and workers.local_rank >= len(gpus):
        raise UserError(
            f"rank {workers.rank} is number {workers.local_rank} on its machine, "
            f"which has {len(gpus)} GPU(s); start at most {len(gpus)} ranks there"
        )
    return workers.local_rank if len(gpus) > 1 else 0
