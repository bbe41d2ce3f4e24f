"""Training batches from a task's rows, which are kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bert_tf.base.tensorflow import tf
from bert_tf.batches.batches import Batch
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.rows import TaskRows


class TaskData:
    """One rank's share of the rows, epoch after epoch, each epoch in another order."""

    def __init__(self, rows: TaskRows, config: FinetuningConfig, rank: int):
        self._rows, self._split = rows, config.split(rank)
        # GlobalOrder permutes blocks of records within files. Each row counts as a file of one record, so that single
        # rows are permuted: neighbouring rows are often questions about the same text.
        self._order = GlobalOrder([[1] * len(rows.num_tokens)], config.seed)

    def row_numbers(self, batch_number: int) -> np.ndarray:
        """int64 [A, B]: the rows that this rank contributes to one update."""
        split = self._split
        start = batch_number * split.global_batch_size + split.rank * split.rows_per_rank
        numbers = [row_range.file for row_range in self._order.ranges(start, split.rows_per_rank)]
        return np.array(numbers).reshape(split.num_accumulation_steps, split.micro_batch_size)

    def batches(self, first: int) -> Iterator[Batch]:
        while True:
            numbers = self.row_numbers(first)
            features = {**self._rows.batch(numbers), "example_weights": np.ones(numbers.shape, np.float32)}
            # On the host, which sums the example weights: reading them from a GPU would wait for its pending work.
            with tf.device("/CPU:0"):
                tensors = {name: tf.constant(values) for name, values in features.items()}
            yield Batch(tensors)  # not inside `with tf.device`, which would also apply to the caller
            first += 1
