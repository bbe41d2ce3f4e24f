"""How the global batch is split into micro-batches that fit into memory: as planned, then halved if memory runs out.

`config` holds a training's settings as the user gave them, `options` the program's others. An update's result does not
depend on the split, so the split may change from one update to the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from bert_tf.base.errors import UserError, first_line
from bert_tf.memory.plan import Workload, find_rank_memory, fits, largest_micro_batch, plan, split_into
from bert_tf.settings.programs import ProgramOptions
from bert_tf.settings.training import AUTO, BatchSplit, Config

Describe = Callable[[Any], Workload]  # the workload of a training with these settings; its batch split does not matter

# In the first updates, which include compilation, a micro-batch that does not fit is halved; after them all memory has
# been allocated.
TRIAL_UPDATES = 3


def with_scope(config: Config, options: ProgramOptions) -> Config:
    """The settings with the XLA scope that `choose_scope` chooses for them on this machine."""
    from bert_tf.model.backends import choose_scope  # imports TensorFlow, which the launchers do without

    scope = choose_scope(options.enable_xla, config.xla_scope, config.recompute, options.plans_for_gpu)
    return dataclasses.replace(config, xla_scope=scope)


def show_plan(config: Config, options: ProgramOptions, describe: Describe) -> str:
    """What --plan prints."""
    work = describe(with_scope(config, options))
    return "\n".join(plan(work, find_rank_memory(options.gpu_memory_gib, 1)))


def complete_config(config: Config, options: ProgramOptions, describe: Describe, workers: Any) -> Config:
    """The settings with which these ranks train, with their scope and batch split resolved: --train_batch_size is a
    number, or "auto" to split the global batch.

    Args:
      describe: returns the workload that must fit.
      workers: the ranks, from `ranks.workers`. All use the smallest of the micro-batches that fit on them.

    Raises:
      UserError: the settings contradict each other, or the ranks cannot share the global batch.
    """
    config = dataclasses.replace(with_scope(config, options), num_ranks=workers.size)
    size, global_size = config.train_batch_size, options.global_batch_size
    if (size == AUTO) != (global_size is not None):
        raise UserError(
            f"--train_batch_size={AUTO} and --global_batch_size, the sequences of all ranks in an update, belong "
            f"together: give both or neither, not {size} and {global_size}"
        )
    if size != AUTO:
        return config.with_split(config.split())
    assert global_size
    if options.num_accumulation_steps is not None:
        raise UserError(f"--train_batch_size={AUTO} finds --num_accumulation_steps by itself; omit that")
    if global_size % workers.size:
        raise UserError(f"--global_batch_size={global_size}: must be a multiple of the {workers.size} rank(s)")
    num_rows = global_size // workers.size
    limit = find_rank_memory(options.gpu_memory_gib, workers.size).num_bytes
    smallest = int(workers.gather(np.array([largest_micro_batch(describe(config), limit, num_rows)])).min())
    split = BatchSplit(smallest, num_rows // smallest, workers.size)
    if workers.is_chief:
        does_fit = fits(split_into(describe(config), smallest, split.num_accumulation_steps), limit)
        print(
            f"--train_batch_size={AUTO}: by the plan {split.num_accumulation_steps} micro-batch(es) of {smallest} on "
            f"each rank {'fit' if does_fit else 'do not fit, and there are no smaller ones'}",
            flush=True,
        )
    return config.with_split(split)


def halve(split: BatchSplit) -> BatchSplit:
    """The same rows in micro-batches of the largest size that divides them and is at most half the present one."""
    size = split.micro_batch_size // 2
    while split.rows_per_rank % size:
        size -= 1
    return split._replace(micro_batch_size=size, num_accumulation_steps=split.rows_per_rank // size)


class OutOfMemoryError(UserError):
    """Out of memory, and no smaller micro-batch is possible or will be tried."""

    def __init__(self, micro_batch_size: int, error: Exception):
        super().__init__(
            f"out of memory with a micro-batch of {micro_batch_size} ({first_line(error)}); --plan says what fits: a "
            "smaller --train_batch_size with more --num_accumulation_steps is the same update, --recompute takes less "
            "memory, and --train_batch_size=auto finds the size by itself"
        )


@contextlib.contextmanager
def naming_the_batch(flag: str, size: int) -> Iterator[None]:
    """Turns running out of memory into a `UserError` that names the flag of the batch size; for all but training."""
    from bert_tf.base.tensorflow import tf  # imported late, as in `with_scope`

    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise UserError(f"--{flag}={size}: out of memory ({first_line(error)}); a smaller one takes less") from None
