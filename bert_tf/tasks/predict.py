"""Prediction: runs a model over all rows of a task, on all ranks, in batches of rows of similar length.

Most rows are shorter than the longest one, and the model also computes padding. So rows are sorted by length, and a
batch is padded to one of a few lengths, for each of which the model is compiled. Outputs of padding are not kept, so
that the memory follows from the text, whatever the greatest length.

Shapes: F rows, S positions of the longest row, T tokens of all rows, B rows of a batch, L positions of its rows.
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
from bert_tf.tasks.rows import ByToken, Outputs, TaskRows

# Lengths are multiples of this: tensor cores and vector units want multiples of at least 8.
_LENGTH_STEP = 16
# The cost of tracing or compiling a model for one more length, in rows of the greatest length, by XLA scope.
ROWS_PER_COMPILATION = {"step": 2048, "blocks": 32, "off": 16}
# The percentiles of the batches' latency that are shown, as by NVIDIA's programs.
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
        shares = {f"latency_{share}_ms": float(np.percentile(ms, share, method="higher")) for share in _CONFIDENCES}
        average = float(ms.mean())
        return {**shares, "latency_average_ms": average, "throughput_val": 1e3 * self.global_batch_size / average}

    def describe_speed(self) -> list[str]:
        """Console lines; scripts for NVIDIA's programs parse this exact wording. [] if too few batches ran."""
        speed = self.speed()
        if not speed:
            return []
        return [
            *(f"Latency Confidence Level {share} (ms) = {speed[f'latency_{share}_ms']:.2f}" for share in _CONFIDENCES),
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
    """A trained model, or one that is being trained, as what computes a task's rows, on all ranks together.

    Attributes:
      compute: as returned by `compile_model`.
      max_length: S.
      batch_size: B, of one rank.
      by_position: whether the outputs are [B, L, ...], of each position.
      rows_per_compilation: the cost of one more length, in rows of S positions; None: always S, for a model that takes
        no other length.
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
        """The outputs for all rows, which have a name, on each rank; `update`: to which the model has been trained.

        Those of the latest update are kept: if the weights that were scored last stand for the run, their outputs are
        wanted again.
        """
        if update != self._update:
            self._update, self._predicted = update, {}
        if name not in self._predicted:
            self._predicted[name] = self.compute_all(rows)
        return self._predicted[name]

    def compute_all(self, rows: TaskRows) -> Predicted:
        """The outputs for all rows in their order, computed by all ranks together and returned on each.

        Every rank takes its part of each global batch (`batches`), so the shapes are the same on all ranks.
        """
        workers, batch_size = self.workers, self.batch_size
        groups, first = self.batches(rows.num_tokens), workers.rank * batch_size
        order = np.concatenate([batches for _, batches in groups])
        results: list[list[np.ndarray]] = []  # by batch and output
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
        """An output of all rows, of which each rank has, in `parts`, those with its numbers."""
        sizes = rows.num_tokens if self.by_position else np.ones(len(rows.num_tokens), np.int64)
        begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        num_values = sizes[numbers_of_ranks].sum(axis=1)
        mine = np.concatenate(parts)
        shape, missing = mine.shape[1:], num_values.max() - len(mine)
        filled = np.pad(mine, [(0, missing), *[(0, 0)] * len(shape)]) if missing else mine  # all ranks send as many
        values = np.empty([begins[-1], *shape], mine.dtype)
        for numbers, num, theirs in zip(numbers_of_ranks, num_values, self.workers.gather(filled.ravel())):
            ends = np.cumsum(sizes[numbers])
            destinations = np.arange(num) + np.repeat(begins[numbers] - ends + sizes[numbers], sizes[numbers])
            values[destinations] = theirs.reshape(-1, *shape)[:num]
        return ByToken(values, begins) if self.by_position else values

    def predict_each(self, rows: TaskRows) -> Outputs:
        """The outputs for a few rows, one after the other."""
        numbers = np.arange(len(rows.num_tokens))
        each = [self._compute(rows, numbers[row : row + 1], self.max_length) for row in numbers]
        return tuple(self._gather(parts, numbers[None], rows) for parts in zip(*each))

    def _compute(self, rows: TaskRows, numbers: np.ndarray, length: int) -> list[np.ndarray]:
        """The outputs for the rows `numbers` [B], of which no token is beyond `length`; or for all of their tokens."""
        inputs = rows.batch(numbers)
        features = {name: tf.constant(inputs[name][..., :length]) for name in INPUTS}
        is_token_BxL = np.arange(length) < rows.num_tokens[numbers][:, None]
        chosen = is_token_BxL if self.by_position else ...
        return [output.numpy()[chosen] for output in self.compute(features)]

    def speed(self) -> dict[str, float]:
        """As `Predicted.speed`, of all that was predicted at the latest update."""
        batch_secs = [secs for predicted in self._predicted.values() for secs in predicted.batch_secs]
        return Predicted((), batch_secs, self.batch_size * self.workers.size).speed()

    def batches(self, num_tokens: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """The batches of each length: (length, row numbers [batches, global batch]), the shortest first.

        The first batch is filled up with copies of the shortest row. `num_tokens`: int [F], of each row.
        """
        order, global_batch_size = np.argsort(num_tokens, kind="stable"), self.batch_size * self.workers.size
        batches = np.pad(order, (-len(order) % global_batch_size, 0), mode="edge").reshape(-1, global_batch_size)
        longest = np.asarray(num_tokens)[batches[:, -1]]
        lengths = self._choose_lengths(longest)
        length_of_batch = np.searchsorted(lengths, longest)
        groups = [(length, batches[length_of_batch == number]) for number, length in enumerate(lengths)]
        return [(length, group) for length, group in groups if len(group)]

    def _choose_lengths(self, longest: np.ndarray) -> list[int]:
        """The lengths, ascending, to which batches are padded: those that minimise the cost of padding and compilation.

        Each batch gets the shortest length that fits its longest row. Found by dynamic programming over multiples of
        `_LENGTH_STEP`; `longest`: number of tokens in each batch's longest row, ascending.
        """
        if self.rows_per_compilation is None:
            return [self.max_length]
        steps = range(_LENGTH_STEP, self.max_length + _LENGTH_STEP, _LENGTH_STEP)
        lengths = [min(step, self.max_length) for step in steps if step - _LENGTH_STEP < longest[-1]]
        num_up_to = [0, *np.searchsorted(longest, lengths, side="right")]
        compilation = self.rows_per_compilation * self.max_length
        global_batch_size = self.batch_size * self.workers.size
        best: list[tuple[float, list[int]]] = [(0.0, [])]  # cost of the batches up to each length, and the lengths
        for length, num_batches in zip(lengths, num_up_to[1:]):
            longer = [
                (cost + float(num_batches - num_before) * global_batch_size * length + compilation, [*chosen, length])
                for (cost, chosen), num_before in zip(best, num_up_to)
            ]
            best.append(min(longer, key=lambda each: each[0]))
        return best[-1][1]
