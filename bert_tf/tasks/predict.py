"""Prediction: runs a model over all rows of a task, on all ranks, in batches of rows of like length.

Most rows are shorter than the longest one, and the model computes padding too. So rows are sorted into a few
lengths: few, because the model is compiled for each of them.

Shapes: F rows, S positions of the longest row, B rows of a batch, L positions of its rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.base.progress import Progress
from bert_tf.interchange.saved_model import INPUTS
from bert_tf.ranks.workers import Workers

# Lengths are multiples of this: tensor cores and vector units want multiples of 8 at least.
_LENGTH_STEP = 16
# What tracing or compiling a model for one more length costs, in rows of the greatest length, by XLA scope.
_ROWS_PER_COMPILATION = {"step": 2048, "blocks": 32, "off": 16}
# The logit of a position that was not computed, since no row of its batch reaches it.
NO_LOGIT = -np.inf
# The shares of batches, in percent, whose latency is shown; NVIDIA's programs show the same.
_CONFIDENCES = (50, 90, 95, 99, 100)

Compute = Callable[[dict[str, tf.Tensor]], Sequence[tf.Tensor]]


class Rows(NamedTuple):
    """What is predicted."""

    batch: Callable[[np.ndarray], dict[str, np.ndarray]]  # row numbers [B] -> at least the model's inputs [B, S]
    num_tokens: np.ndarray  # int [F]: real tokens of each row, the rest is padding
    max_length: int  # S
    # What one more length costs, in rows of S positions; None: all have S, for a model that takes no others.
    rows_per_compilation: int | None


class Predicted(NamedTuple):
    """Outputs of a model over all rows, and how long this rank's batches took."""

    outputs: tuple[np.ndarray, ...]  # each [F, ...]
    batch_secs: list[float]  # without the first batch of each length, which waits for the compilation
    throughput_val: float | None  # rows/s of all ranks in these batches; None where there is none

    def latencies(self) -> dict[str, float]:
        """Latency of a batch in ms, which so many percent of them do not exceed, and on average; {} without batches."""
        if not self.batch_secs:
            return {}
        ms = np.array(self.batch_secs) * 1e3
        shares = {f"latency_{share}_ms": float(np.percentile(ms, share, method="higher")) for share in _CONFIDENCES}
        return {**shares, "latency_average_ms": float(ms.mean())}

    def describe_speed(self) -> list[str]:
        """Console lines; scripts for NVIDIA's programs parse this exact wording. [] where too few batches ran."""
        if self.throughput_val is None:
            return []
        latencies = self.latencies()
        shares = [
            f"Latency Confidence Level {share} (ms) = {latencies[f'latency_{share}_ms']:.2f}" for share in _CONFIDENCES
        ]
        return [
            *shares,
            f"Latency Average (ms) = {latencies['latency_average_ms']:.2f}",
            f"Throughput Average (sequences/sec) = {self.throughput_val:.2f}",
        ]


