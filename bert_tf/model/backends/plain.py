"""The backend whose functions are TensorFlow's own operations; the other backends override some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.base.tensorflow import tf
from bert_tf.model.elementwise import (
    Dropout,
    add_residual,
    as_float32,
    drop,
    gelu,
    hide_keys,
    is_label,
    layer_norm,
    length_of,
    split_by_head,
    with_gradient,
)
from bert_tf.model.randomness import DropoutKey, draw_decisions, draw_mask, keep_mask, keep_scale, mask_at_positions
from bert_tf.model.recomputation import recompute_in_backward
from bert_tf.model.visibility import VisibleKeys

ProductAndBias = tuple[tf.Tensor, Any]  # [R, H] in the compute type, and the bias [H] that is still to be added


class WordLogits(NamedTuple):
    """Logits of the vocabulary before their bias: in the compute type [R, W], with the columns that pad it."""

    logits_RxW: tf.Tensor
    bias_W: tf.Variable
    vocab_size: int


class Plain:
    """Scope "off". Shapes and types in the docstrings hold for every backend; see the package's docstring.

    Args:
      compute_dtype: the type of the matmuls.
      recompute: whether `run_layer` keeps only its arguments for the backward pass.
      for_gpu: whether operations that XLA does not compile run on a GPU.
    """

    scope = "off"

    def __init__(self, compute_dtype: str = "float32", recompute: bool = False, for_gpu: bool = False):
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.recompute, self.for_gpu = recompute, for_gpu

    @property
    def remarks(self) -> list[str]:
        """Lines for the user about how a step is computed, complete once the step has been traced."""
        return []

    def _rounded(self, x: tf.Tensor) -> tf.Tensor:
        """x in the compute type."""
        return tf.cast(x, self.compute_dtype)

    def run_layer(self, function: Callable, *arguments: Any) -> tf.Tensor:
        """function(*arguments), where all variables that it uses must be arguments."""
        return recompute_in_backward(function, *arguments) if self.recompute else function(*arguments)

    def dropout(
        self,
        key: DropoutKey | None,
        site: int,
        rate: float,
        shape: Sequence[int],
        positions_BxP: tf.Tensor | None = None,
    ) -> Dropout | None:
        """The dropout numbered `site`, for the static `shape` [B, ...]; None where nothing is dropped.

        With positions, the part of a mask [B, ..., S, H] at these positions: [B, ..., P, H].
        """
        if key is None or rate == 0:
            return None
        return Dropout(self._draw_mask(rate, *key.at(site), tuple(shape), positions_BxP), keep_scale(rate))

    def _draw_mask(self, rate, site_key, first_row, shape, positions_BxP) -> tf.Tensor:
        return mask_at_positions(draw_mask(rate, site_key, first_row, shape), positions_BxP)

    # Between layers

    def gather_positions(self, sequence_BxSxH, positions_BxP) -> tf.Tensor:
        """The states at the given positions of each row: [B, P, H]."""
        return tf.gather(sequence_BxSxH, positions_BxP, batch_dims=1)

    def look_up_segments(self, segment_ids_BxS, table_TxH) -> tf.Tensor:
        """Rows of a small table: float32 [B, S, H]."""
        # Not by tf.one_hot, which has zeros for an id that is none: on a CPU a gather ends with an error.
        one_hot_BxSxT = tf.gather(np.eye(table_TxH.shape[0], dtype="float32"), tf.cast(segment_ids_BxS, tf.int32))
        return tf.einsum("bst,th->bsh", one_hot_BxSxT, table_TxH)

    def add_looked_up(self, total_VxH: tf.Tensor, rows: tf.IndexedSlices) -> tf.Tensor:
        """The total plus the gradient of an embedding lookup."""
        if self.for_gpu:
            # With deterministic ops (`run.device`) TensorFlow sorts the rows for this, but would scatter on the host.
            return total_VxH + tf.math.unsorted_segment_sum(rows.values, rows.indices, total_VxH.shape[0])
        return tf.tensor_scatter_nd_add(total_VxH, rows.indices[:, tf.newaxis], rows.values)

    def fan_out(self, x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """x for the query, the key, the value and the residual."""
        return (x,) * 4

    def dense(self, x_RxI, kernel_IxO, transpose_kernel: bool = False) -> tf.Tensor:
        """x times kernel -> compute type [R, O]. A later function adds the bias."""
        return tf.matmul(self._rounded(x_RxI), self._rounded(kernel_IxO), transpose_b=transpose_kernel)

    # Element-wise blocks: what feeds a matmul is in the compute type.

    def embedding_norm(
        self, word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H, epsilon: float, dropout: Dropout | None
    ) -> tf.Tensor:
        """dropout(LayerNorm(word + position + segment)) -> compute type [B, S, H]; positions may be [B, S, H]."""
        embedded = word_BxSxH + position_SxH + segment_BxSxH
        return self._rounded(drop(layer_norm(embedded, gamma_H, beta_H, epsilon), dropout))

    def split_heads(self, x_RxH, bias_H, sequence_length: int, num_heads: int, scale: float) -> tf.Tensor:
        """(x + bias) * scale, split into heads -> compute type [B, N, S, D]."""
        return self._rounded(split_by_head((as_float32(x_RxH) + bias_H) * scale, sequence_length, num_heads))

    def merge_heads(self, x_BxNxSxD) -> tf.Tensor:
        """[B, N, S, D] -> compute type [R, H]."""
        _, num_heads, _, head_size = x_BxNxSxD.shape
        x = tf.transpose(x_BxNxSxD, [0, 2, 1, 3])
        return self._rounded(tf.reshape(x, [-1, num_heads * head_size]))

    def residual_norm(
        self, x_RxH, bias_H, residual_RxH, gamma_H, beta_H, epsilon: float, sequence_length: int, dropout
    ) -> tf.Tensor:
        """LayerNorm(residual + dropout(x + bias)) -> compute type [R, H]. The dropout's shape is [B, S, H]."""
        x = add_residual(x_RxH, bias_H, residual_RxH, sequence_length, dropout)
        return self._rounded(layer_norm(x, gamma_H, beta_H, epsilon))

    def bias_gelu(self, x_RxI, bias_I, is_exact: bool) -> tf.Tensor:
        """GELU(x + bias) -> compute type [R, I]."""
        return self._rounded(gelu(as_float32(x_RxI) + bias_I, is_exact))

    def bias_gelu_norm(self, x_RxH, bias_H, gamma_H, beta_H, epsilon: float, is_exact: bool) -> tf.Tensor:
        """LayerNorm(GELU(x + bias)), the transform of the masked-LM head -> compute type [R, H]."""
        return self._rounded(layer_norm(gelu(as_float32(x_RxH) + bias_H, is_exact), gamma_H, beta_H, epsilon))

    def bias_tanh(self, x_RxH, bias_H) -> tf.Tensor:
        """tanh(x + bias), the pooler's activation -> compute type [R, H]."""
        return self._rounded(tf.tanh(as_float32(x_RxH) + bias_H))

    def apply_dropout(self, x_RxH, dropout: Dropout | None) -> tf.Tensor:
        """dropout(x), the last one before a classifier -> compute type [R, H]."""
        return self._rounded(drop(as_float32(x_RxH), dropout))

    def bias_logits(self, x_RxW, bias_W, num_classes: int) -> tf.Tensor:
        """x + bias, without the padding columns -> float32 [R, num_classes]."""
        return (as_float32(x_RxW) + bias_W)[:, :num_classes]

    def attention(
        self, projected: Sequence[ProductAndBias], visible: VisibleKeys, dropout, num_heads: int, num_queries: int
    ) -> tf.Tensor:
        """Scaled dot-product attention (arXiv 1706.03762) of each head to the keys that a query sees.

        The dropout [B, N, S, S] is applied to the softmax's results.

        Args:
          projected: queries, keys and values.
          num_queries: queries of a row, which may be fewer than its keys.

        Returns: compute type [B * num_queries, H].
        """
        query, key, value = projected
        num_keys, scale = length_of(visible.key_numbers_BxS), 1.0 / math.sqrt(query[0].shape[1] // num_heads)
        return self.attend(
            self.split_heads(*query, num_queries, num_heads, scale),
            self.split_heads(*key, num_keys, num_heads, 1.0),
            self.split_heads(*value, num_keys, num_heads, 1.0),
            visible,
            dropout,
        )

    # The softmaxes have handwritten gradients, because recomputing them in the backward pass is slow.

    def attend(
        self, query_BxNxSxD, key_BxNxSxD, value_BxNxSxD, visible: VisibleKeys, dropout: Dropout | None
    ) -> tf.Tensor:
        """`attention` of scaled queries, keys and values with their biases -> compute type [R, H]."""

        def softmax(scores_BxNxSxS):
            dropped, probabilities = self._masked_softmax(scores_BxNxSxS, visible, dropout)
            return dropped, lambda gradient: self._masked_softmax_gradient(gradient, probabilities, dropout)

        scores_BxNxSxS = tf.matmul(query_BxNxSxD, key_BxNxSxD, transpose_b=True)
        return self.merge_heads(tf.matmul(with_gradient(softmax, scores_BxNxSxS), value_BxNxSxD))

    def _masked_softmax(self, scores_BxNxSxS, visible, dropout: Dropout | None) -> tuple[tf.Tensor, tf.Tensor]:
        """p = softmax over the keys that are seen -> dropout(p) in the compute type, p in float32 [B, N, S, S]."""
        scores = as_float32(scores_BxNxSxS) + hide_keys(visible)
        weights = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
        probabilities = weights / tf.reduce_sum(weights, axis=-1, keepdims=True)
        return self._rounded(drop(probabilities, dropout)), probabilities

    def _masked_softmax_gradient(self, gradient_BxNxSxS, probabilities_BxNxSxS, dropout: Dropout | None) -> tf.Tensor:
        """Gradient of `_masked_softmax`'s first result -> gradient of the scores, in the compute type."""
        gradient = drop(as_float32(gradient_BxNxSxS), dropout)
        mean = tf.reduce_sum(gradient * probabilities_BxNxSxS, axis=-1, keepdims=True)
        return self._rounded(probabilities_BxNxSxS * (gradient - mean))

    def word_loss(self, logits: WordLogits, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        """`cross_entropy` of logits whose bias is still to be added."""
        return self.cross_entropy(self.bias_logits(*logits), labels_R, weights_R)

    def cross_entropy(self, logits_RxC, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor]:
        """Sums over the rows of weight * cross-entropy, and of weight * (the label has the largest logit).

        float32 logits [R, C], integer labels [R], float32 weights [R] -> two float32 scalars.
        """

        def run(logits_RxC):
            loss, correct, log_sum_R = self._cross_entropy(logits_RxC, labels_R, weights_R)
            return (loss, correct), lambda gradient, _: self._cross_entropy_gradient(
                gradient, logits_RxC, labels_R, weights_R, log_sum_R
            )

        return with_gradient(run, logits_RxC)

    def _cross_entropy(self, logits_RxC, labels_R, weights_R) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The results of `cross_entropy`, and the log-sum-exp of each row's logits [R]."""
        peak = tf.reduce_max(logits_RxC, axis=-1, keepdims=True)
        log_sum_R = tf.math.log(tf.reduce_sum(tf.exp(logits_RxC - peak), axis=-1)) + peak[:, 0]
        label_logit = tf.reduce_sum(tf.where(is_label(logits_RxC, labels_R), logits_RxC, 0.0), axis=-1)
        correct = as_float32(label_logit >= peak[:, 0])
        return tf.reduce_sum((log_sum_R - label_logit) * weights_R), tf.reduce_sum(correct * weights_R), log_sum_R

    def _cross_entropy_gradient(self, gradient, logits_RxC, labels_R, weights_R, log_sum_R) -> tf.Tensor:
        """Gradient of the first sum -> gradient of the logits [R, C]."""
        probabilities = tf.exp(logits_RxC - log_sum_R[:, tf.newaxis])
        difference = tf.where(is_label(logits_RxC, labels_R), probabilities - 1.0, probabilities)
        return difference * (weights_R * gradient)[:, tf.newaxis]


class PlainInStep(Plain):
    """Scope "step" on a CPU: the plain functions within a program that XLA compiles."""

    scope = "step"

    def _draw_mask(self, rate, site_key, first_row, shape, positions_BxP) -> tf.Tensor:
        decisions = draw_decisions(rate, site_key, first_row, shape, by_arithmetic=False)
        return keep_mask(decisions, shape, positions_BxP)
