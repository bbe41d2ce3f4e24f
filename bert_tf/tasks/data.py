"""A task's rows, which are kept in memory, as the batches of a training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bert_tf.base.tensorflow import tf
from bert_tf.batches.batches import Batch
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.settings.training import FinetuningConfig
from bert_tf.tasks.rows import TaskRows


class TaskData:
    """One rank's share of the rows, epoch after epoch, each in another order."""

    def __init__(self, rows: TaskRows, config: FinetuningConfig, rank: int):
        self._rows, self._split = rows, config.split(rank)
        # The order permutes blocks within files. With one record per file it permutes single rows, which is
        # needed here, because neighbouring rows are questions about the same text.
        self._order = GlobalOrder([[1] * len(rows.num_tokens)], config.seed)

    def row_numbers(self, batch_number: int) -> np.ndarray:
        """int64 [A, B]: the rows that this rank contributes to one update."""
        split = self._split
        start = batch_number * split.global_batch_size + split.rank * split.rows_per_rank
        numbers = [single.file for single in self._order.ranges(start, split.rows_per_rank)]
        return np.array(numbers).reshape(split.num_accumulation_steps, split.micro_batch_size)

    def batches(self, first: int) -> Iterator[Batch]:
        while True:
            numbers = self.row_numbers(first)
            features = {**self._rows.batch(numbers), "example_weights": np.ones(numbers.shape, np.float32)}
            # On the host, which sums the weights: if they were on a GPU it would have to wait for pending work.
            with tf.device("/CPU:0"):
                tensors = {name: tf.constant(values) for name, values in features.items()}
            yield Batch(tensors)  # outside of the device's scope, which would be the caller's, too
            first += 1