def choose_lengths(rows: Rows, global_batch_size: int) -> list[int]:
    """The lengths, rising, to which rows are padded: those with which whole batches and compilations cost least.

    Each row goes to the shortest length that holds it. A dynamic programme over multiples of `_LENGTH_STEP`.
    """
    num_tokens, max_length = np.asarray(rows.num_tokens), rows.max_length
    if rows.rows_per_compilation is None:
        return [max_length]
    steps = range(_LENGTH_STEP, max_length + _LENGTH_STEP, _LENGTH_STEP)
    lengths = [min(step, max_length) for step in steps if step - _LENGTH_STEP < num_tokens.max()]
    num_up_to = [0, *np.searchsorted(np.sort(num_tokens), lengths, side="right")]
    compilation = rows.rows_per_compilation * max_length
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # cost of the rows up to each length, and the lengths chosen
    for number, length in enumerate(lengths, 1):
        costs = []
        for before in range(number):
            num_batches = -(-int(num_up_to[number] - num_up_to[before]) // global_batch_size)
            costs.append(best[before][0] + num_batches * global_batch_size * length + compilation)
        before = int(np.argmin(costs))
        best.append((costs[before], [*best[before][1], length]))
    return best[-1][1]


def rows_per_compilation(model: tf.keras.Model) -> int:
    """For `Rows`, where the function that predicts is `compile_model`'s."""
    return _ROWS_PER_COMPILATION[model.blocks.scope]


def compile_model(model: tf.keras.Model) -> Compute:
    """The model without dropout, as a function of its features."""
    return tf.function(
        lambda features: tuple(tf.nest.flatten(model(features, dropout=None))),
        jit_compile=model.blocks.scope == "step",
        autograph=False,
    )


def predict_rows(compute: Compute, rows: Rows, batch_size: int, workers: Workers, *, by_position: bool) -> Predicted:
    """The model's outputs for all rows in their order, computed by all ranks together and returned to each.

    Of the rows of each length every rank takes consecutive ones in batches of one fixed shape; what is
    missing in the last batch is filled with a row again and dropped.

    Args:
      compute: as `compile_model` makes it.
      batch_size: B, of one rank.
      by_position: whether the outputs are [B, L], a logit for each position; they are filled with `NO_LOGIT` to S.
    """
    num_rows, num_tokens = len(rows.num_tokens), np.asarray(rows.num_tokens)
    lengths = choose_lengths(rows, batch_size * workers.size)
    length_of_row = np.searchsorted(lengths, num_tokens)
    groups = [(length, np.flatnonzero(length_of_row == number)) for number, length in enumerate(lengths)]
    work = [  # this rank's batches of each length: row numbers [batches, B]
        (length, _share(group, batch_size, workers)) for length, group in groups if len(group)
    ]
    found: list[list[list[np.ndarray]]] = []
    batch_secs: list[float] = []

    def predict_mine() -> None:
        with Progress(
            total=sum(len(mine) for _, mine in work),
            unit="batches",
            description="predicting",
            disable=not workers.is_chief,
        ) as progress:
            for length, mine in work:
                outputs, secs = _predict_group(compute, rows, length, mine, progress)
                found.append(outputs)
                batch_secs.extend(secs[1:])

    workers.run_keeping_alive(predict_mine)
    outputs: list[Any] = [None] * len(found[0][0])
    for (length, group), batches in zip([group for group in groups if len(group[1])], found):
        for number, parts in enumerate(zip(*batches)):
            width = parts[0].shape[1:]
            everyone = workers.gather(np.concatenate(parts).ravel()).reshape(-1, *width)[: len(group)]
            if outputs[number] is None:
                shape = [num_rows, rows.max_length] if by_position else [num_rows, *width]
                outputs[number] = np.full(shape, NO_LOGIT, everyone.dtype)
            if by_position:
                outputs[number][group, :length] = everyone
            else:
                outputs[number][group] = everyone
    total_secs = sum(batch_secs)
    rate = len(batch_secs) * batch_size * workers.size / total_secs if total_secs else None
    return Predicted(tuple(outputs), batch_secs, rate)


def _share(group: np.ndarray, batch_size: int, workers: Workers) -> np.ndarray:
    """Row numbers [batches, B] of this rank: as many for each rank, the first row of the group in place of none."""
    num_batches = -(-len(group) // (batch_size * workers.size))
    places = workers.rank * num_batches * batch_size + np.arange(num_batches * batch_size)
    return group[np.where(places < len(group), places, 0)].reshape(num_batches, batch_size)


def _predict_group(
    compute: Compute, rows: Rows, length: int, mine: np.ndarray, progress: Progress
) -> tuple[list[list[np.ndarray]], list[float]]:
    """Outputs of each batch, and the seconds it took."""
    outputs, secs = [], []
    for numbers in mine:
        inputs = rows.batch(numbers)
        started = time.perf_counter()
        results = compute({name: tf.constant(inputs[name][:, :length]) for name in INPUTS})
        outputs.append([result.numpy() for result in results])
        secs.append(time.perf_counter() - started)
        progress.update(1)
    return outputs, secs
