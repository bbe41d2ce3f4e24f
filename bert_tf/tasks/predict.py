"""Prediction: runs a model over all rows of a task, on all ranks, in batches of rows of similar length.

Most rows are shorter than the longest one, and padding costs as much computation as tokens. So rows are sorted by
length, and each batch is padded to one of a few lengths, for each of which the model is compiled. Outputs for padding
are dropped, so that memory depends on the number of tokens and not on the greatest length.

Shapes: F rows, S the greatest length, T tokens of all rows, B rows of a batch, L the length to which a batch is padded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import keras, tf
from bert_tf.interchange.saved_model import INPUTS
from bert_tf.memory.split import naming_the_batch
from bert_tf.ranks.workers import Workers
from bert_tf.tasks.rows import ByToken, Outputs, TaskRows, ranges

# Lengths are multiples of this: tensor cores and vector units want multiples of at least 8.
_LENGTH_STEP = 16
# By XLA scope: the cost of tracing or compiling a model for one more length, in rows of the greatest length computed.
ROWS_PER_COMPILATION = {"step": 2048, "blocks": 32, "off": 16}
# The percentiles of the latency of a batch that are shown; NVIDIA's programs show the same.
_CONFIDENCES = (50, 90, 95, 99, 100)

Compute = Callable[[dict[str, tf.Tensor]], Sequence[tf.Tensor]]


class Predicted(NamedTuple):
    """Outputs of a model over all rows, and how long this rank's batches took."""

    outputs: Outputs
    batch_secs: list[float]  # without the first batch of each length, which includes compilation
    global_batch_size: int

    def speed(self) -> dict[str, float]:
        """Percentiles and mean of the batches' latency in ms, and rows/s of all ranks; {} if too few batches ran."""
        if not self.batch_secs:
            return {}
        ms = np.array(self.batch_secs) * 1e3
        latencies = {f"latency_{level}_ms": float(np.percentile(ms, level, method="higher")) for level in _CONFIDENCES}
        average = float(ms.mean())
        return {**latencies, "latency_average_ms": average, "throughput_val": 1e3 * self.global_batch_size / average}

    def describe_speed(self) -> list[str]:
        """Console lines; scripts for NVIDIA's programs parse this exact wording. [] if too few batches ran."""
        speed = self.speed()
        if not speed:
            return []
        return [
            *(f"Latency Confidence Level {level} (ms) = {speed[f'latency_{level}_ms']:.2f}" for level in _CONFIDENCES),
            f"Latency Average (ms) = {speed['latency_average_ms']:.2f}",
            f"Throughput Average (sequences/sec) = {speed['throughput_val']:.2f}",
        ]


def compile_model(model: keras.Model) -> Compute:
    """The model without dropout, as a function of its features."""
    return tf.function(
        lambda features: tuple(tf.nest.flatten(model(features, dropout=None))),
        jit_compile=model.backend.scope == "step",
        autograph=False,
    )


