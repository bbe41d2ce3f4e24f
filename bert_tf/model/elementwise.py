"""The element-wise functions between the matmuls. `blocks` decides how XLA compiles them.

They compute in float32; an output that feeds a matmul is cast to the compute type, `dtype`.

Shape letters: B batch, S sequence, H hidden, N heads, D head size, I intermediate, R = B*S rows,
P masked positions, C classes, V vocabulary (padded: W).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12  # Google's value
# Added to the scores of padding, as in Google's code: exp(-10000) is 0 in float32.
MASKED_SCORE = -10000.0


class Dropout(NamedTuple):
    """The elements that a dropout keeps, and the factor by which it multiplies them."""

    keep: tf.Tensor  # bool, with the input's shape
    scale: float


def drop(x: tf.Tensor, dropout: Dropout | None) -> tf.Tensor:
    return x if dropout is None else tf.where(dropout.keep, x * dropout.scale, 0.0)


def as_float32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def layer_norm(x: tf.Tensor, gamma_H: tf.Tensor, beta_H: tf.Tensor) -> tf.Tensor:
    """Layer normalisation (arXiv 1607.06450) over the last axis, float32 in and out."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * gamma_H + beta_H


def gelu(x: tf.Tensor, exact: bool) -> tf.Tensor:
    """GELU (arXiv 1606.08415): with erf if `exact`, else the tanh approximation of Google's BERT code."""
    if exact:
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def embedding_norm(
    word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """dropout(LayerNorm(word + position + segment)) -> compute type [B, S, H]."""
    embedded = word_BxSxH + position_SxH + segment_BxSxH
    return tf.cast(drop(layer_norm(embedded, gamma_H, beta_H), dropout), dtype)


def by_head(x_RxH: tf.Tensor, sequence_length: int, num_heads: int) -> tf.Tensor:
    """[R, H] -> [B, N, S, D]."""
    head_size = x_RxH.shape[1] // num_heads
    return tf.transpose(tf.reshape(x_RxH, [-1, sequence_length, num_heads, head_size]), [0, 2, 1, 3])


def split_heads(x_RxH, bias_H, sequence_length: int, num_heads: int, scale: float, *, dtype: tf.DType) -> tf.Tensor:
    """(x + bias) * scale, split into heads -> compute type [B, N, S, D]."""
    return tf.cast(by_head((as_float32(x_RxH) + bias_H) * scale, sequence_length, num_heads), dtype)


def merge_heads(x_BxNxSxD, *, dtype: tf.DType) -> tf.Tensor:
    """[B, N, S, D] -> compute type [R, H]."""
    _, num_heads, _, head_size = x_BxNxSxD.shape
    x = tf.transpose(x_BxNxSxD, [0, 2, 1, 3])
    return tf.cast(tf.reshape(x, [-1, num_heads * head_size]), dtype)


def hide_keys(mask) -> tf.Tensor:
    """The term added to the scores, for a mask of the keys [B, S] or of each query's keys [B, S, S]."""
    heads_and_queries = (slice(None), *[tf.newaxis] * (4 - len(mask.shape)))
    return (1.0 - as_float32(mask))[heads_and_queries] * MASKED_SCORE


def masked_softmax(scores_BxNxSxS, mask, dropout: Dropout | None, *, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    """p = softmax over the keys whose mask is 1 -> dropout(p) in the compute type, p in float32 [B, N, S, S]."""
    scores = as_float32(scores_BxNxSxS) + hide_keys(mask)
    weights = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
    probabilities = weights / tf.reduce_sum(weights, axis=-1, keepdims=True)
    return tf.cast(drop(probabilities, dropout), dtype), probabilities


def masked_softmax_gradient(
    gradient_BxNxSxS, probabilities_BxNxSxS, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """Gradient of `masked_softmax`'s result -> gradient of the scores, in the compute type."""
    gradient = drop(as_float32(gradient_BxNxSxS), dropout)
    mean = tf.reduce_sum(gradient * probabilities_BxNxSxS, axis=-1, keepdims=True)
    return tf.cast(probabilities_BxNxSxS * (gradient - mean), dtype)


def drop_rows(x_RxH: tf.Tensor, sequence_length: int, dropout: Dropout | None) -> tf.Tensor:
    """dropout(x), where the dropout's shape is [B, S, H]."""
    hidden_size = x_RxH.shape[1]
    return tf.reshape(drop(tf.reshape(x_RxH, [-1, sequence_length, hidden_size]), dropout), [-1, hidden_size])


def add_residual(x_RxH, bias_H, residual_RxH, sequence_length: int, dropout: Dropout | None) -> tf.Tensor:
    return drop_rows(as_float32(x_RxH) + bias_H, sequence_length, dropout) + as_float32(residual_RxH)


def residual_norm(
    x_RxH, bias_H, residual_RxH, gamma_H, beta_H, sequence_length: int, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """LayerNorm(residual + dropout(x + bias)) -> compute type [R, H]. The dropout's shape is [B, S, H]."""
    x = add_residual(x_RxH, bias_H, residual_RxH, sequence_length, dropout)
    return tf.cast(layer_norm(x, gamma_H, beta_H), dtype)


def bias_gelu(x_RxI, bias_I, exact: bool, *, dtype: tf.DType) -> tf.Tensor:
    """GELU(x + bias) -> compute type [R, I]."""
    return tf.cast(gelu(as_float32(x_RxI) + bias_I, exact), dtype)


def bias_gelu_norm(x_RxH, bias_H, gamma_H, beta_H, exact: bool, *, dtype: tf.DType) -> tf.Tensor:
    """LayerNorm(GELU(x + bias)), the transform of the masked-LM head -> compute type [R, H]."""
    return tf.cast(layer_norm(gelu(as_float32(x_RxH) + bias_H, exact), gamma_H, beta_H), dtype)


def bias_tanh(x_BxH, bias_H, *, dtype: tf.DType) -> tf.Tensor:
    """tanh(x + bias), the pooler's activation -> compute type [B, H]."""
    return tf.cast(tf.tanh(as_float32(x_BxH) + bias_H), dtype)


def apply_dropout(x_BxH, dropout: Dropout | None, *, dtype: tf.DType) -> tf.Tensor:
    """dropout(x), the last one before a classifier -> compute type [B, H]."""
    return tf.cast(drop(as_float32(x_BxH), dropout), dtype)


def bias_logits(x_RxW, bias_W, num_classes: int) -> tf.Tensor:
    """x + bias, without the padding columns -> float32 [R, num_classes]."""
    return (as_float32(x_RxW) + bias_W)[:, :num_classes]


def _is_label(logits_RxC, labels_R) -> tf.Tensor:
    # A comparison instead of gather or one_hot, because XLA fuses it into one loop. In float32 (exact up to 2^24
    # classes), because without XLA TensorFlow compares int32 on the host, even on GPU machines.
    return as_float32(labels_R)[:, tf.newaxis] == tf.range(float(logits_RxC.shape[1]))[tf.newaxis, :]


def cross_entropy(logits_RxC, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums over the rows of weight * cross-entropy, and of weight * (label has the largest logit).

    float32 logits [R, C], integer labels [R], float32 weights [R] -> two float32 scalars, and the
    log-sum-exp of each row's logits [R].
    """
    peak = tf.reduce_max(logits_RxC, axis=-1, keepdims=True)
    log_sum_R = tf.math.log(tf.reduce_sum(tf.exp(logits_RxC - peak), axis=-1)) + peak[:, 0]
    label_logit = tf.reduce_sum(tf.where(_is_label(logits_RxC, labels_R), logits_RxC, 0.0), axis=-1)
    correct = as_float32(label_logit >= peak[:, 0])
    return tf.reduce_sum((log_sum_R - label_logit) * weights_R), tf.reduce_sum(correct * weights_R), log_sum_R


def cross_entropy_gradient(gradient, logits_RxC, labels_R, weights_R, log_sum_R) -> tf.Tensor:
    """Gradient of `cross_entropy`'s first sum -> gradient of the logits [R, C]."""
    probabilities = tf.exp(logits_RxC - log_sum_R[:, tf.newaxis])
    difference = tf.where(_is_label(logits_RxC, labels_R), probabilities - 1.0, probabilities)
    return difference * (weights_R * gradient)[:, tf.newaxis]
