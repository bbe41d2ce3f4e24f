"""One NVLAMB update of BERT's variables, beside tensorflow-addons' LAMB.

Both start from the same random gradients with a norm over 1, so that both clip. If tensorflow-addons is missing, its
row is left out.

    python -m benchmarks lamb_update --bert_model base --rounds 15
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

import numpy as np

from benchmarks.frame import Bench
from bert_tf.base.tensorflow import tf
from bert_tf.bert_config import BertConfig
from bert_tf.model.heads import PretrainingModel
from bert_tf.optimizer.keras_optimizers import NVLAMB
from bert_tf.optimizer.update_rules import gradient_norms

try:
    import tensorflow_addons as tfa
except ImportError:
    tfa = None

NEEDS = "tensorflow-addons in this environment, or its row is left out"
ROUNDS, CORES = 15, 0
LEARNING_RATE = 1e-3
Variables, Gradients = list[tf.Variable], list[tf.Tensor]


def our_update(variables: Variables, gradients: Gradients) -> Callable[[], tf.Tensor]:
    optimizer = NVLAMB(LEARNING_RATE, compiled=True)
    optimizer.build(variables)

    def update() -> tf.Tensor:
        norm, _ = gradient_norms(gradients)
        optimizer.apply_update(gradients, variables, 1.0 / tf.maximum(norm, 1.0), tf.math.is_finite(norm))
        return norm

    return update


def addons_update(variables: Variables, gradients: Gradients) -> Callable[[], tf.Tensor]:
    optimizer = tfa.optimizers.LAMB(
        LEARNING_RATE,
        weight_decay=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        exclude_from_layer_adaptation=["no such name"],
    )

    def update() -> tf.Tensor:
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(clipped, variables))
        return norm

    return update


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bert_model", default="base")
    parser.add_argument("--vocab_size", type=int, default=30522)


def run(bench: Bench) -> None:
    options = bench.options
    model = PretrainingModel(BertConfig.preset(options.bert_model, options.vocab_size))
    weights = {variable.name.split(":")[0]: variable.numpy() for variable in model.trainable_variables}
    rng = np.random.default_rng(0)
    gradients = [tf.constant(1e-3 * rng.standard_normal(value.shape, np.float32)) for value in weights.values()]
    makers: dict[str, Any] = {"tensorflow-addons LAMB, tf.function": addons_update} if tfa else {}
    updates: dict[str, Callable[[], float]] = {}
    for name, make in {**makers, "NVLAMB, compiled by shape": our_update}.items():
        update = tf.function(make([tf.Variable(value, name=name) for name, value in weights.items()], gradients))
        updates[name] = lambda update=update: float(update())
        updates[name](), updates[name]()  # compiles
    millions = sum(value.size for value in weights.values()) / 1e6
    title = f"{options.bert_model}, {millions:.1f} million parameters, with clipping"
    bench.compare(title, updates, amount=millions, unit="million parameters", clock="wall")
