"""Batches in the global order: reads, parses and masks a whole batch at a time, ahead of its use.

A rank reads its own rows of each update, 64 consecutive instances at a time. Records are parsed with one
`tf.io.parse_example`, which is far faster than parsing one by one; token files need no parsing. Packed updates
(`packing`) are planned from the indexes or pairs, before any instance is read, identically on every rank.

Shape letters: A micro-batches of an update, B micro-batch, S sequence, P masked positions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.batches.data_order import GlobalOrder, RecordRange, select
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.batches.packing import Slots, best_fit, lay_out
from bert_tf.batches.record_set import RecordSet
from bert_tf.batches.token_set import TokenSet
from bert_tf.config import BatchSplit
from bert_tf.records.schema import RecordSchema

PREFETCHED_BATCHES = 2

Features = dict[str, tf.Tensor]
# NumPy's arrays, or tensors on the host, which are not copied until they are a batch.
Rows = dict[str, Any]
Item = TypeVar("Item")


class Batch(NamedTuple):
    """One rank's rows of an update, and counts over all ranks."""

    features: Features  # [A, B, ...]
    num_micro_batches: int | None = None  # on every rank only this many of the A contain rows; None: all do
    num_tokens: int = 0  # of all ranks, without padding, 0 if not counted; unpacked: this rank's times the ranks
    num_rows: int = 0  # of all ranks, including empty ones that fill the last micro-batch


@functools.cache
def _parser(schema: RecordSchema) -> Callable[[tf.Tensor], Features]:
    """A function that parses serialised records [n] of one schema; traced once."""
    spec = {
        schema.stored_name(name): tf.io.FixedLenFeature([size], tf.as_dtype(kind)) for name, kind, size in schema.fields
    }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def parse(serialized: tf.Tensor) -> Features:
        with tf.device("/CPU:0"):
            parsed = tf.io.parse_example(serialized, spec)
            return {
                name: tf.cast(parsed[schema.stored_name(name)], tf.int32 if kind == "int64" else tf.float32)
                for name, kind, _ in schema.fields
            }

    return parse


def read_ahead(batches: Iterator[Item]) -> Iterator[Item]:
    """The batches, read, parsed and masked ahead of the caller by a thread.

    The thread belongs to an executor, because Python waits for an executor's threads at exit instead of killing them.
    """
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="input") as thread:
        ahead = collections.deque(thread.submit(next, batches, None) for _ in range(PREFETCHED_BATCHES))
        while (batch := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(next, batches, None))
            yield batch


def parse_records(records: RecordSet, serialized: list[bytes], ranges: Sequence[RecordRange]) -> Features:
    """The serialised records [n] of `ranges` -> features [n, ...], int32 and float32."""
    schema = records.schema
    try:
        with tf.device("/CPU:0"):
            return _parser(schema)(tf.constant(serialized))
    except tf.errors.InvalidArgumentError as error:
        raise UserError(
            f"one of the records {', '.join(records.name(ranges))} does not hold {schema}, as the "
            "first record of its file does; use records that were made with the same settings"
        ) from error


def _read(instances: InstanceSet, ranges: Sequence[RecordRange], mask_seed: int, vocab_size: int) -> Rows:
    """The features [n, ...] of the instances, masked.

    Raises: UserError for an instance that is damaged or does not fit the vocabulary.
    """
    rows: Rows
    if isinstance(instances, TokenSet):
        rows = instances.features(ranges, mask_seed)
    else:
        assert isinstance(instances, RecordSet)
        rows = parse_records(instances, instances.read(ranges), ranges)
    # np.asarray does not copy a tensor on the host.
    largest_id = max(np.asarray(rows[name]).max() for name in ("input_ids", "masked_lm_ids"))
    if largest_id >= vocab_size:
        raise UserError(
            f"the data hold token id {largest_id}, but the model's vocabulary has only "
            f"{vocab_size} pieces; use the vocabulary the data were made with"
        )
    return rows


def _weighted(rows: Rows, example_weights: np.ndarray) -> Rows:
    """Features of one instance per row, with each instance's weight."""
    weights = np.asarray(rows["masked_lm_weights"]) * example_weights[:, np.newaxis]
    return {**rows, "masked_lm_weights": weights, "example_weights": example_weights}


