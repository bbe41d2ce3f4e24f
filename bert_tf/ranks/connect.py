"""Connects the ranks of this job, and assigns each its GPU."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import count_gpus, list_gpus
from bert_tf.base.tensorflow import tf
from bert_tf.ranks.horovod_workers import connect_horovod
from bert_tf.ranks.rendezvous import await_ranks
from bert_tf.ranks.workers import Workers

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
        said = f"nvidia-smi lists {num_gpus} GPU(s) that may be used here, TensorFlow has 0"
        raise UserError(f"{said}: 'bash scripts/doctor.sh' says why; --device=cpu (DEVICE=cpu) trains on the CPU")


def _gpu_number(gpus: Sequence[Any], workers: Workers) -> int:
    """The number of this rank's own GPU among those that it sees."""
    # A rank that sees only one GPU checks whether other ranks see the same one.
    seen = "\n".join([platform.node(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), *list_gpus()])
    mark = int(hashlib.sha256(seen.encode()).hexdigest()[:15], 16) if len(gpus) == 1 else -1
    alike = np.flatnonzero(workers.gather(np.array([mark]))[:, 0] == mark)
    if len(gpus) == 1 and len(alike) > 1:
        ranks = ", ".join(map(str, alike))
        raise UserError(f"ranks {ranks} on {platform.node()} see the same GPU; start one there, or show each its own")
    if len(gpus) > 1 and workers.local_rank >= len(gpus):
        place = f"rank {workers.rank} is number {workers.local_rank} on its machine"
        raise UserError(f"{place}, which has {len(gpus)} GPU(s); start at most {len(gpus)} ranks there")
    return workers.local_rank if len(gpus) > 1 else 0
