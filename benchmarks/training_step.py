"""One pre-training update side by side with plain Keras, interleaved, as ratios of medians.

The peer is the model as one writes it from Keras' own layers (Embedding, MultiHeadAttention,
LayerNormalization, Dropout, Dense), gradients accumulated over the same micro-batches in one
tf.function, clipped by global norm and applied by tensorflow-addons' LAMB. Both see the same random
batch; each variant makes one update in turn, so that a busy machine slows all of them alike.

    python benchmarks/training_step.py --bert_model mini --rounds 15
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import tensorflow as tf

from bert_tf.blocks import Blocks
from bert_tf.config import BertConfig, compute_dtype
from bert_tf.distributed import Workers
from bert_tf.losses import PretrainingObjective
from bert_tf.model import PretrainingModel
from bert_tf.optimization import LossScale, make_optimizer
from bert_tf.run_folder import provenance
from bert_tf.telemetry import pretraining_flops_per_sequence
from bert_tf.train_step import TrainStep

LEARNING_RATE, WARMUP_STEPS, TOTAL_STEPS = 1e-3, 10, 1000


def random_batch(config: BertConfig, args: argparse.Namespace) -> Dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    leading = (args.num_accumulation_steps, args.micro_batch_size)
    return {
        "input_ids": rng.integers(5, config.vocab_size, [*leading, args.seq_length]).astype(np.int32),
        "input_mask": np.ones([*leading, args.seq_length], np.int32),
        "segment_ids": np.zeros([*leading, args.seq_length], np.int32),
        "masked_lm_positions": rng.integers(1, args.seq_length, [*leading, args.predictions]).astype(np.int32),
        "masked_lm_ids": rng.integers(5, config.vocab_size, [*leading, args.predictions]).astype(np.int32),
        "masked_lm_weights": np.ones([*leading, args.predictions], np.float32),
        "next_sentence_labels": rng.integers(0, 2, [*leading, 1]).astype(np.int32),
        "example_weights": np.ones(leading, np.float32),
    }


def our_update(config: BertConfig, args: argparse.Namespace, scope: str, precision: str) -> Callable[[], float]:
    model = PretrainingModel(config, Blocks(scope, compute_dtype(precision)), seed=1)
    optimizer = make_optimizer("lamb", LEARNING_RATE, WARMUP_STEPS, TOTAL_STEPS, compiled=scope != "off")
    step = TrainStep(model, PretrainingObjective(), optimizer, Workers(), LossScale(enabled=precision == "fp16"),
                     num_accumulation_steps=args.num_accumulation_steps, micro_batch_size=args.micro_batch_size,
                     scope=scope, seed=1)
    features = {name: tf.constant(value) for name, value in random_batch(config, args).items()}
    number = iter(range(10**9))
    return lambda: float(step(features, next(number)).metrics[0])


def keras_update(config: BertConfig, args: argparse.Namespace) -> Callable[[], float]:
    """BERT from Keras' own layers, updated by tensorflow-addons' LAMB."""
    import tensorflow_addons as tfa

    layers, rate = tf.keras.layers, config.hidden_dropout_prob
    ids = tf.keras.Input([args.seq_length], args.micro_batch_size, dtype=tf.int32)
    mask = tf.keras.Input([args.seq_length], args.micro_batch_size, dtype=tf.int32)
    segments = tf.keras.Input([args.seq_length], args.micro_batch_size, dtype=tf.int32)
    positions = tf.keras.Input([args.predictions], args.micro_batch_size, dtype=tf.int32)
    words = layers.Embedding(config.vocab_size, config.hidden_size)
    x = words(ids) + layers.Embedding(2, config.hidden_size)(segments)
    x += layers.Embedding(config.max_position_embeddings, config.hidden_size)(tf.range(args.seq_length))
    x = layers.Dropout(rate)(layers.LayerNormalization(epsilon=1e-12)(x))
    for _ in range(config.num_hidden_layers):
        attended = layers.MultiHeadAttention(config.num_attention_heads, config.head_size, dropout=rate)(
            x, x, attention_mask=mask[:, tf.newaxis, :])
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(rate)(attended))
        wide = layers.Dense(config.intermediate_size, activation=lambda y: tf.nn.gelu(y, approximate=True))(x)
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dropout(rate)(layers.Dense(config.hidden_size)(wide)))
    masked = tf.gather(x, positions, batch_dims=1)
    masked = layers.Dense(config.hidden_size, activation=lambda y: tf.nn.gelu(y, approximate=True))(masked)
    masked = layers.LayerNormalization(epsilon=1e-12)(masked)
    pooled = layers.Dense(config.hidden_size, activation="tanh")(x[:, 0])
    model = tf.keras.Model([ids, mask, segments, positions], [masked, layers.Dense(2)(pooled)])
    output_bias = tf.Variable(tf.zeros([config.vocab_size]))
    variables = [*model.trainable_variables, output_bias]
    optimizer = tfa.optimizers.LAMB(LEARNING_RATE, weight_decay=0.01,
                                    exclude_from_weight_decay=["layer_normalization", "bias"])
    batch = {name: tf.constant(value) for name, value in random_batch(config, args).items()}

    @tf.function
    def update() -> tf.Tensor:
        sums = [tf.zeros(variable.shape) for variable in variables]
        for number in range(args.num_accumulation_steps):
            part = {name: value[number] for name, value in batch.items()}
            with tf.GradientTape() as tape:
                hidden, nsp_logits = model([part["input_ids"], part["input_mask"], part["segment_ids"],
                                            part["masked_lm_positions"]], training=True)
                logits = tf.einsum("bph,vh->bpv", hidden, words.embeddings) + output_bias
                mlm_loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
                    part["masked_lm_ids"], logits))
                nsp_loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
                    part["next_sentence_labels"][:, 0], nsp_logits))
                loss = mlm_loss + nsp_loss
            gradients = tape.gradient(loss, variables)
            sums = [total + tf.convert_to_tensor(gradient) for total, gradient in zip(sums, gradients)]
        sums = [total / args.num_accumulation_steps for total in sums]
        clipped, _ = tf.clip_by_global_norm(sums, 1.0)
        optimizer.apply_gradients(zip(clipped, variables))
        return mlm_loss

    return lambda: float(update())


def measure(variants: Dict[str, Callable[[], float]], rounds: int) -> Dict[str, List[float]]:
    for update in variants.values():
        update()  # traces and compiles
        update()
    seconds: Dict[str, List[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, update in variants.items():
            started = time.perf_counter()
            update()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bert_model", default="mini")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--seq_length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--micro_batch_size", type=int, default=16)
    parser.add_argument("--num_accumulation_steps", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    config = BertConfig.preset(args.bert_model, args.vocab_size)
    variants = {"plain Keras + TFA LAMB, fp32": keras_update(config, args)}
    for scope, precision in (("off", "fp32"), ("step", "fp32"), ("blocks", "fp32"), ("blocks", "bf16")):
        variants[f"this project, {precision}, scope {scope}"] = our_update(config, args, scope, precision)
    seconds = measure(variants, args.rounds)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    peer = next(iter(medians.values()))
    flops = pretraining_flops_per_sequence(config, args.seq_length, args.predictions)
    flops *= args.micro_batch_size * args.num_accumulation_steps
    facts = provenance()
    print(f"# One update of {args.bert_model}\n")
    print(f"{args.num_accumulation_steps} x {args.micro_batch_size} sequences of {args.seq_length}, "
          f"{args.predictions} predictions, vocabulary {args.vocab_size}; {args.rounds} interleaved rounds; "
          f"{facts['processor']}, {facts['num_cores']} cores, TensorFlow {tf.__version__}.\n")
    print("| variant | median ms | times plain Keras' rate | model GFLOP/s |\n|---|---|---|---|")
    for name, median in medians.items():
        print(f"| {name} | {1000 * median:.0f} | {peer / median:.2f} | {flops / median / 1e9:.0f} |")


if __name__ == "__main__":
    main()
