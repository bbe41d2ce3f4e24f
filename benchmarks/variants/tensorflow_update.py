"""How the TensorFlow peers accumulate: gradients of all micro-batches in one tf.function, then clip and apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np
import tensorflow as tf


def accumulated_update(
    logits: Callable, variables: Sequence[tf.Variable], optimizer, batch: dict[str, np.ndarray]
) -> Callable[[], float]:
    """`logits(features)` -> (masked-LM logits [B, P, V], next-sentence logits [B, 2]) of one micro-batch."""
    features = {name: tf.constant(values) for name, values in batch.items()}
    num_micro_batches = len(batch["input_ids"])
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits

    @tf.function
    def update() -> tf.Tensor:
        sums = [tf.zeros(variable.shape) for variable in variables]
        for number in range(num_micro_batches):
            part = {name: values[number] for name, values in features.items()}
            with tf.GradientTape() as tape:
                mlm_logits, nsp_logits = logits(part)
                loss = tf.reduce_mean(cross_entropy(part["masked_lm_ids"], mlm_logits)) + tf.reduce_mean(
                    cross_entropy(part["next_sentence_labels"][:, 0], nsp_logits)
                )
            gradients = tape.gradient(loss, variables)
            sums = [
                total if gradient is None else total + tf.convert_to_tensor(gradient)
                for total, gradient in zip(sums, gradients)
            ]
        clipped, _ = tf.clip_by_global_norm([total / num_micro_batches for total in sums], 1.0)
        optimizer.apply_gradients(zip(clipped, variables))
        return loss

    return lambda: float(update())
