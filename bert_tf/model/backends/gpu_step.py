"""The backend for a step that XLA compiles as a whole for a GPU.

Handwritten gradients move fewer bytes: with TensorFlow's own gradients XLA keeps float32 arrays for the backward
pass, reads each of them several times, and chooses a layout of the states with the rows last, so that they must be
transposed for the matmuls. docs/LOG.md has the figures. `d_x` is the gradient of x.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from bert_tf.base.tensorflow import optimization_barrier, tf
from bert_tf.model.backends.kernel_check import require_agreement
from bert_tf.model.backends.plain import PlainInStep, WordLogits
from bert_tf.model.elementwise import (
    Dropout,
    add_residual,
    as_float32,
    drop,
    drop_rows,
    hide_keys,
    normalise,
    row_mean,
    split_by_head,
    with_gradient,
)
from bert_tf.model.kernels import compilation
from bert_tf.model.kernels.compilation import Kernel, KernelsUnavailable
from bert_tf.model.kernels.fused_attention import FusedAttention
from bert_tf.model.kernels.fused_blocks import AddNorm, BiasGelu, WordLoss
from bert_tf.model.kernels.fused_operation import FusedOperation, Site
from bert_tf.model.lookup_gradient import add_in_fixed_order
from bert_tf.model.randomness import draw_decisions, keep_mask, keep_scale
from bert_tf.model.visibility import VisibleKeys


class GpuStep(PlainInStep):
    """Scope "step" on a GPU.

    Where one of our own kernels (`bert_tf.model.kernels`) fits, it computes; else XLA does.

    Args:
      kernels: "checked" (a kernel is used if it computes what XLA does in a small example), "unchecked" or "none".
    """

    def __init__(self, compute_dtype: str = "float32", kernels: str = "checked"):
        super().__init__(compute_dtype)
        self._kernel_use = kernels
        # By kind and shape; None: no kernels for these.
        self._operations: dict[tuple[Any, ...], FusedOperation | None] = {}
        self._checked: set[tuple[Kernel, ...]] = set()  # operations of several shapes may have kernels in common
        self._failures: dict[str, str] = {}  # reasons by title

    @property
    def remarks(self) -> list[str]:
        used = dict.fromkeys(operation.title for operation in self._operations.values() if operation)
        lines = [f"in kernels of our own: {', '.join(used)}"] * bool(used)
        for reason in dict.fromkeys(self._failures.values()):
            titles = [title for title, why in self._failures.items() if why == reason and title not in used]
            lines += [f"without kernels of our own, by XLA: {', '.join(titles)}; {reason}"] * bool(titles)
        failures = dict.fromkeys(compilation.cache_failures)
        return lines + [f"kernels of our own are compiled at each start, not kept: {reason}" for reason in failures]

    def _find(self, kind: type[FusedOperation], *shape: Any) -> Any:
        """The operation with kernels for a shape, in the compute type; None if there are none for it.

        None in the shape: an unknown number of rows, or a dropout that kernels cannot draw.
        """
        shape = (*shape, self.compute_dtype)
        key = (kind, *shape)
        if self._kernel_use == "none" or None in shape:
            return None
        if key not in self._operations:
            try:
                self._operations[key] = operation = kind(*shape)
                if self._kernel_use == "checked" and operation.kernels not in self._checked:
                    dtype = self.compute_dtype.name
                    require_agreement(operation, GpuStep(dtype, "unchecked"), GpuStep(dtype, "none"))
                    self._checked.add(operation.kernels)
            except KernelsUnavailable as reason:
                self._operations[key] = None
                self._failures.setdefault(kind.title, str(reason))
        return self._operations[key]

    def dropout(self, key, site, rate, shape, positions_BxP=None):
        if key is None or rate == 0:
            return None
        return _LazyDropout(rate, key.at(site), tuple(shape), positions_BxP)

    def attention(self, projected, visible: VisibleKeys, dropout, num_heads: int, num_queries: int) -> tf.Tensor:
        if num_queries == visible.key_numbers_BxS.shape[1]:
            (rate, site), (inputs, biases) = _rate_and_site(dropout), zip(*projected)
            num_rows, hidden_size = inputs[0].shape
            is_packed = visible.query_numbers_BxQ is not None
            shape = num_rows, num_queries, num_heads, hidden_size // num_heads, rate, is_packed
            if fused := self._find(FusedAttention, *shape):
                return fused(inputs, biases, visible, site)
        return super().attention(projected, visible, dropout, num_heads, num_queries)

    def gather_positions(self, sequence_BxSxH, positions_BxP) -> tf.Tensor:
        """The gradient is a matmul with ones and zeros: the gather's own makes XLA lay out all states rows last."""

        def run(sequence_BxSxH):
            def gradient(d_result_BxPxH: tf.Tensor) -> tf.Tensor:
                ones = tf.one_hot(positions_BxP, sequence_BxSxH.shape[1], dtype=d_result_BxPxH.dtype)
                return tf.matmul(ones, d_result_BxPxH, transpose_a=True)

            return tf.gather(sequence_BxSxH, positions_BxP, batch_dims=1), gradient

        return with_gradient(run, sequence_BxSxH)

    def look_up_segments(self, segment_ids_BxS, table_TxH) -> tf.Tensor:
        """Not a matmul, because the gradient of such a narrow one would keep few multiprocessors busy."""
        table = tf.convert_to_tensor(table_TxH)
        one_hot_BxSxT = tf.one_hot(segment_ids_BxS, table.shape[0])
        return sum(one_hot_BxSxT[:, :, row, tf.newaxis] * table[row] for row in range(table.shape[0]))

    def add_looked_up(self, total_VxH: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
        """The total goes through a barrier, or XLA would fuse it into this addition and not update it in place."""
        (total_VxH,) = optimization_barrier(total_VxH)
        return add_in_fixed_order(total_VxH, rows)

    def fan_out(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """The gradients are added in an order that lets XLA accumulate them within the matmuls."""

        def run(x):
            return (tf.identity(x),) * 4, lambda query, key, value, residual: query + (key + (value + residual))

        return with_gradient(run, x)

    def embedding_norm(
        self, word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H, epsilon: float, dropout: Dropout | None
    ) -> tf.Tensor:
        def run(word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H):
            hidden_size, shape = word_BxSxH.shape[2], tf.shape(word_BxSxH)
            x_RxH = tf.reshape(word_BxSxH + position_SxH + segment_BxSxH, [-1, hidden_size])
            mean = row_mean(x_RxH)
            centred, inverse = normalise(x_RxH, mean, epsilon)
            result = tf.reshape(centred * inverse * gamma_H + beta_H, shape)

            def gradient(d_result: tf.Tensor) -> list[tf.Tensor]:
                # Behind a barrier, or XLA of TensorFlow 2.20 would keep the normalised rows, too.
                d_result, x, mean_Rx1, inverse_Rx1 = optimization_barrier(d_result, x_RxH, mean, inverse)
                d_result = tf.reshape(drop(as_float32(d_result), dropout), [-1, hidden_size])
                d_x, d_gamma, d_beta = _layer_norm_gradient(d_result, x, mean_Rx1, inverse_Rx1, gamma_H)
                d_sum = tf.reshape(d_x, shape)
                d_position = d_sum
                if len(position_SxH.shape) == 2:
                    # Summed as rows of S*H elements, or XLA would write other arrays of the shape with the batch last.
                    d_position = tf.reshape(_sum_rows(tf.reshape(d_x, [shape[0], -1])), shape[1:])
                return [d_sum, d_position, d_sum, d_gamma, d_beta]

            return self._rounded(drop(result, dropout)), gradient

        return with_gradient(run, word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H)

    def residual_norm(
        self, x_RxH, bias_H, residual_RxH, gamma_H, beta_H, epsilon: float, sequence_length: int, dropout
    ) -> tf.Tensor:
        """Keeps LayerNorm's argument in the compute type, and each row's mean and 1 / deviation."""
        (rate, site), (num_rows, hidden_size) = _rate_and_site(dropout), x_RxH.shape
        if fused := self._find(AddNorm, num_rows, sequence_length, hidden_size, rate, epsilon):
            return fused(x_RxH, bias_H, residual_RxH, gamma_H, beta_H, site)

        def run(x_RxH, bias_H, residual_RxH, gamma_H, beta_H):
            exact = add_residual(x_RxH, bias_H, residual_RxH, sequence_length, dropout)
            # Behind a barrier, or XLA would keep the argument in float32. The mean is taken before rounding, while the
            # argument is written.
            argument, mean = optimization_barrier(self._rounded(exact), row_mean(exact))
            centred, inverse = normalise(as_float32(argument), mean, epsilon)

            def gradient(d_result: tf.Tensor) -> list[tf.Tensor]:
                d_result, x, mean_Rx1, inverse_Rx1 = map(
                    as_float32, optimization_barrier(d_result, argument, mean, inverse)
                )
                d_argument, d_gamma, d_beta = _layer_norm_gradient(d_result, x, mean_Rx1, inverse_Rx1, gamma_H)
                d_x = self._rounded(drop_rows(d_argument, sequence_length, dropout))
                return [d_x, _sum_rows(d_x), self._rounded(d_argument), d_gamma, d_beta]

            return self._rounded(centred * inverse * gamma_H + beta_H), gradient

        return with_gradient(run, x_RxH, bias_H, residual_RxH, gamma_H, beta_H)

    def split_heads(self, x_RxH, bias_H, sequence_length: int, num_heads: int, scale: float) -> tf.Tensor:
        """The bias's gradient is summed from the rounded gradient of x."""
        split, merge = super().split_heads, self.merge_heads

        def run(x_RxH, bias_H):
            def gradient(d_result_BxNxSxD: tf.Tensor) -> list[tf.Tensor]:
                d_x = merge(as_float32(d_result_BxNxSxD) * scale)
                return [d_x, _sum_rows(d_x)]

            return split(x_RxH, bias_H, sequence_length, num_heads, scale), gradient

        return with_gradient(run, x_RxH, bias_H)

    def attend(
        self, query_BxNxSxD, key_BxNxSxD, value_BxNxSxD, visible: VisibleKeys, dropout: Dropout | None
    ) -> tf.Tensor:
        """The values are multiplied by weights, exp(score - the row's offset), and the products are divided by the
        weights' sum, so that the scores are read twice instead of three times (FlashAttention-2, arXiv 2307.08691,
        section 3.1). The offset is the row's largest score plus half the logarithm of the number of keys S. Then a
        weight is at most 1 / sqrt(S), and the sum is between 1 / sqrt(S) and sqrt(S); float16 holds the weights as well
        as the gradients divided by the sum. For the backward pass the scores are kept, in the compute type, and each
        row's offset and sum. The mean of a row's gradient, weighted by the probabilities, is the dot product of the
        result and its gradient (the same paper), so computing it does not read the scores; it differs by the result's
        rounding.
        """
        _, num_heads, num_queries, _ = query_BxNxSxD.shape
        half_log = 0.5 * math.log(key_BxNxSxD.shape[2])
        scale = 1.0 if dropout is None else dropout.scale
        unscaled = None if dropout is None else Dropout(dropout.keep, 1.0)

        def run(query_BxNxSxD, key_BxNxSxD, value_BxNxSxD):
            # Behind a barrier, or with bfloat16 XLA would let the matmul write float32.
            (scores_BxNxSxS,) = optimization_barrier(tf.matmul(query_BxNxSxD, key_BxNxSxD, transpose_b=True))
            hidden_keys = hide_keys(visible)
            masked = as_float32(scores_BxNxSxS) + hidden_keys
            offset_BxNxSx1 = tf.reduce_max(masked, axis=-1, keepdims=True) + half_log
            weights_BxNxSxS = tf.exp(masked - offset_BxNxSx1)
            # Behind a barrier, or XLA would divide for each element.
            (factor_BxNxSx1,) = optimization_barrier(scale / tf.reduce_sum(weights_BxNxSxS, axis=-1, keepdims=True))
            dropped_BxNxSxS = self._rounded(drop(weights_BxNxSxS, unscaled))
            products_BxNxSxD = as_float32(tf.matmul(dropped_BxNxSxS, value_BxNxSxD))
            context_RxH = self.merge_heads(products_BxNxSxD * factor_BxNxSx1)

            def gradient(d_context_RxH: tf.Tensor) -> list[tf.Tensor]:
                (context_again_RxH,) = optimization_barrier(context_RxH)  # or XLA would keep it in float32, too
                dot_RxH = as_float32(d_context_RxH) * as_float32(context_again_RxH)
                dot_BxNxSx1 = tf.reduce_sum(split_by_head(dot_RxH, num_queries, num_heads), axis=-1, keepdims=True)
                d_context_BxNxSxD = as_float32(split_by_head(d_context_RxH, num_queries, num_heads))
                d_products = self._rounded(d_context_BxNxSxD * factor_BxNxSx1)
                d_value = tf.matmul(dropped_BxNxSxS, d_products, transpose_a=True)
                d_dropped, scores, offset = optimization_barrier(
                    tf.matmul(d_products, value_BxNxSxD, transpose_b=True), scores_BxNxSxS, offset_BxNxSx1
                )
                mean_BxNxSx1 = dot_BxNxSx1 * factor_BxNxSx1 * (1.0 / scale)
                weights = tf.exp(as_float32(scores) + hidden_keys - offset)
                d_scores = self._rounded(weights * (drop(as_float32(d_dropped), unscaled) - mean_BxNxSx1))
                d_query = tf.matmul(d_scores, key_BxNxSxD)
                d_key = tf.matmul(d_scores, query_BxNxSxD, transpose_a=True)
                return [d_query, d_key, d_value]

            return context_RxH, gradient

        return with_gradient(run, query_BxNxSxD, key_BxNxSxD, value_BxNxSxD)

    def word_loss(self, logits: WordLogits, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        num_rows, padded_size = logits.logits_RxW.shape
        if fused := self._find(WordLoss, num_rows, logits.vocab_size, padded_size):
            return fused(logits.logits_RxW, logits.bias_W, labels_R, weights_R)
        return super().word_loss(logits, labels_R, weights_R)

    def bias_gelu(self, x_RxI, bias_I, is_exact: bool) -> tf.Tensor:
        """The derivative is computed in the backward pass, so that no float32 array is kept for it.

        The bias's gradient is summed in the kernel that writes the gradient of x.
        """
        if fused := self._find(BiasGelu, *x_RxI.shape, is_exact):
            return fused(x_RxI, bias_I)
        bias_gelu = super().bias_gelu

        def run(x_RxI, bias_I):
            def gradient(d_result_RxI: tf.Tensor) -> list[tf.Tensor]:
                x_again, bias_again = optimization_barrier(x_RxI, bias_I)
                slope = _gelu_slope(as_float32(x_again) + bias_again, is_exact)
                d_x = self._rounded(as_float32(d_result_RxI) * slope)
                return [d_x, _sum_rows(_hide_rounding(d_x))]

            return bias_gelu(x_RxI, bias_I, is_exact), gradient

        return with_gradient(run, x_RxI, bias_I)


class _LazyDropout:
    """A `Dropout` whose mask is drawn only when it is read, because kernels draw masks themselves."""

    def __init__(self, rate: float, site: tuple[tf.Tensor, tf.Tensor], shape: tuple[int, ...], positions_BxP):
        self.rate, self.site, self.scale, self.positions_BxP = rate, site, keep_scale(rate), positions_BxP
        self._shape = shape

    @functools.cached_property
    def keep(self) -> tf.Tensor:
        # Behind a barrier, or XLA would draw the random bits eight times.
        (decisions,) = optimization_barrier(draw_decisions(self.rate, *self.site, self._shape, by_arithmetic=True))
        return keep_mask(decisions, self._shape, self.positions_BxP)


def _rate_and_site(dropout: Any) -> tuple[float | None, Site | None]:
    """Rate and site of a dropout whose mask a kernel can draw; without a dropout 0 and None.

    The rate is None for a mask that is already drawn, or that covers only some positions.
    """
    if dropout is None:
        return 0.0, None
    if isinstance(dropout, _LazyDropout) and dropout.positions_BxP is None:
        return dropout.rate, dropout.site
    return None, None


def _hide_rounding(x: tf.Tensor) -> tf.Tensor:
    """x unchanged, but XLA no longer sees that it is a rounded float32 value.

    Otherwise XLA removes the rounding before a sum, and stores the float32 value for it. A float's bits are all ones
    only in a NaN, which becomes another NaN.
    """
    bits = {2: tf.uint16, 4: tf.uint32}[x.dtype.size]
    return tf.bitcast(tf.minimum(tf.bitcast(x, bits), bits.max - 1), x.dtype)


def _sum_rows(rows_RxH: tf.Tensor) -> tf.Tensor:
    """Gradient of x + bias -> gradient of the bias, in float32."""
    return tf.reduce_sum(as_float32(rows_RxH), axis=0)


def _layer_norm_gradient(d_result_RxH, x_RxH, mean_Rx1, inverse_Rx1, gamma_H) -> tuple[tf.Tensor, ...]:
    """Gradient of LayerNorm's result -> gradients of x, gamma and beta, all float32."""
    normal = (x_RxH - mean_Rx1) * inverse_Rx1
    scaled = d_result_RxH * gamma_H
    d_x = inverse_Rx1 * (scaled - row_mean(scaled) - normal * row_mean(scaled * normal))
    return d_x, tf.reduce_sum(d_result_RxH * normal, axis=0), tf.reduce_sum(d_result_RxH, axis=0)


def _gelu_slope(x: tf.Tensor, is_exact: bool) -> tf.Tensor:
    if is_exact:
        density = tf.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
        return 0.5 + 0.5 * tf.math.erf(x / math.sqrt(2.0)) + x * density
    first, third = math.sqrt(2.0 / math.pi), 0.044715 * math.sqrt(2.0 / math.pi)
    square = x * x
    half = 0.5 + 0.5 * tf.tanh(x * (first + third * square))  # gelu(x) is x times this
    return half * (1.0 + x * (1.0 - half) * (2.0 * first + 6.0 * third * square))
