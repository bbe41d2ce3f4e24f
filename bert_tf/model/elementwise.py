"""The formulas between the matmuls, in float32. Backends decide how they are compiled, and the types of their results.

Shape letters: B batch, S sequence, H hidden, N heads, D head size, R = B*S rows, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from bert_tf.base.tensorflow import bind_gradient, tf
from bert_tf.model.visibility import VisibleKeys

# Added to the scores of padding, as in Google's code: exp(-10000) is 0 in float32.
MASKED_SCORE = -10000.0


class Dropout(NamedTuple):
    """The elements that a dropout keeps, and the factor by which it multiplies them."""

    keep: tf.Tensor  # bool, with the input's shape
    scale: float


def with_gradient(function: Callable, *inputs: Any) -> Any:
    """The results of function(*inputs), which returns them and their gradient function; variables are read first."""
    results = tf.custom_gradient(function)(*map(tf.convert_to_tensor, inputs))
    if not tf.executing_eagerly():
        bind_gradient(tf.nest.flatten(results)[0])
    return results


def as_float32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def drop(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    return x if dropout is None else tf.where(dropout.keep, x * dropout.scale, 0.0)


def drop_rows(x_RxH: tf.Tensor, sequence_length: int, dropout: Dropout | None) -> tf.Tensor:
    """dropout(x), where the dropout's shape is [B, S, H]."""
    hidden_size = x_RxH.shape[1]
    return tf.reshape(drop(tf.reshape(x_RxH, [-1, sequence_length, hidden_size]), dropout), [-1, hidden_size])


def add_residual(x_RxH, bias_H, residual_RxH, sequence_length: int, dropout: Dropout | None) -> tf.Tensor:
    return drop_rows(as_float32(x_RxH) + bias_H, sequence_length, dropout) + as_float32(residual_RxH)


def row_mean(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x, axis=-1, keepdims=True)


def normalise(x: tf.Tensor, mean: tf.Tensor, epsilon: float) -> tuple[tf.Tensor, tf.Tensor]:
    """x - mean, and 1 / deviation of each row; epsilon is added to the variance."""
    centred = x - mean
    return centred, tf.math.rsqrt(row_mean(tf.square(centred)) + epsilon)


def layer_norm(x: tf.Tensor, gamma_H: tf.Tensor, beta_H: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Layer normalisation (arXiv 1607.06450) over the last axis."""
    centred, inverse = normalise(x, row_mean(x), epsilon)
    return centred * inverse * gamma_H + beta_H


def gelu(x: tf.Tensor, is_exact: bool) -> tf.Tensor:
    """GELU (arXiv 1606.08415): with erf if `is_exact`, else the tanh approximation of Google's BERT code."""
    if is_exact:
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def length_of(values_BxS: tf.Tensor) -> int | tf.Tensor:
    """The size of the second dimension, as a tensor if it is not static (Keras, of rows of two lengths)."""
    static = values_BxS.shape[1]
    return tf.shape(values_BxS)[1] if static is None else static


def split_by_head(x_RxH: tf.Tensor, sequence_length: int | tf.Tensor, num_heads: int) -> tf.Tensor:
    """[R, H] -> [B, N, S, D]."""
    head_size = x_RxH.shape[1] // num_heads
    return tf.transpose(tf.reshape(x_RxH, [-1, sequence_length, num_heads, head_size]), [0, 2, 1, 3])


def hide_keys(visible: VisibleKeys) -> tf.Tensor:
    """The term that is added to the scores: 0 for keys that are seen, else `MASKED_SCORE`."""
    return (1.0 - visible.mask()) * MASKED_SCORE


def is_label(logits_RxC, labels_R) -> tf.Tensor:
    """Whether a column is its row's label: bool [R, C].

    A comparison instead of gather or one_hot, because XLA fuses it into one loop. In float32 (exact up to 2^24
    classes), because without XLA TensorFlow compares int32 on the host, even on GPU machines.
    """
    return as_float32(labels_R)[:, tf.newaxis] == tf.range(float(logits_RxC.shape[1]))[tf.newaxis, :]
