"""One NVLAMB update of BERT's variables, compared with tensorflow-addons' LAMB and a bound from memory bandwidth.

Both start from the same random gradients of norm over 1, so that both clip. The bound is the time of
ten passes over arrays of all parameters (read w, m, v, g for the norms, read them again, write w, m,
v), made as five copies on all cores, or on the GPU if there is one. Variants take turns, so that a
busy machine slows all of them alike. Without tensorflow-addons its row is left out.

    python benchmarks/lamb_update.py --bert_model base --rounds 15
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import tensorflow as tf

from bert_tf.config import BertConfig
from bert_tf.model.heads import PretrainingModel
from bert_tf.optimizer.keras_optimizers import NVLAMB
from bert_tf.optimizer.update_rules import gradient_norms
from bert_tf.run.run_folder import provenance

try:
    import tensorflow_addons as tfa
except ImportError:
    tfa = None

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
    if tf.config.list_physical_devices("GPU"):
        return device_floor(num_parameters)
    source, target = np.ones(num_parameters, np.float32), np.empty(num_parameters, np.float32)
    num_threads = os.cpu_count() or 1
    pairs = list(zip(np.array_split(target, num_threads), np.array_split(source, num_threads)))
    pool = ThreadPoolExecutor(num_threads)

    def copy() -> None:
        for _ in range(NUM_FLOOR_COPIES):
            list(pool.map(lambda pair: np.copyto(*pair), pairs))

    return copy


def device_floor(num_parameters: int) -> Callable[[], None]:
    source = tf.ones([num_parameters])
    copy = tf.function(lambda values: values + 1.0, jit_compile=True)

    def copies() -> None:
        values = source
        for _ in range(NUM_FLOOR_COPIES):
            values = copy(values)
        float(values[0])  # waits for the device

    return copies


class Comparison(NamedTuple):
    num_parameters: int
    num_variables: int
    num_shapes: int
    first: dict[str, float]  # seconds of each variant's first call
    seconds: dict[str, list[float]]  # seconds of `rounds` further calls, after a second call for warm-up


def compare(bert_model: str, vocab_size: int, rounds: int) -> Comparison:
    """Measures all variants in turns; the first one is tensorflow-addons', if it is installed."""
    model = PretrainingModel(BertConfig.preset(bert_model, vocab_size))
    weights = {variable.name.split(":")[0]: variable.numpy() for variable in model.trainable_variables}
    num_parameters = sum(value.size for value in weights.values())
    rng = np.random.default_rng(0)
    gradients = [tf.constant(1e-3 * rng.standard_normal(value.shape, np.float32)) for value in weights.values()]
    del model
    variants: dict[str, Callable[[], None]] = {}
    if tfa is not None:
        variants["tensorflow-addons LAMB, tf.function"] = addons_update(weights, gradients)
    variants["NVLAMB, plain graph"] = our_update(weights, gradients, compiled=False)
    variants["NVLAMB, compiled by shape"] = our_update(weights, gradients, compiled=True)
    variants["floor: ten passes over the arrays"] = floor(num_parameters)
    first: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for name, update in variants.items():
        started = time.perf_counter()
        update()
        first[name] = time.perf_counter() - started
        update()
    for _ in range(rounds):
        for name, update in variants.items():
            started = time.perf_counter()
            update()
            seconds[name].append(time.perf_counter() - started)
    return Comparison(num_parameters, len(weights), len({value.shape for value in weights.values()}), first, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert_model", default="base")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    found = compare(args.bert_model, args.vocab_size, args.rounds)
    medians = {name: statistics.median(values) for name, values in found.seconds.items()}
    first, peer = next(iter(medians.items()))
    facts = provenance()
    print(f"# One LAMB update of {args.bert_model}, with clipping\n")
    print(
        f"{found.num_parameters / 1e6:.1f} million parameters in {found.num_variables} variables of "
        f"{found.num_shapes} shapes; {args.rounds} interleaved rounds; "
        f"{facts['processor']}, {facts['num_cores']} cores, TensorFlow {tf.__version__}.\n"
    )
    print(f"Compared with: {first}.\n")
    print("| variant | median ms | minimum ms | times its rate | first call s |\n|---|---|---|---|---|")
    for name, median in medians.items():
        print(
            f"| {name} | {1000 * median:.0f} | {1000 * min(found.seconds[name]):.0f} | {peer / median:.2f} | "
            f"{found.first[name]:.1f} |"
        )


if __name__ == "__main__":
    main()
