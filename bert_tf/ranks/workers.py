"""What ranks exchange: the interface, and one process as its simplest case.

`Workers` is the interface and its implementation for one process; `horovod_workers` has the one for several.
All ranks must call everything here in the same order.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError

Result = TypeVar("Result")

# Large enough that the cost of starting a reduction does not matter, and small enough that a bucket's flat copy
# is far smaller than a second copy of all gradients.
BUCKET_BYTES = 128 * 1024 * 1024


class Workers:
    """One process: every reduction is the identity.

    Attributes:
      hosts: the names of the ranks' machines.
    """

    rank = 0
    size = 1
    local_rank = 0
    hosts: Sequence[str] = (platform.node(),)

    @property
    def is_chief(self) -> bool:
        return self.rank == 0

    def mean(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Element-wise means over the ranks, reduced in flat buckets of fixed order, in the tensors' own types."""
        return list(tensors)

    def broadcast(self, variables: Sequence[tf.Variable]) -> None:
        """Copies rank 0's values to all ranks."""

    def gather(self, vector: np.ndarray) -> np.ndarray:
        """[size, len(vector)]: what each rank passed."""
        return np.asarray(vector)[np.newaxis]

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raises `UserError`, the same on all ranks, if one of the facts is not the same on all of them.

        Args:
          facts: by name, for the message; only hashes of their representations are sent.
        """
        hashes = [int(hashlib.sha256(repr(fact).encode()).hexdigest()[:15], 16) for fact in facts.values()]
        everyone = self.gather(np.array(hashes))
        differing = np.argwhere(everyone != everyone[0])  # rows: rank, fact
        if differing.size:
            rank, fact = differing[0]
            raise UserError(
                f"rank {rank} on {self.hosts[rank]} has other {list(facts)[fact]} than rank 0 on {self.hosts[0]}; all "
                "ranks need the same arguments, and the same files under the names given there"
            )

    @contextlib.contextmanager
    def expecting_all(self) -> Iterator[None]:
        """For calls of a compiled function that contains a `mean`: raises `LostRankError` if a rank is lost there."""
        yield

    def run_keeping_alive(self, work: Callable[[], Result]) -> Result:
        """Does this rank's `work` and returns its result once the work of all ranks is done.

        For work whose duration differs among the ranks, such as a checkpoint that only the chief
        saves. Waiting in a collective operation for longer than the stall limit would end the run,
        because a slow rank looks like one that hangs. Here ranks wait as long as needed, and a process
        that hangs is still noticed.

        Raises:
          UserError: the work of another rank failed. Errors of `work` itself are raised unchanged.
        """
        return work()


def in_buckets(tensors: Sequence[tf.Tensor], reduce: Callable[[int, tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
    """Applies `reduce` (bucket number, flat values -> as many values) to the tensors, bucket by bucket.

    A bucket is copied only after the previous one has been reduced and split again, so that there is only
    one copy at a time.
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
