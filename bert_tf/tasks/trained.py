"""The fine-tuned weights that predict: finding them, and filling a model with them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.interchange.initialise import find_weights
from bert_tf.interchange.weights import Weights
from bert_tf.run.checkpoint import STATE, load_weights, read_state


class Head(NamedTuple):
    """What tells a model that was fine-tuned on a task from one that was only pre-trained."""

    name: str  # as messages call it
    variable: str  # that only the fine-tuned checkpoint has


def find_trained_weights(model_dir: Path, init_checkpoint: str | None, head: Head) -> Weights:
    """The weights to predict with: `init_checkpoint` if it was fine-tuned, else the run's newest.

    Raises:
      UserError: neither has the head.
    """
    if init_checkpoint:
        weights = find_weights(init_checkpoint)
        if head.variable in weights.shapes:
            return weights
    if (model_dir / "checkpoints").is_dir():
        return find_weights(model_dir, "--model_dir")
    if init_checkpoint:
        raise UserError(
            f"--init_checkpoint={init_checkpoint} has no {head.name} head ({head.variable}), and "
            f"--model_dir={model_dir} holds no checkpoint; fine-tune it first with --mode=train"
        )
    raise UserError(
        f"--model_dir={model_dir} holds no checkpoint to predict with; fine-tune first with --mode=train, "
        "or name a fine-tuned checkpoint with --init_checkpoint"
    )


def load_trained_weights(weights: Weights, model: tf.keras.Model, vocab_size: int, head: Head) -> int:
    """Fills a model for prediction; returns the number of updates it was trained for, 0 if not known.

    Raises:
      UserError: the checkpoint lacks something that the model was trained with.
    """
    report = load_weights(weights, model.variables, vocab_size)
    used = {variable.name.split(":")[0] for variable in model.trainable_variables}
    missing = [name for name in report.missing if name in used]
    if missing:
        raise UserError(
            f"{weights.source} lacks {', '.join(missing[:3])} ({len(missing)} variables in all), so it cannot be "
            f"used for {head.name}; name a checkpoint that was fine-tuned for that"
        )
    return read_state(weights.folder)["updates_applied"] if (weights.folder / STATE).is_file() else 0
