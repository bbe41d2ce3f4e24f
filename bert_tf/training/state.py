"""What a training has come to: weights, optimizer, loss scale and the position in the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.tensorflow import keras
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, Snapshot


@dataclasses.dataclass
class TrainState:
    """Everything that a checkpoint contains, including the position in the data."""

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
