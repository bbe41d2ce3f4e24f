"""One NVLAMB update of BERT's variables, beside tensorflow-addons' LAMB and a bound from memory bandwidth.

Both start from the same random gradients with a norm over 1, so that both clip. The bound is the time of ten passes
over arrays of all parameters, about what an update takes (it reads w, m, v, g for the norms, reads them again and
writes w, m, v), measured as five copies on all cores. If tensorflow-addons is missing, its row is left out.

    python -m benchmarks lamb_update --bert_model base --rounds 15
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

import numpy as np

from benchmarks.child import timed
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
NUM_FLOOR_COPIES = 5


def our_update(weights: dict[str, np.ndarray], gradients: list[tf.Tensor], compiled: bool) -> Callable[[], None]:
    variables = [tf.Variable(value, name=name) for name, value in weights.items()]
    optimizer = NVLAMB(LEARNING_RATE, compiled=compiled)
    optimizer.build(variables)

    @tf.function
    def update() -> tf.Tensor:
        norm, _ = gradient_norms(gradients)
        optimizer.apply_update(gradients, variables, 1.0 / tf.maximum(norm, 1.0), tf.math.is_finite(norm))
        return norm

    return lambda: float(update())


def addons_update(weights: dict[str, np.ndarray], gradients: list[tf.Tensor]) -> Callable[[], None]:
    variables = [tf.Variable(value, name=name) for name, value in weights.items()]
    optimizer = tfa.optimizers.LAMB(
        LEARNING_RATE,
        weight_decay=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        exclude_from_layer_adaptation=["no such name"],
    )

    @tf.function
    def update() -> tf.Tensor:
        clipped, norm = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(zip(clipped, variables))
        return norm

    return lambda: float(update())


def floor(num_parameters: int) -> Callable[[], None]:
    source, target = np.ones(num_parameters, np.float32), np.empty(num_parameters, np.float32)
    num_threads = os.cpu_count() or 1
    pairs = list(zip(np.array_split(target, num_threads), np.array_split(source, num_threads)))
    pool = ThreadPoolExecutor(num_threads)

    def copy() -> None:
        for _ in range(NUM_FLOOR_COPIES):
            list(pool.map(lambda pair: np.copyto(*pair), pairs))

    return copy


def make_updates(bert_model: str, vocab_size: int) -> tuple[dict[str, Callable[[], None]], int, dict[str, float]]:
    """All variants, the number of parameters, and the seconds of each one's first call; each has been called twice."""
    model = PretrainingModel(BertConfig.preset(bert_model, vocab_size))
    weights = {variable.name.split(":")[0]: variable.numpy() for variable in model.trainable_variables}
    num_parameters = sum(value.size for value in weights.values())
    rng = np.random.default_rng(0)
    gradients = [tf.constant(1e-3 * rng.standard_normal(value.shape, np.float32)) for value in weights.values()]
    del model
    updates: dict[str, Callable[[], None]] = {}
    if tfa is not None:
        updates["tensorflow-addons LAMB, tf.function"] = addons_update(weights, gradients)
    updates["NVLAMB, plain graph"] = our_update(weights, gradients, compiled=False)
    updates["NVLAMB, compiled by shape"] = our_update(weights, gradients, compiled=True)
    updates["floor: ten passes over the arrays"] = floor(num_parameters)
    first = {name: timed(update)[0] for name, update in updates.items()}
    for update in updates.values():
        update()
    return updates, num_parameters, first


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bert_model", default="base")
    parser.add_argument("--vocab_size", type=int, default=30522)


def run(bench: Bench) -> None:
    options = bench.options
    updates, num_parameters, first = make_updates(options.bert_model, options.vocab_size)
    title = f"{options.bert_model}, {num_parameters / 1e6:.1f} million parameters, with clipping"
    bench.compare(title, updates, amount=num_parameters / 1e6, unit="million parameters", clock="wall")
    bench.table("First calls", ["", "seconds"], list(first.items()))
