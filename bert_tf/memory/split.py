"""How the global batch is split into micro-batches that fit into memory: by the plan, halved where that was wrong.

An update does not depend on the split, so it may change from one update to the next.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np

from bert_tf.base.errors import UserError, first_line
from bert_tf.base.machine.hardware import count_cores
from bert_tf.memory.plan import Workload, find_device, largest_micro_batch
from bert_tf.settings.training import AUTO, BatchSplit

# In the first updates, which include compilation, a micro-batch that does not fit is halved; after them all memory has
# been allocated.
TRIAL_UPDATES = 3


def with_scope(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags with the XLA scope that `choose_scope` chooses for them here, and with `num_at_once`."""
    from bert_tf.model.backends import choose_scope  # imports TensorFlow, which the launchers do without

    # A plan may be for a GPU that is specified by its memory and need not be in this machine.
    for_gpu = flags["plan"] and flags["gpu_memory_gib"] is not None and flags["device"] != "cpu"
    scope = choose_scope(flags["enable_xla"], flags["xla_scope"], flags["recompute"], for_gpu)
    return {**flags, "xla_scope": scope, "num_at_once": micro_batches_at_once(scope, for_gpu)}


def micro_batches_at_once(scope: str, for_gpu: bool = False) -> int:
    """How many micro-batches of an update are computed at the same time: two on a CPU if TensorFlow has two threads.

    On a CPU compiled blocks use a single core for much of their time. `for_gpu` as in `choose_scope`.
    """
    from bert_tf.base.tensorflow import tf  # imported late, because the launchers do without it

    if scope == "step" or for_gpu or tf.config.get_visible_devices("GPU"):
        return 1
    given = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    return min(2, int(given) if given.isdecimal() and int(given) else count_cores())


def choose_split(flags: Mapping[str, Any], describe: Callable[[], Workload], workers: Any) -> BatchSplit:
    """The batch split that --train_batch_size asks for: a number, or "auto" with a global batch to be split.

    Args:
      flags: by name; None for a flag that was not given.
      describe: returns the training that must fit; its micro-batch is ignored.
      workers: the ranks, from `ranks.workers`. The smallest of the micro-batches that they find is used.

    Raises:
      UserError: these flags contradict each other, or the ranks cannot share the global batch.
    """
    size, steps, global_size = (
        flags[name] for name in ("train_batch_size", "num_accumulation_steps", "global_batch_size")
    )
    if size != AUTO:
        if global_size is not None:
            raise UserError(
                f"--global_batch_size={global_size} belongs to --train_batch_size={AUTO}: omit it, or give that"
            )
        return BatchSplit(size, steps or 1, workers.size)
    if global_size is None:
        raise UserError(f"--train_batch_size={AUTO} needs --global_batch_size, the sequences of all ranks in an update")
    if steps is not None:
        raise UserError(f"--train_batch_size={AUTO} finds --num_accumulation_steps by itself; omit that")
    if global_size % workers.size:
        raise UserError(f"--global_batch_size={global_size}: must be a multiple of the {workers.size} rank(s)")
    num_rows = global_size // workers.size
    limit = find_device(flags["gpu_memory_gib"], workers.size).memory
    smallest = int(workers.gather(np.array([largest_micro_batch(describe(), limit, num_rows)])).min())
    split = BatchSplit(smallest, num_rows // smallest, workers.size)
    if workers.is_chief:
        print(
            f"--train_batch_size={AUTO}: by the plan {split.num_accumulation_steps} micro-batch(es) of "
            f"{split.micro_batch_size} on each rank fit",
            flush=True,
        )
    return split


def halve(split: BatchSplit) -> BatchSplit:
    """The same rows in micro-batches of the largest size that divides them and is at most half the present one."""
    sizes = range(split.micro_batch_size // 2, 0, -1)
    return split.with_micro_batch(next(size for size in sizes if split.rows_per_rank % size == 0))


def out_of_memory(micro_batch_size: int, error: Exception) -> UserError:
    """The error to raise if no smaller micro-batch is tried or possible."""
    return UserError(
        f"out of memory with a micro-batch of {micro_batch_size} ({first_line(error)}); --plan says what "
        "fits: a smaller --train_batch_size with more --num_accumulation_steps is the same update, --recompute takes "
        "less memory, and --train_batch_size=auto finds the size by itself"
    )
