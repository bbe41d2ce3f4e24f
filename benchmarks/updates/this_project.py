"""An update of this project; settings: scope, precision."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tensorflow as tf
from protocol import LEARNING_RATE, random_batch, serve

from bert_tf.config import BertConfig, compute_dtype
from bert_tf.model.blocks import Blocks
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.training.step import StepSettings, TrainState, TrainStep


def make_update(settings: dict[str, Any]) -> Callable[[], float]:
    scope, precision = settings["scope"], settings["precision"]
    config = BertConfig(**settings["bert_config"])
    model = PretrainingModel(config, Blocks(scope, compute_dtype(precision)), seed=1)
    optimizer = make_optimizer("lamb", LEARNING_RATE, 0, 10**6, compiled=scope != "off")
    state = TrainState(model, optimizer, LossScale(enabled=precision == "fp16"))
    step = TrainStep(state, PretrainingObjective(), Workers(), StepSettings(seed=1))
    features = {name: tf.constant(value) for name, value in random_batch(settings).items()}
    number = iter(range(10**9))
    return lambda: float(step(features, next(number)).metrics[0])


if __name__ == "__main__":
    serve(make_update, lambda: {"tensorflow": tf.__version__})
