"""Joins the ranks of this job, and gives each its GPU."""

from __future__ import annotations

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.ranks.horovod_workers import connect_horovod
from bert_tf.ranks.workers import Workers


def connect(use_horovod: bool) -> Workers:
    """The ranks of this job: one process, or Horovod's where `use_horovod`.

    Each rank takes the GPU with its local number where there are GPUs.

    Raises:
      UserError: Horovod is wanted and cannot be used.
    """
    workers = connect_horovod() if use_horovod else Workers()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus and use_horovod:
        if workers.local_rank >= len(gpus):
            raise UserError(
                f"rank {workers.rank} is number {workers.local_rank} on its machine, "
                f"which has {len(gpus)} GPU(s); start at most {len(gpus)} ranks there"
            )
        tf.config.set_visible_devices(gpus[workers.local_rank], "GPU")
    return workers
