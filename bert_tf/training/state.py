"""The state of a training: weights, optimizer, loss scale and the position in the data.

It is saved while the updates go on: the state is copied to the host, where a thread writes the copy.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.tensorflow import keras, tf
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, SaveError, Snapshot
from bert_tf.run.telemetry import Telemetry


@dataclasses.dataclass
class TrainState:
    """Everything that a checkpoint contains. `batches_consumed` is the position in the data."""

    model: keras.Model
    optimizer: Any
    loss_scale: LossScale
    batches_consumed: int = 0

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.model.variables, *self.optimizer.slot_variables]

    @property
    def updates_applied(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def copy(self, checkpoints: CheckpointFolder, identity: Mapping[str, Any]) -> Snapshot:
        """A copy of the state, for `CheckpointFolder.write`."""
        state = {
            "batches_consumed": self.batches_consumed,
            "loss_scale": self.loss_scale.state(),
            "identity": dict(identity),
        }
        return checkpoints.copy(self.updates_applied, self.variables, state)

    def restore(self, checkpoints: CheckpointFolder, path: Path) -> None:
        state = checkpoints.restore(path, self.variables)
        self.optimizer.iterations.assign(state["updates_applied"])
        self.loss_scale.restore(state["loss_scale"])
        self.batches_consumed = state["batches_consumed"]

    def broadcast(self, workers: Workers) -> None:
        """Broadcasts rank 0's state to all ranks."""
        self.batches_consumed = int(workers.gather(np.array([self.batches_consumed], np.int64))[0, 0])
        workers.broadcast([*self.variables, self.optimizer.iterations, *self.loss_scale.variables])


class BackgroundWriter:
    """Writes checkpoints in a thread, one at a time. Leaving the context, also by an error, completes the current one.

    Args:
      telemetry: records each checkpoint, and warns of each that could not be written.
      after_save: called after each checkpoint, in the thread.
    """

    def __init__(self, checkpoints: CheckpointFolder, telemetry: Telemetry, after_save: Callable[[], None]):
        self._checkpoints, self._telemetry, self._after_save = checkpoints, telemetry, after_save
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._newest: Future[None] | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def save(self, state: TrainState, identity: Mapping[str, Any], *, is_last: bool) -> None:
        """Copies the state and starts writing it; waits for the end of writing only if it `is_last`.

        Raises:
          SaveError: the last checkpoint could not be written. For earlier ones that is only a warning.
        """
        started = time.monotonic()
        self.wait()  # for the previous checkpoint, so that there are never two copies
        snapshot = state.copy(self._checkpoints, identity)
        copied_secs = time.monotonic() - started

        def write() -> None:
            began = time.monotonic()
            try:
                path = self._checkpoints.write(snapshot)
            except SaveError as error:
                if is_last:
                    raise
                self._telemetry.warning(f"{error.fault}: the training goes on, and saves again at the next checkpoint")
                return
            write_secs = time.monotonic() - began
            waited_secs = copied_secs + write_secs if is_last else copied_secs
            self._telemetry.checkpoint(snapshot.update, path, waited_secs, write_secs)
            self._after_save()

        self._newest = self._thread.submit(write)
        if is_last:
            self.wait()

    def wait(self) -> None:
        """Waits until nothing is being written; raises what the thread raised."""
        if self._newest:
            self._newest.result()
            self._newest = None
