"""The ranks of a Horovod job. The only module that imports Horovod."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from typing import Callable

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import LostRankError, UserError
from bert_tf.ranks.workers import Result, Workers, in_buckets

# In `run_keeping_alive` all ranks report at least this often that they are alive.
# Far less than the launchers' HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.
KEEP_ALIVE_SECS = 5.0
_BUSY, _DONE, _FAILED = range(3)
# Variables in which mpirun and srun tell a process how many processes there are.
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


# What Horovod reports if another rank is gone; then what Gloo reports if it left during a collective operation.
_LOST_RANK = (
    "Horovod has been shut down",
    "Timed out waiting",
    "Connection closed by peer",
    "Connection reset by peer",
)


class HorovodWorkers(Workers):
    """The ranks of a Horovod job."""

    def __init__(self, horovod):
        self._horovod = horovod
        self.rank, self.size, self.local_rank = horovod.rank(), horovod.size(), horovod.local_rank()

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Scaled before summing: the unscaled sum would overflow sooner in half precision.
        return in_buckets(
            tensors,
            lambda number, flat: self._horovod.allreduce(
                flat, op=self._horovod.Sum, prescale_factor=1.0 / self.size, name=f"mean_{number}"
            ),
        )

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        with self.expecting_all():
            self._horovod.broadcast_variables(variables, root_rank=0)

    def gather(self, vector: np.ndarray) -> np.ndarray:
        # On the host, so that it does not wait for pending work on a device.
        with self.expecting_all(), tf.device("/CPU:0"):
            gathered = self._horovod.allgather(tf.constant(np.asarray(vector)[np.newaxis]), name="gather")
            return gathered.numpy()

    @contextlib.contextmanager
    def expecting_all(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            if not any(words in str(error.message) for words in _LOST_RANK):
                raise
            raise LostRankError(
                f"rank {self.rank} cannot go on: another rank has ended or does not answer any more; its log says why. "
                "The same command goes on from the last checkpoint"
            ) from None

    def run_keeping_alive(self, work: Callable[[], Result]) -> Result:
        thread = concurrent.futures.ThreadPoolExecutor(1)  # does the work while this thread reports "alive"
        job = thread.submit(work)
        thread.shutdown(wait=False)  # takes effect once the work is done
        while True:
            concurrent.futures.wait([job], KEEP_ALIVE_SECS)
            state = _BUSY if not job.done() else _FAILED if job.exception() else _DONE
            states = self.gather(np.array([state]))[:, 0]
            if state == _FAILED or np.all(states == _DONE):
                return job.result()  # or raises what the work raised
            if _FAILED in states:
                time.sleep(1.0)  # so that the rank that knows the reason exits first
                raise UserError(f"rank {np.flatnonzero(states == _FAILED)[0]} cannot go on; its log says why")


def connect_horovod() -> Workers:
    try:
        import horovod.tensorflow as horovod
    except ImportError:
        raise UserError(
            "--use_horovod was given, but Horovod with TensorFlow support cannot be imported; "
            "`bash scripts/setup.sh` builds it where there is a C++ compiler; "
            "without the flag one process works"
        ) from None
    horovod.init()
    num_started = max(int(os.environ.get(name, 1)) for name in _SIZE_VARIABLES)
    if horovod.size() == 1 < num_started:
        raise UserError(
            f"{num_started} processes were started, but Horovod sees this one alone: it was built without MPI, which "
            "mpirun and srun need to join them. `horovodrun --gloo` starts them, and so do the scripts in scripts/"
        )
    return HorovodWorkers(horovod)