@dataclasses.dataclass
class Predictor:
    """Computes the outputs of a model, trained or in training, for a task's rows, on all ranks together.

    Attributes:
      compute: the model, as returned by `compile_model`.
      max_length: S.
      batch_size: B, of one rank.
      by_position: whether the outputs are [B, L, ...], with values for each position; else they are [B, ...].
      rows_per_compilation: the cost of one more length, in rows of S positions; None: the model takes S only.
    """

    compute: Compute
    workers: Workers
    max_length: int
    batch_size: int
    by_position: bool
    rows_per_compilation: int | None
    _update: int = dataclasses.field(default=-1, init=False)
    _predicted: dict[str, Predicted] = dataclasses.field(default_factory=dict, init=False)

    def predict(self, name: str, rows: TaskRows, update: int) -> Predicted:
        """The outputs for all rows, on each rank.

        They are cached by `name` for the latest `update` (how many the model was trained for): if the weights that were
        scored last are also the run's best, their outputs are needed again.
        """
        if update != self._update:
            self._update, self._predicted = update, {}
        if name not in self._predicted:
            self._predicted[name] = self.compute_all(rows)
        return self._predicted[name]

    def compute_all(self, rows: TaskRows) -> Predicted:
        """The outputs for all rows in their order, computed by all ranks together and returned on each.

        Every rank takes its part of each global batch (`batches`), so all ranks compute the same shapes.
        """
        workers, batch_size = self.workers, self.batch_size
        groups, first = self.batches(rows.num_tokens), workers.rank * batch_size
        order = np.concatenate([batches for _, batches in groups])
        results: list[list[np.ndarray]] = []  # one list of outputs for each batch
        batch_secs: list[float] = []
        progress = Progress(total=len(order), unit="batches", description="predicting", disable=not workers.is_chief)
        with workers.keep_alive(), progress, naming_the_batch("predict_batch_size", batch_size):
            for length, batches in groups:
                for batch, numbers in enumerate(batches[:, first : first + batch_size]):
                    started = time.perf_counter()
                    results.append(self._compute(rows, numbers, length))
                    if batch > 0:  # the first one includes compilation
                        batch_secs.append(time.perf_counter() - started)
                    progress.update(1)
        numbers_of_ranks = order.reshape(len(order), workers.size, batch_size).swapaxes(0, 1).reshape(workers.size, -1)
        outputs = tuple(self._gather(parts, numbers_of_ranks, rows) for parts in zip(*results))
        return Predicted(outputs, batch_secs, batch_size * workers.size)

    def _gather(
        self, parts: Sequence[np.ndarray], numbers_of_ranks: np.ndarray, rows: TaskRows
    ) -> np.ndarray | ByToken:
        """One output for all rows, gathered from all ranks. `parts`: this rank's, in the order of its row numbers."""
        sizes = rows.num_tokens if self.by_position else np.ones(len(rows.num_tokens), np.int64)
        begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        destinations_of_ranks = [ranges(begins[numbers], sizes[numbers]) for numbers in numbers_of_ranks]
        local = np.concatenate(parts)
        shape, missing = local.shape[1:], max(map(len, destinations_of_ranks)) - len(local)
        padded = np.pad(local, [(0, missing), *[(0, 0)] * len(shape)]) if missing else local  # all ranks send as many
        values = np.empty([begins[-1], *shape], local.dtype)
        for destinations, from_rank in zip(destinations_of_ranks, self.workers.gather(padded.ravel())):
            values[destinations] = from_rank.reshape(-1, *shape)[: len(destinations)]
        return ByToken(values, begins) if self.by_position else values

    def predict_each(self, rows: TaskRows) -> Outputs:
        """The outputs for a few rows, computed one by one, and on this rank only."""
        numbers = np.arange(len(rows.num_tokens))
        results = [self._compute(rows, numbers[row : row + 1], self.max_length) for row in numbers]
        return tuple(self._gather(parts, numbers[None], rows) for parts in zip(*results))

    def _compute(self, rows: TaskRows, numbers: np.ndarray, length: int) -> list[np.ndarray]:
        """The outputs for the rows `numbers` [B], none longer than `length`: [B, ...], by position [tokens, ...]."""
        inputs = rows.batch(numbers)
        features = {name: tf.constant(inputs[name][..., :length]) for name in INPUTS}
        is_token_BxL = np.arange(length) < rows.num_tokens[numbers][:, None]
        index = is_token_BxL if self.by_position else ...
        return [output.numpy()[index] for output in self.compute(features)]

    def speed(self) -> dict[str, float]:
        """As `Predicted.speed`, over everything that was predicted for the latest update."""
        batch_secs = [secs for predicted in self._predicted.values() for secs in predicted.batch_secs]
        return Predicted((), batch_secs, self.batch_size * self.workers.size).speed()

    def batches(self, num_tokens: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """(length, row numbers [batches, global batch size]) for each length to which batches are padded, ascending.

        The first batch is filled up with copies of the shortest row. `num_tokens`: int [F], of each row.
        """
        order, global_batch_size = np.argsort(num_tokens, kind="stable"), self.batch_size * self.workers.size
        batches = np.pad(order, (-len(order) % global_batch_size, 0), mode="edge").reshape(-1, global_batch_size)
        longest = np.asarray(num_tokens)[batches[:, -1]]  # of each batch
        lengths = self._choose_lengths(longest)
        length_of_batch = np.searchsorted(lengths, longest)
        groups = [(length, batches[length_of_batch == number]) for number, length in enumerate(lengths)]
        return [(length, group) for length, group in groups if len(group)]

    def _choose_lengths(self, longest: np.ndarray) -> list[int]:
        """The lengths, ascending, to which batches are padded so that padding and compilation together cost least.

        Each batch gets the shortest length that fits its longest row. Found by dynamic programming over multiples of
        `_LENGTH_STEP`. `longest`: number of tokens in each batch's longest row, ascending.
        """
        if self.rows_per_compilation is None:
            return [self.max_length]
        steps = range(_LENGTH_STEP, self.max_length + _LENGTH_STEP, _LENGTH_STEP)
        lengths = [min(step, self.max_length) for step in steps if step - _LENGTH_STEP < longest[-1]]
        num_up_to = [0, *np.searchsorted(longest, lengths, side="right")]
        compilation = self.rows_per_compilation * self.max_length
        global_batch_size = self.batch_size * self.workers.size
        best: list[tuple[float, list[int]]] = [(0.0, [])]  # least cost of the batches up to each length, and how
        for length, num_batches in zip(lengths, num_up_to[1:]):
            candidates = [
                (cost + float(num_batches - num_before) * global_batch_size * length + compilation, [*shorter, length])
                for (cost, shorter), num_before in zip(best, num_up_to)
            ]
            best.append(min(candidates, key=lambda candidate: candidate[0]))
        return best[-1][1]
