"""Prediction: runs a model over all rows of a task, on all ranks."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.base.progress import Progress
from bert_tf.ranks.workers import Workers

_INPUTS = ("input_ids", "input_mask", "segment_ids")


class Predicted(NamedTuple):
    """Outputs of a model over all rows, and the speed of the steady state."""

    outputs: tuple[np.ndarray, ...]  # each [F, ...]
    throughput_val: float | None  # global rows/s without the first batch; None where there is no other


def predict_rows(
    model: tf.keras.Model,
    batch: Callable[[np.ndarray], dict[str, np.ndarray]],
    num_rows: int,
    batch_size: int,
    workers: Workers,
) -> Predicted:
    """The model's outputs for rows 0 to num_rows - 1, computed by all ranks together and returned to each.

    Each rank takes consecutive rows in batches of one fixed shape, so that the model is compiled
    once; missing rows of the last batch repeat row 0 and are dropped.

    Args:
      batch: row numbers [B] -> the model's inputs.
      batch_size: B, of one rank.
    """
    compiled = tf.function(
        lambda features: tuple(tf.nest.flatten(model(features, dropout=None))),
        jit_compile=model.blocks.scope == "step",
        autograph=False,
    )
    num_batches = -(-num_rows // (batch_size * workers.size))
    first = workers.rank * num_batches * batch_size
    found: list[list[np.ndarray]] = []

    def predict_mine() -> float:
        started = time.monotonic()
        for number in Progress(
            range(num_batches), unit="batches", description="predicting", disable=not workers.is_chief
        ):
            rows = first + number * batch_size + np.arange(batch_size)
            inputs = batch(np.where(rows < num_rows, rows, 0))
            outputs = compiled({name: tf.constant(inputs[name]) for name in _INPUTS})
            found.append([output.numpy() for output in outputs])
            if number == 0:  # compiled now
                started = time.monotonic()
        return time.monotonic() - started

    seconds = workers.run_keeping_alive(predict_mine)
    outputs = []
    for batches in zip(*found):
        everyone = workers.gather(np.concatenate(batches).ravel())
        outputs.append(everyone.reshape(-1, *batches[0].shape[1:])[:num_rows])
    rate = (num_batches - 1) * batch_size * workers.size / seconds if num_batches > 1 else None
    return Predicted(tuple(outputs), rate)
