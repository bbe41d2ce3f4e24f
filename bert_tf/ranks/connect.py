"""Connects the ranks of this job, and assigns each its GPU."""

from __future__ import annotations

import os
import platform

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_code
from bert_tf.base.machine.hardware import count_gpus
from bert_tf.base.tensorflow import tf
from bert_tf.ranks.horovod_workers import connect_horovod, import_horovod, refuse_processes_alone
from bert_tf.ranks.rendezvous import await_ranks
from bert_tf.ranks.workers import Workers

# The longest host name on Linux.
_HOST_BYTES = 64


def connect(use_horovod: bool) -> Workers:
    """The ranks of this job: Horovod's if `use_horovod`, else this one process.

    Each rank takes the GPU numbered like its local rank, or, if it sees only one (Slurm's --gpus-per-task), that GPU.

    Raises:
      UserError: Horovod is requested but cannot be used, or not requested by one of several processes; this machine has
        GPUs that TensorFlow cannot use, so that it would train on the CPU; it has fewer GPUs than ranks; or another
        host has other code or another TensorFlow.
      LostRankError: a rank has not started.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus and (num_gpus := count_gpus(os.environ)):
        raise UserError(
            f"nvidia-smi lists {num_gpus} GPU(s) that may be used here, TensorFlow has 0: 'bash scripts/doctor.sh' "
            "says why; --device=cpu (DEVICE=cpu) trains on the CPU"
        )
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if not use_horovod:
        refuse_processes_alone("add --use_horovod, or unset that variable if this is the only one")
        return Workers()
    horovod = import_horovod()  # before the ranks wait for each other, as it may take long where a disk is slow
    await_ranks()
    workers = connect_horovod(horovod)
    # Before the first operation: after that TensorFlow does not let a rank choose its GPU.
    if len(gpus) > 1:
        if workers.local_rank >= len(gpus):
            raise UserError(
                f"rank {workers.rank} is number {workers.local_rank} on its machine, which has {len(gpus)} GPU(s); "
                "start at most that many ranks there"
            )
        tf.config.set_visible_devices(gpus[workers.local_rank], "GPU")
    name = platform.node().encode()[:_HOST_BYTES].ljust(_HOST_BYTES)
    workers.hosts = [row.tobytes().decode().rstrip() for row in workers.gather(np.frombuffer(name, np.uint8))]
    # On hosts with an installation each: with another rule of the update each rank would train other weights.
    workers.require_same({"version of TensorFlow": tf.__version__, "code in bert_tf": sha256_of_code(["bert_tf"])})
    return workers
