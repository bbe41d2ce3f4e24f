"""Replacements for some functions of `elementwise`, used where XLA compiles the whole step for a GPU.

Their handwritten gradients move fewer bytes: with TensorFlow's own gradients XLA keeps float32 arrays for the backward
pass, reads each of them several times, and chooses a layout of the states with the rows last, so that they must be
transposed for the matmuls. docs/gpu.md has the figures. Shape letters as in `elementwise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_tf.model.elementwise import (
    LAYER_NORM_EPSILON,
    Dropout,
    add_residual,
    as_float32,
    bias_gelu,
    by_head,
    drop,
    drop_rows,
    hide_keys,
    merge_heads,
    split_heads,
)


def separate(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies behind an XLA optimisation barrier: XLA neither fuses nor merges what reads them with earlier work."""
    return gen_xla_ops.xla_optimization_barrier(list(tensors))


def _sum_rows(rows_RxH: tf.Tensor) -> tf.Tensor:
    """Gradient of x + bias -> gradient of the bias, in float32."""
    return tf.reduce_sum(as_float32(rows_RxH), axis=0)


def _as_stored(x: tf.Tensor) -> tf.Tensor:
    """x unchanged, but XLA no longer sees that it is a rounded float32 value.

    Else XLA takes out the rounding before a sum, and stores the float32 value for it. A float's bits are all ones only
    in a NaN, which becomes another NaN.
    """
    bits = {2: tf.uint16, 4: tf.uint32}[x.dtype.size]
    return tf.bitcast(tf.minimum(tf.bitcast(x, bits), bits.max - 1), x.dtype)


