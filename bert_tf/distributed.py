"""Work shared among ranks. The only module that imports Horovod; one process needs none.

`Workers` is the interface and, as it stands, a single process. `horovod_workers` makes the other
kind. Everything here is called by all ranks in the same order.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.errors import LostRankError, UserError

# A bucket is large enough that starting a reduction costs nothing, and small enough that the flat
# copy of it is no second copy of all gradients.
BUCKET_BYTES = 128 * 1024 * 1024
# How long one rank may wait for the others in `together` before all of them say that they are alive.
# Far less than the launchers' HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.
KEEP_ALIVE_SECS = 5.0
_BUSY, _DONE, _FAILED = range(3)

Result = TypeVar("Result")


class Workers:
    """One process: every reduction is the identity."""

    rank = 0
    size = 1
    local_rank = 0

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Element-wise means over the ranks, reduced in flat buckets of fixed order, in the tensors' own types."""
        return list(tensors)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Gives all ranks the values of rank 0."""

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """[size, len(vector)]: what each rank passed."""
        return np.asarray(vector)[np.newaxis]

    @contextlib.contextmanager
    def expecting_all(self) -> Iterator[None]:
        """Around a compiled function with a `mean` in it: a rank that is lost there is a `LostRankError`."""
        yield

    def together(self, work: Callable[[], Result]) -> Result:
        """Does this rank's `work` and returns its result once the work of all ranks is done.

        For work whose length differs among the ranks, such as a checkpoint that only the chief
        saves. A rank that waits in a collective for longer than the stall limit ends the run, since
        one that hangs looks the same; in here no rank does, however long the others take, and one
        that hangs (as a whole process) is still noticed.

        Raises:
          UserError: the work of another rank failed. What `work` raises is raised.
        """
        return work()


class _HorovodWorkers(Workers):
    """Ranks of a Horovod job."""

    def __init__(self, horovod):
        self._horovod = horovod
        self.rank, self.size, self.local_rank = horovod.rank(), horovod.size(), horovod.local_rank()

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Scaled first, then summed: a sum first would overflow sooner in half precision.
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
        # On the host, whose numbers these are: behind no work of a device.
        with self.expecting_all(), tf.device("/CPU:0"):
            gathered = self._horovod.allgather(tf.constant(np.asarray(vector)[np.newaxis]), name="gather")
            return gathered.numpy()

    @contextlib.contextmanager
    def expecting_all(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            if "Horovod has been shut down" not in str(error.message):
                raise
            raise LostRankError(
                f"rank {self.rank} waited in vain: another rank has ended or answers no longer; its log says why. "
                "The same command goes on from the last checkpoint"
            ) from None

    def together(self, work: Callable[[], Result]) -> Result:
        job = _Job(work)
        while True:
            job.finished.wait(KEEP_ALIVE_SECS)
            states = self.gather(np.array([job.state]))[:, 0]
            if job.error is not None:
                raise job.error
            if _FAILED in states:
                time.sleep(1.0)  # the rank that knows the reason is to end first
                raise UserError(f"rank {np.flatnonzero(states == _FAILED)[0]} cannot go on; its log says why")
            if np.all(states == _DONE):
                return job.result


class _Job(threading.Thread):
    """Work in a thread of its own, so that the main thread can tell how it stands."""

    def __init__(self, work: Callable[[], Any]):
        super().__init__(daemon=True)
        self._work = work
        self.state, self.finished = _BUSY, threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
            self.state = _DONE
        except BaseException as error:  # raised in the main thread
            self.error, self.state = error, _FAILED
        self.finished.set()


def in_buckets(tensors: Sequence[tf.Tensor], reduce: Callable[[int, tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """What `reduce` (a bucket's number, its values in one row -> as many values) makes of the tensors."""
    reduced: list[tf.Tensor] = []
    for number, bucket in enumerate(_buckets(tensors)):
        flat = reduce(number, tf.concat([tf.reshape(tensor, [-1]) for tensor in bucket], axis=0))
        parts = tf.split(flat, [tensor.shape.num_elements() for tensor in bucket])
        reduced += [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, bucket)]
    return reduced


def _buckets(tensors: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    buckets: list[list[tf.Tensor]] = []
    filled = 0
    for tensor in tensors:
        size = tensor.shape.num_elements() * tensor.dtype.size
        if not buckets or filled + size > BUCKET_BYTES or tensor.dtype != buckets[-1][-1].dtype:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += size
    return buckets


def connect(use_horovod: bool) -> Workers:
    """The ranks of this job: one process, or Horovod's where `use_horovod`.

    Each rank takes the GPU with its local number where there are GPUs.

    Raises:
      UserError: Horovod is wanted and cannot be used.
    """
    workers = _connect_horovod() if use_horovod else Workers()
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


def _connect_horovod() -> Workers:
    horovod = _import_horovod()
    if horovod is None:
        raise UserError(
            "--use_horovod was given, but Horovod with TensorFlow support cannot be imported; "
            "`bash scripts/setup.sh` builds it where there is a C++ compiler; "
            "without the flag one process works"
        )
    horovod.init()
    return _HorovodWorkers(horovod)


def _import_horovod() -> Any | None:
    try:
        import horovod.tensorflow as horovod
    except ImportError:
        return None
    return horovod