def _to_tensors(rows: Rows, *leading: int) -> Features:
    """The features on the host, their rows reshaped to the `leading` dimensions."""
    with tf.device("/CPU:0"):
        return {name: tf.reshape(values, [*leading, *values.shape[1:]]) for name, values in rows.items()}


class _Reader(NamedTuple):
    """Reads one rank's rows of any update."""

    instances: InstanceSet
    order: GlobalOrder
    split: BatchSplit
    vocab_size: int

    def _rows(self, ranges: Sequence[RecordRange]) -> Rows:
        return _read(self.instances, ranges, self.order.seed, self.vocab_size)

    def _batch(self, rows: Rows, **counts: Any) -> Batch:
        return Batch(_to_tensors(rows, self.split.num_accumulation_steps, self.split.micro_batch_size), **counts)

    def unpacked(self, update: int) -> Batch:
        num_rows, num_ranks = self.split.rows_per_rank, self.split.num_ranks
        ranges = self.order.ranges((update * num_ranks + self.split.rank) * num_rows, num_rows)
        rows = _weighted(self._rows(ranges), np.ones([num_rows], np.float32))
        num_tokens = num_ranks * int(np.count_nonzero(rows["input_mask"]))
        return self._batch(rows, num_tokens=num_tokens, num_rows=num_ranks * num_rows)

    def packed(self, update: int) -> Batch:
        micro_batch_size, _, num_ranks, rank = self.split
        rows_per_rank, instances = self.split.rows_per_rank, self.instances
        num_instances = num_ranks * rows_per_rank
        ranges = self.order.ranges(update * num_instances, num_instances)
        lengths = instances.lengths(ranges)
        packed_rows_RxK = best_fit(lengths, instances.schema.max_seq_length)
        num_micro_batches = -(-len(packed_rows_RxK) // (micro_batch_size * num_ranks))
        num_rows = num_micro_batches * micro_batch_size  # of this rank that are computed
        packed_rows_RxK = packed_rows_RxK[rank * num_rows : (rank + 1) * num_rows]
        slots = Slots.of(packed_rows_RxK)
        # A rank without any row still reads one instance, to know the features' shapes.
        numbers = packed_rows_RxK[slots] if len(slots.row_N) else np.zeros([1], np.int64)
        singles = select(ranges, numbers)
        rows = {name: np.asarray(values) for name, values in self._rows(singles).items()}
        if isinstance(instances, RecordSet):
            instances.check_lengths(rows["input_mask"], singles)
        rows = {name: values[: len(slots.row_N)] for name, values in rows.items()}
        return self._batch(
            lay_out(rows, slots, rows_per_rank, instances.predictions_per_packed_row),
            num_micro_batches=num_micro_batches,
            num_tokens=int(lengths.sum()),
            num_rows=num_rows * num_ranks,
        )


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

    Update u consists of positions [u*G, (u+1)*G) of the order, with G = A * B * ranks; a rank's rows are
    consecutive. With `packing` a row holds several instances, so fewer micro-batches are needed, the
    same number on every rank; the rest of [A, B, ...] is 0.
    """
    reader = _Reader(instances, order, split, vocab_size)
    return read_ahead(map(reader.packed if packing else reader.unpacked, itertools.count(first_batch)))


def evaluation_batches(
    instances: InstanceSet, *, batch_size: int, max_batches: int, rank: int, num_ranks: int, vocab_size: int
) -> Iterator[Features]:
    """One rank's batches of a single pass over the instances in file order; yields features [B, ...].

    All ranks get the same number of batches; rows past the end repeat the first instance with weight 0.
    `max_batches` > 0 limits the batches of each rank. Token files are read as in epoch 0, with masks drawn from the
    pairs' own seed, so that every evaluation of every run uses the same masks.
    """
    num_instances = instances.num_instances
    num_batches = -(-num_instances // (batch_size * num_ranks))

    def batch(number: int) -> Features:
        first = (number * num_ranks + rank) * batch_size
        num_real = min(max(num_instances - first, 0), batch_size)
        weights = np.zeros([batch_size], np.float32)
        weights[:num_real] = 1.0
        filling = instances.ranges_in_file_order(0, 1) * (batch_size - num_real)
        ranges = instances.ranges_in_file_order(first, num_real) + filling
        return _to_tensors(_weighted(_read(instances, ranges, instances.random_seed, vocab_size), weights), batch_size)

    return read_ahead(map(batch, range(min(num_batches, max_batches or num_batches))))
