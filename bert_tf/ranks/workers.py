"""What ranks exchange: the interface, and one process as its simplest case.

`Workers` is the interface and its implementation for one process; `horovod_workers` has the one for several.
All ranks must make the same calls of its methods, in the same order.
"""

from __future__ import annotations

import contextlib
import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, TypeVar, cast

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import tf
from bert_tf.memory.plan import BUCKET_BYTES

Result = TypeVar("Result")


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
        """Raises the same `UserError` on all ranks if one of the facts differs among them.

        Args:
          facts: by name, for the message; only hashes of their representations are sent.
        """
        hashes = [int(hashlib.sha256(repr(fact).encode()).hexdigest()[:15], 16) for fact in facts.values()]
        by_rank = self.gather(np.array(hashes))
        differing = np.argwhere(by_rank != by_rank[0])  # rows: rank, fact
        if differing.size:
            rank, fact = differing[0]
            raise UserError(
                f"rank {rank} on {self.hosts[rank]} has other {list(facts)[fact]} than rank 0 on {self.hosts[0]}; all "
                "ranks need the same arguments, and the same files of these names"
            )

    @contextlib.contextmanager
    def expecting_all_ranks(self) -> Iterator[None]:
        """A context for calls of compiled functions that contain a `mean`: raises `LostRankError` if a rank is lost."""
        yield

    @contextlib.contextmanager
    def keep_alive(self) -> Iterator[None]:
        """A context for work whose duration differs among the ranks, such as a checkpoint that only the chief saves.

        A rank leaves it once all ranks have done their work. Waiting in a collective operation for longer than the
        stall limit would end the run, because a slow rank looks like one that hangs. Here ranks wait as long as needed,
        and a process that stands still is still noticed. The work itself must not call anything of `Workers`.

        Raises:
          UserError: the work of another rank failed. Errors of this rank's work are raised unchanged.
        """
        yield

    def chief_first(self, work: Callable[[], Result]) -> Result:
        """What `work` returns on this rank. The other ranks begin it when the chief, which may write files, is done."""
        result = None
        for is_turn in (self.is_chief, not self.is_chief):
            with self.keep_alive():
                if is_turn:
                    result = work()
        return cast(Result, result)


def reduce_in_buckets(tensors: Sequence[tf.Tensor], reduce: Callable[[int, tf.Tensor], tf.Tensor]) -> list[tf.Tensor]:
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