def _row_mean(x_RxH: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(x_RxH, axis=-1, keepdims=True)


def _normalise(x_RxH: tf.Tensor, mean_Rx1: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """float32 -> x - mean [R, H], 1 / deviation [R, 1]."""
    centred = x_RxH - mean_Rx1
    return centred, tf.math.rsqrt(_row_mean(tf.square(centred)) + LAYER_NORM_EPSILON)


def _layer_norm_gradient(result_RxH, x_RxH, mean_Rx1, inverse_Rx1, gamma_H) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradient of LayerNorm's result -> gradients of x, gamma and beta, all float32."""
    normal = (x_RxH - mean_Rx1) * inverse_Rx1
    scaled = result_RxH * gamma_H
    of_x = inverse_Rx1 * (scaled - _row_mean(scaled) - normal * _row_mean(scaled * normal))
    return of_x, tf.reduce_sum(result_RxH * normal, axis=0), tf.reduce_sum(result_RxH, axis=0)


def embedding_norm_for_gpu(
    word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """`embedding_norm`; the positions may also be [B, S, H]."""

    @tf.custom_gradient
    def run(word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H):
        hidden_size, shape = word_BxSxH.shape[2], tf.shape(word_BxSxH)
        x_RxH = tf.reshape(word_BxSxH + position_SxH + segment_BxSxH, [-1, hidden_size])
        mean = _row_mean(x_RxH)
        centred, inverse = _normalise(x_RxH, mean)
        result = tf.reshape(centred * inverse * gamma_H + beta_H, shape)

        def gradient(result_BxSxH: tf.Tensor) -> list[tf.Tensor]:
            result_RxH = tf.reshape(drop(as_float32(result_BxSxH), dropout), [-1, hidden_size])
            of_x, of_gamma, of_beta = _layer_norm_gradient(result_RxH, x_RxH, mean, inverse, gamma_H)
            of_sum = tf.reshape(of_x, shape)
            of_position = of_sum if len(position_SxH.shape) == 3 else tf.reduce_sum(of_sum, axis=0)
            return [of_sum, of_position, of_sum, of_gamma, of_beta]

        return tf.cast(drop(result, dropout), dtype), gradient

    return run(*map(tf.convert_to_tensor, (word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H)))


def residual_norm_for_gpu(
    x_RxH, bias_H, residual_RxH, gamma_H, beta_H, sequence_length: int, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """`residual_norm`, keeping LayerNorm's argument in the compute type, and each row's mean and 1 / deviation."""

    @tf.custom_gradient
    def run(x_RxH, bias_H, residual_RxH, gamma_H, beta_H):
        exact = add_residual(x_RxH, bias_H, residual_RxH, sequence_length, dropout)
        # Separate, or XLA would keep it in float32. The mean, before rounding, is summed while the argument is written.
        argument, mean = separate([tf.cast(exact, dtype), _row_mean(exact)])
        centred, inverse = _normalise(as_float32(argument), mean)

        def gradient(result_RxH: tf.Tensor) -> list[tf.Tensor]:
            again = separate([result_RxH, argument, mean, inverse])
            result_RxH, argument_RxH, mean_Rx1, inverse_Rx1 = map(as_float32, again)
            of_argument, of_gamma, of_beta = _layer_norm_gradient(
                result_RxH, argument_RxH, mean_Rx1, inverse_Rx1, gamma_H
            )
            of_x = tf.cast(drop_rows(of_argument, sequence_length, dropout), dtype)
            return [of_x, _sum_rows(of_x), tf.cast(of_argument, dtype), of_gamma, of_beta]

        return tf.cast(centred * inverse * gamma_H + beta_H, dtype), gradient

    return run(*map(tf.convert_to_tensor, (x_RxH, bias_H, residual_RxH, gamma_H, beta_H)))


def split_heads_for_gpu(
    x_RxH, bias_H, sequence_length: int, num_heads: int, scale: float, *, dtype: tf.DType
) -> tf.Tensor:
    """`split_heads`, with the bias's gradient summed from the rounded gradient of x."""

    @tf.custom_gradient
    def run(x_RxH, bias_H):
        def gradient(result_BxNxSxD: tf.Tensor) -> list[tf.Tensor]:
            of_x = merge_heads(as_float32(result_BxNxSxD) * scale, dtype=dtype)
            return [of_x, _sum_rows(of_x)]

        return split_heads(x_RxH, bias_H, sequence_length, num_heads, scale, dtype=dtype), gradient

    return run(x_RxH, tf.convert_to_tensor(bias_H))


def attend_for_gpu(
    query_BxNxSxD, key_BxNxSxD, value_BxNxSxD, mask, dropout: Dropout | None, *, dtype: tf.DType
) -> tf.Tensor:
    """dropout(softmax of the masked scores) times the values, heads merged -> compute type [R, H].

    The values are multiplied by weights, exp(score - offset of the row), and the products are divided by the weights'
    sum: so the scores are read twice instead of three times (FlashAttention-2, arXiv 2307.08691, section 3.1). The
    offset is the row's largest score plus half the logarithm of the number of keys S. Then a weight is at most
    1 / sqrt(S), and the sum is between 1 / sqrt(S) and sqrt(S); float16 holds the weights as well as the gradients
    divided by the sum. For the backward pass the scores are kept, in the compute type, and each row's offset and sum.
    The mean of a row's gradient, weighted by the probabilities, is the dot product of the result and its gradient (the
    same paper), so computing it does not read the scores; it differs by the result's rounding.
    """
    _, num_heads, num_queries, _ = query_BxNxSxD.shape
    half_log = 0.5 * math.log(key_BxNxSxD.shape[2])
    scale = 1.0 if dropout is None else dropout.scale
    unscaled = None if dropout is None else Dropout(dropout.keep, 1.0)

    @tf.custom_gradient
    def run(query_BxNxSxD, key_BxNxSxD, value_BxNxSxD):
        # Separate, or with bfloat16 XLA would let the matmul write float32.
        (scores_BxNxSxS,) = separate([tf.matmul(query_BxNxSxD, key_BxNxSxD, transpose_b=True)])
        hidden_keys = hide_keys(mask)
        masked = as_float32(scores_BxNxSxS) + hidden_keys
        offset_BxNxSx1 = tf.reduce_max(masked, axis=-1, keepdims=True) + half_log
        weights_BxNxSxS = tf.exp(masked - offset_BxNxSx1)
        # Separate, or XLA would divide for each element.
        (factor_BxNxSx1,) = separate([scale / tf.reduce_sum(weights_BxNxSxS, axis=-1, keepdims=True)])
        dropped_BxNxSxS = tf.cast(drop(weights_BxNxSxS, unscaled), dtype)
        products_BxNxSxD = as_float32(tf.matmul(dropped_BxNxSxS, value_BxNxSxD))
        context_RxH = merge_heads(products_BxNxSxD * factor_BxNxSx1, dtype=dtype)

        def gradient(of_context_RxH: tf.Tensor) -> list[tf.Tensor]:
            (context_again_RxH,) = separate([context_RxH])  # or XLA would keep it in float32, too
            dot_RxH = as_float32(of_context_RxH) * as_float32(context_again_RxH)
            dot_BxNxSx1 = tf.reduce_sum(by_head(dot_RxH, num_queries, num_heads), axis=-1, keepdims=True)
            of_context_BxNxSxD = as_float32(by_head(of_context_RxH, num_queries, num_heads))
            of_products = tf.cast(of_context_BxNxSxD * factor_BxNxSx1, dtype)
            of_value = tf.matmul(dropped_BxNxSxS, of_products, transpose_a=True)
            of_dropped, scores, offset = separate(
                [tf.matmul(of_products, value_BxNxSxD, transpose_b=True), scores_BxNxSxS, offset_BxNxSx1]
            )
            mean_BxNxSx1 = dot_BxNxSx1 * factor_BxNxSx1 * (1.0 / scale)
            weights = tf.exp(as_float32(scores) + hidden_keys - offset)
            of_scores = tf.cast(weights * (drop(as_float32(of_dropped), unscaled) - mean_BxNxSx1), dtype)
            of_query, of_key = tf.matmul(of_scores, key_BxNxSxD), tf.matmul(of_scores, query_BxNxSxD, transpose_a=True)
            return [of_query, of_key, of_value]

        return context_RxH, gradient

    return run(query_BxNxSxD, key_BxNxSxD, value_BxNxSxD)


def _gelu_slope(x: tf.Tensor, exact: bool) -> tf.Tensor:
    """The derivative of `gelu`."""
    if exact:
        density = tf.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        return 0.5 + 0.5 * tf.math.erf(x / math.sqrt(2.0)) + x * density
    first, third = math.sqrt(2.0 / math.pi), 0.044715 * math.sqrt(2.0 / math.pi)
    square = x * x
    half = 0.5 + 0.5 * tf.tanh(x * (first + third * square))  # gelu(x) is x times this
    return half * (1.0 + x * (1.0 - half) * (2.0 * first + 6.0 * third * square))


def bias_gelu_for_gpu(x_RxI, bias_I, exact: bool, *, dtype: tf.DType) -> tf.Tensor:
    """`bias_gelu`, whose derivative is computed in the backward pass: no float32 array is kept for it.

    The bias's gradient is summed in the kernel that writes the gradient of x.
    """

    @tf.custom_gradient
    def run(x_RxI, bias_I):
        def gradient(result_RxI: tf.Tensor) -> list[tf.Tensor]:
            x_again, bias_again = separate([x_RxI, bias_I])
            slope = _gelu_slope(as_float32(x_again) + bias_again, exact)
            of_x = tf.cast(as_float32(result_RxI) * slope, dtype)
            return [of_x, _sum_rows(_as_stored(of_x))]

        return bias_gelu(x_RxI, bias_I, exact, dtype=dtype), gradient

    return run(x_RxI, tf.convert_to_tensor(bias_I))


def take_for_gpu(sequence_BxSxH: tf.Tensor, positions_BxP: tf.Tensor) -> tf.Tensor:
    """`tf.gather` with one batch dimension, whose gradient is a matmul with a one-hot matrix.

    With the gather's own gradient XLA would lay out all states with the rows last.
    """

    @tf.custom_gradient
    def run(sequence_BxSxH):
        def gradient(result_BxPxH: tf.Tensor) -> tf.Tensor:
            is_there = tf.one_hot(positions_BxP, sequence_BxSxH.shape[1], dtype=result_BxPxH.dtype)
            return tf.matmul(is_there, result_BxPxH, transpose_a=True)

        return tf.gather(sequence_BxSxH, positions_BxP, batch_dims=1), gradient

    return run(sequence_BxSxH)


def fork_for_gpu(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """x four times. Its gradients are added in an order that lets XLA accumulate them within the matmuls."""

    @tf.custom_gradient
    def run(x):
        def gradient(query, key, value, residual):
            return query + (key + (value + residual))

        return (tf.identity(x),) * 4, gradient

    return run(x)
