"""The ranks of a Horovod job. The only module that imports Horovod."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf.base.errors import LostRankError, UserError, first_line
from bert_tf.base.machine.software import SETUP, check_horovod
from bert_tf.base.signals import leave
from bert_tf.base.tensorflow import tf
from bert_tf.ranks.workers import Workers, reduce_in_buckets

# In `keep_alive` all ranks report at least this often that they are alive.
# Far less than the launchers' HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.
KEEP_ALIVE_SECS = 5.0
# How much earlier a rank that knows the reason exits than the others.
LEAD_SECS = 1.0
_BUSY, _DONE, _FAILED = range(3)
# Variables in which horovodrun, Open MPI, MPICH, srun and torchrun tell a process how many processes there are.
_SIZE_VARIABLES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
# Parts of Horovod's messages if another rank is gone, then of Gloo's if it left during a collective operation.
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
        return reduce_in_buckets(
            tensors,
            lambda number, flat: self._horovod.allreduce(
                flat, op=self._horovod.Sum, prescale_factor=1.0 / self.size, name=f"mean_{number}"
            ),
        )

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        with self.expecting_all_ranks():
            self._horovod.broadcast_variables(variables, root_rank=0)

    def gather(self, vector: np.ndarray) -> np.ndarray:
        # On the host, so that it does not wait for pending work on a device.
        with self.expecting_all_ranks(), tf.device("/CPU:0"):
            return self._horovod.allgather(tf.constant(np.asarray(vector)[np.newaxis]), name="gather").numpy()

    @contextlib.contextmanager
    def expecting_all_ranks(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            if not any(part in str(error.message) for part in _LOST_RANK):
                raise
            raise LostRankError(
                f"rank {self.rank} cannot go on: another rank has ended or does not answer any more; its log says why. "
                "The same command goes on from the last checkpoint"
            ) from None

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        heartbeat = _Heartbeat(self)
        try:
            yield
        except Exception:  # not KeyboardInterrupt or SystemExit: an interrupted program waits for no other rank
            heartbeat.stop(_FAILED)
            raise
        heartbeat.stop(_DONE)
        if heartbeat.error:
            raise heartbeat.error


class _Heartbeat:
    """Tells the other ranks every few seconds how far this one's work is, until the work of all ranks is done.

    All ranks do so in step: a rank that is done says so at once, and then waits for the others' next beat. So a rank
    that works for long is heard of all the time, and Horovod's stall limit applies only to a process that stands still.

    If another rank fails or is lost, this rank cannot go on either. Should its work not end by itself, the process ends
    in the midst of it, as it does for any error that the main thread prints: a collective operation that the others
    never join would keep it for ever.

    Attributes:
      error: why this rank cannot go on, once it is known.
    """

    def __init__(self, workers: HorovodWorkers):
        self._workers = workers
        self._state, self._work_ended = _BUSY, threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self, state: int) -> None:
        """Says that this rank's work is done or has failed, and waits until that of all ranks is done or one failed."""
        self._state = state
        self._work_ended.set()
        self._thread.join()

    def _beat(self) -> None:
        try:
            while True:
                self._work_ended.wait(KEEP_ALIVE_SECS)
                state = self._state
                states = self._workers.gather(np.array([state]))[:, 0]
                if _FAILED in states:
                    self.error = UserError(f"rank {list(states).index(_FAILED)} cannot go on; its log says why")
                    if state != _FAILED:
                        time.sleep(LEAD_SECS)  # so that the rank that knows the reason exits first
                    break
                if np.all(states == _DONE):
                    return
        except Exception as error:  # `stop`'s caller raises it in the working thread
            self.error = error
        if not self._work_ended.wait(LEAD_SECS):
            print(f"error: {self.error}", file=sys.stderr, flush=True)
            leave(getattr(self.error, "exit_code", 1))


def refuse_processes_alone(remedy: str) -> None:
    """Raises `UserError`, whose message ends with `remedy`, if a launcher has started this process beside others."""
    for name in _SIZE_VARIABLES:
        if (number := os.environ.get(name) or "1") != "1":
            raise UserError(f"{name}={number}: so many processes were started, each of them a run of its own: {remedy}")


def import_horovod() -> Any:
    """Horovod's module for TensorFlow. Raises `UserError` if it is missing or does not load."""
    check_horovod(tf.__version__)
    try:
        import horovod.tensorflow as horovod

        return horovod
    except (ImportError, tf.errors.OpError) as error:  # no module; no library, or one that does not load
        raise UserError(
            f"--use_horovod: Horovod with TensorFlow support cannot be imported ({first_line(error)}); {SETUP} builds "
            "it; without the flag one process works"
        ) from None


def connect_horovod(horovod: Any) -> Workers:
    """The ranks that Horovod's launcher has started; all of them must be there, since Gloo waits for 30 s only."""
    horovod.init()
    if horovod.size() == 1:
        refuse_processes_alone(
            "Horovod, built without MPI, does not join them; start `horovodrun --gloo`, or a script in scripts/"
        )
    return HorovodWorkers(horovod)
