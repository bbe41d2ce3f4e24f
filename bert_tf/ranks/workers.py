"""What ranks exchange: the interface, and one process as its simplest case.

`Workers` is the interface and, as it stands, a single process; `horovod_workers` has the other kind.
Everything here is called by all ranks in the same order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Callable, TypeVar

import numpy as np
import tensorflow as tf

Result = TypeVar("Result")

# Large enough that starting a reduction takes no time that matters, and small enough that the flat copy
# of a bucket is far less than a second copy of all gradients.
BUCKET_BYTES = 128 * 1024 * 1024


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

    def run_keeping_alive(self, work: Callable[[], Result]) -> Result:
        """Does this rank's `work` and returns its result once the work of all ranks is done.

        For work whose length differs among the ranks, such as a checkpoint that only the chief
        saves. A rank that waits in a collective for longer than the stall limit ends the run, since
        one that hangs looks the same; in here no rank does, however long the others take, and one
        that hangs (as a whole process) is still noticed.

        Raises:
          UserError: the work of another rank failed. What `work` raises is raised.
        """
        return work()


def in_buckets(tensors: Sequence[tf.Tensor], reduce: Callable[[int, tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """What `reduce` (a bucket's number, its values in one row -> as many values) makes of the tensors.

    A bucket is copied only when the one before it has been reduced and split up again, or the copies of
    all buckets would be there at once.
    """
    reduced: list[tf.Tensor] = []
    previous: list[tf.Tensor] = []
    for number, bucket in enumerate(_buckets(tensors)):
        with tf.control_dependencies(previous):
            flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in bucket], axis=0)
        previous = tf.split(reduce(number, flat), [tensor.shape.num_elements() for tensor in bucket])
        reduced += [tf.reshape(part, tensor.shape) for part, tensor in zip(previous, bucket)]
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
