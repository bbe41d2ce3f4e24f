"""Batches in the global order: reads, parses and masks a whole batch at a time, ahead of its use.

A rank reads its own rows of each update, 64 consecutive instances at a time. Packed updates (`packing`) are planned
from the indexes or pairs, before any instance is read, identically on every rank.

Shape letters: A micro-batches of an update, B micro-batch, S sequence, P masked positions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import tf
from bert_tf.batches.data_order import GlobalOrder, RecordRange, select
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.batches.packing import Slots, best_fit, lay_out
from bert_tf.settings.training import BatchSplit

PREFETCHED_BATCHES = 2

Features = dict[str, tf.Tensor]
Item = TypeVar("Item")


class Batch(NamedTuple):
    """One rank's rows of an update, and counts over all ranks."""

    features: Features  # [A, B, ...]
    num_micro_batches: int | None = None  # on every rank only this many of the A contain rows; None: all do
    num_tokens: int = 0  # of all ranks, without padding; unpacked: this rank's times the ranks; 0 if not counted
    num_rows: int = 0  # of all ranks, including empty ones that fill the last micro-batch


def read_ahead(batches: Iterator[Item]) -> Iterator[Item]:
    """The batches, read, parsed and masked ahead of the caller by a thread.

    The thread belongs to an executor, because Python waits for an executor's threads at exit instead of killing them.
    """
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="input") as executor:
        ahead = collections.deque(executor.submit(next, batches, None) for _ in range(PREFETCHED_BATCHES))
        while (batch := ahead.popleft().result()) is not None:
            ahead.append(executor.submit(next, batches, None))
            yield batch


class _Reader(NamedTuple):
    """Reads instances of a set, masked, for a model with `vocab_size` rows in its word table."""

    instances: InstanceSet
    mask_seed: int
    vocab_size: int

    def features(self, ranges: Sequence[RecordRange], shape: Sequence[int]) -> dict[str, Any]:
        """The features [*shape, ...] of the instances: tensors on the host, or NumPy's arrays.

        Raises: UserError for an instance that is damaged or does not fit the vocabulary.
        """
        features = self.instances.features(ranges, self.mask_seed, shape)
        # np.asarray does not copy a tensor on the host.
        largest_id = max(np.asarray(features[name]).max() for name in ("input_ids", "masked_lm_ids"))
        if largest_id >= self.vocab_size:
            raise UserError(
                f"the data hold token id {largest_id}, but the model's vocabulary has only "
                f"{self.vocab_size} pieces; use the vocabulary the data were made with"
            )
        return features

    def weighted(self, ranges: Sequence[RecordRange], example_weights: np.ndarray) -> Features:
        """The features of one instance per row, with each instance's weight; leading dimensions as of the weights."""
        features = self.features(ranges, example_weights.shape)
        masked_lm_weights = np.asarray(features["masked_lm_weights"]) * example_weights[..., np.newaxis]
        return _to_tensors({**features, "masked_lm_weights": masked_lm_weights, "example_weights": example_weights})

    def packed(self, ranges: Sequence[RecordRange], rows_RxK: np.ndarray, split: BatchSplit) -> Features:
        """The instances of `rows_RxK`, given as numbers within the ranges, laid out in all rows of a rank.

        Rows beyond the R given ones stay empty.
        """
        slots = Slots.from_rows(rows_RxK)
        num_instances = len(slots.row_N)
        # A rank without any row still reads one instance, to know the features' shapes.
        single_ranges = select(ranges, rows_RxK[slots] if num_instances else np.zeros([1], np.int64))
        features = self.features(single_ranges, [len(single_ranges)])
        rows = lay_out(
            {name: np.asarray(values)[:num_instances] for name, values in features.items()},
            slots,
            split.rows_per_rank,
            self.instances.predictions_per_packed_row,
        )
        return _to_tensors({name: values.reshape(*split.shape, values.shape[1]) for name, values in rows.items()})


def _to_tensors(features: dict[str, Any]) -> Features:
    """The features on the host; tensors are not copied."""
    with tf.device("/CPU:0"):
        return {name: tf.convert_to_tensor(values) for name, values in features.items()}


def training_batches(
    instances: InstanceSet,
    order: GlobalOrder,
    split: BatchSplit,
    *,
    first_batch: int,
    vocab_size: int,
    packing: bool = False,
) -> Iterator[Batch]:
    """One rank's batches, as `split` says, for update `first_batch` and all later ones, without end.

    Update u consists of positions [u*G, (u+1)*G) of the order, with G = A * B * ranks; a rank's rows are consecutive.
    With `packing` several instances share a row. Then fewer micro-batches are needed, the same number on every rank;
    the remaining rows of [A, B, ...] are 0.
    """
    reader = _Reader(instances, order.seed, vocab_size)
    weights = np.ones(split.shape, np.float32)
    micro_batch_size, _, num_ranks, rank = split

    def plain_batch(update: int) -> Batch:
        ranges = order.ranges((update * num_ranks + rank) * split.rows_per_rank, split.rows_per_rank)
        features = reader.weighted(ranges, weights)
        num_tokens = num_ranks * int(np.count_nonzero(features["input_mask"]))
        return Batch(features, None, num_tokens, split.global_batch_size)

    def packed_batch(update: int) -> Batch:
        ranges = order.ranges(update * split.global_batch_size, split.global_batch_size)
        lengths = instances.lengths(ranges)
        rows = best_fit(lengths, instances.schema.sequence_length)
        num_micro_batches = -(-len(rows) // (micro_batch_size * num_ranks))
        num_rows = num_micro_batches * micro_batch_size  # of a rank, without those that stay empty
        features = reader.packed(ranges, rows[rank * num_rows : (rank + 1) * num_rows], split)
        return Batch(features, num_micro_batches, int(lengths.sum()), num_rows * num_ranks)

    return read_ahead(map(packed_batch if packing else plain_batch, itertools.count(first_batch)))


def evaluation_batches(
    instances: InstanceSet, split: BatchSplit, num_batches: int, *, vocab_size: int
) -> Iterator[Features]:
    """One rank's batches of a single pass over the instances in file order; yields features [B, ...].

    All ranks get `num_batches`; rows past the end repeat the first instance with weight 0. Token files are read as in
    epoch 0, with masks drawn from the pairs' own seed, so that every evaluation of every run uses the same masks.
    """
    reader, batch_size = _Reader(instances, instances.random_seed, vocab_size), split.micro_batch_size

    def batch(number: int) -> Features:
        first = (number * split.num_ranks + split.rank) * batch_size
        num_real = min(max(instances.num_instances - first, 0), batch_size)
        filling = instances.ranges_in_file_order(0, 1) * (batch_size - num_real)
        ranges = instances.ranges_in_file_order(first, num_real) + filling
        return reader.weighted(ranges, (np.arange(batch_size) < num_real).astype(np.float32))

    return read_ahead(map(batch, range(num_batches)))
