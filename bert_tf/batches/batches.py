"""Batches in the global order: reads, parses and masks a whole batch at a time, ahead of its use.

A rank reads its own rows of each update, 64 consecutive instances at a time. Records are parsed with one
`tf.io.parse_example`, which is six times faster than parsing one by one; token files need no parsing. Packed updates
(`packing`) are planned from the indexes or pairs, before any instance is read, identically on every rank.

Shape letters: A micro-batches of an update, B micro-batch, S sequence, P masked positions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Callable, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.batches.data_order import GlobalOrder, RecordRange
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.batches.packing import Places, best_fit, lay_out
from bert_tf.batches.record_set import RecordSet
from bert_tf.batches.token_set import TokenSet
from bert_tf.records.schema import RecordSchema
from bert_tf.settings.training import BatchSplit

PREFETCHED_BATCHES = 2

Features = dict[str, tf.Tensor]
Arrays = dict[str, np.ndarray]
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


def parse_records(records: RecordSet, serialized: list[bytes], ranges: Sequence[RecordRange]) -> Arrays:
    """The serialised records [n] of `ranges` -> features [n, ...], int32 and float32."""
    schema = records.schema
    try:
        parsed = _parser(schema)(tf.constant(serialized))
    except tf.errors.InvalidArgumentError as error:
        raise UserError(
            f"one of the records {', '.join(records.name(ranges))} does not hold {schema}, as the "
            "first record of its file does; use records that were made with the same settings"
        ) from error
    # .numpy() would copy; these arrays share the tensors' memory and are read-only.
    return {name: np.asarray(value) for name, value in parsed.items()}


def _read(instances: InstanceSet, ranges: Sequence[RecordRange], mask_seed: int, vocab_size: int) -> Arrays:
    """The features [n, ...] of the instances, masked.

    Raises: UserError for an instance that is damaged or does not fit the vocabulary.
    """
    if isinstance(instances, TokenSet):
        features = instances.features(ranges, mask_seed)
    else:
        assert isinstance(instances, RecordSet)
        features = parse_records(instances, instances.read(ranges), ranges)
    largest_id = max(features["input_ids"].max(), features["masked_lm_ids"].max())
    if largest_id >= vocab_size:
        raise UserError(
            f"the data hold token id {largest_id}, but the model's vocabulary has only "
            f"{vocab_size} pieces; use the vocabulary the data were made with"
        )
    return features


def _weighted(features: Arrays, example_weights: np.ndarray) -> Arrays:
    """Features of one instance per row, with each instance's weight."""
    weights = features["masked_lm_weights"] * example_weights[:, np.newaxis]
    return {**features, "masked_lm_weights": weights, "example_weights": example_weights}


def _read_packed(
    instances: InstanceSet,
    ranges: Sequence[RecordRange],
    rows: np.ndarray,
    num_rows: int,
    read: Callable[[Sequence[RecordRange]], Arrays],
) -> Arrays:
    """The instances of `rows` [r, K], given as positions within `ranges`, laid out in `num_rows` rows.

    Rows beyond the r given ones stay empty.
    """
    places = Places.of(rows)
    # A rank without any row still reads one instance, to know the features' shapes.
    wanted = rows[places] if len(rows) else np.zeros([1], np.int64)
    ends = np.cumsum([record_range.num_records for record_range in ranges])
    of = np.searchsorted(ends, wanted, side="right")
    own = [
        ranges[number]._replace(
            first=ranges[number].first + ranges[number].num_records - int(before_end), num_records=1
        )
        for number, before_end in zip(of, ends[of] - wanted)
    ]
    features = read(own)
    if isinstance(instances, RecordSet):
        instances.check_lengths(features["input_mask"], own)
    features = {name: values[: len(places.row_N)] for name, values in features.items()}
    return lay_out(features, places, num_rows, instances.predictions_per_packed_row)


def _to_tensors(features: Arrays, *leading: int) -> Features:
    """The features on the host, their rows reshaped to the `leading` dimensions."""
    with tf.device("/CPU:0"):
        return {name: tf.constant(value.reshape(*leading, *value.shape[1:])) for name, value in features.items()}


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
    micro_batch_size, num_accumulation_steps, num_ranks, rank = split
    per_rank = split.rows_per_rank
    read = functools.partial(_read, instances, mask_seed=order.seed, vocab_size=vocab_size)

    def batches() -> Iterator[Batch]:
        for number in itertools.count(first_batch):
            start = number * num_ranks * per_rank
            num_micro_batches: int | None = None
            own_rows = per_rank
            if packing:
                ranges = order.ranges(start, num_ranks * per_rank)
                lengths = instances.lengths(ranges)
                rows = best_fit(lengths, instances.schema.max_seq_length)
                num_micro_batches = -(-len(rows) // (micro_batch_size * num_ranks))
                own_rows = num_micro_batches * micro_batch_size
                features = _read_packed(
                    instances, ranges, rows[rank * own_rows : (rank + 1) * own_rows], per_rank, read
                )
                num_tokens = int(lengths.sum())
            else:
                read_features = read(order.ranges(start + rank * per_rank, per_rank))
                features = _weighted(read_features, np.ones([per_rank], np.float32))
                num_tokens = num_ranks * int(np.count_nonzero(features["input_mask"]))
            tensors = _to_tensors(features, num_accumulation_steps, micro_batch_size)
            yield Batch(tensors, num_micro_batches, num_tokens, own_rows * num_ranks)

    return read_ahead(batches())


def evaluation_batches(
    instances: InstanceSet, *, batch_size: int, max_batches: int, rank: int, num_ranks: int, vocab_size: int
) -> Iterator[Features]:
    """One rank's batches of a single pass over the instances in file order; yields features [B, ...].

    All ranks get the same number of batches; rows past the end repeat the first instance with weight 0.
    `max_batches` > 0 limits the batches of each rank. Token files are read as in epoch 0, with masks drawn from the
    pairs' own seed, so that every evaluation of every run uses the same masks.
    """
    num_instances = instances.num_instances

    def batches() -> Iterator[Features]:
        num_batches = -(-num_instances // (batch_size * num_ranks))
        for batch in range(min(num_batches, max_batches or num_batches)):
            first = (batch * num_ranks + rank) * batch_size
            num_real = min(max(num_instances - first, 0), batch_size)
            weights = np.zeros([batch_size], np.float32)
            weights[:num_real] = 1.0
            filling = instances.ranges_in_file_order(0, 1) * (batch_size - num_real)
            ranges = instances.ranges_in_file_order(first, num_real) + filling
            features = _weighted(_read(instances, ranges, instances.random_seed, vocab_size), weights)
            yield _to_tensors(features, batch_size)

    return read_ahead(batches())
