"""The element-wise blocks between the matmuls, each written once, and what gets compiled.

A scope says what XLA compiles:

* ``step``: the caller compiles the whole forward and backward pass; the blocks are inlined there.
* ``blocks``: every block here is a small compiled function of its own and the matmuls stay
  outside, where they reach oneDNN or cuBLAS. On a CPU this is the faster way, the only one in
  which bfloat16 pays, and it compiles in seconds whatever the number of layers.
* ``off``: a plain graph, or eager code.

Inside a block everything is float32; what leaves it for a matmul is cast to the compute type.

Shape letters: B batch, S sequence, H hidden, N heads, D head size, I intermediate, R = B*S rows,
P masked positions, C classes, V vocabulary (padded: W).
"""
from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple, Optional, Tuple

import tensorflow as tf

from bert_tf.config import XLA_SCOPES
from bert_tf.randomness import dropout

LAYER_NORM_EPSILON = 1e-12  # Google's value
# Added to the scores of padding, as in Google's code. exp(-10000) is 0 in float32.
MASKED_SCORE = -10000.0


class Noise(NamedTuple):
    """One dropout: its static rate, its key and the first row (`randomness.DropoutKey.at`)."""

    rate: float
    site_key: tf.Tensor
    first_row: tf.Tensor


def _drop(x: tf.Tensor, noise: Optional[Noise]) -> tf.Tensor:
    return x if noise is None else dropout(x, *noise)


def _float32(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def layer_norm(x: tf.Tensor, gamma_H: tf.Tensor, beta_H: tf.Tensor) -> tf.Tensor:
    """Layer normalisation (arXiv 1607.06450) over the last axis, float32 in and out."""
    centred = x - tf.reduce_mean(x, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    return centred * tf.math.rsqrt(variance + LAYER_NORM_EPSILON) * gamma_H + beta_H


def gelu(x: tf.Tensor, exact: bool) -> tf.Tensor:
    """GELU (arXiv 1606.08415): by erf if `exact`, else the tanh form of Google's BERT code."""
    if exact:
        return 0.5 * x * (1.0 + tf.math.erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + tf.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def embedding_norm(word_BxSxH, position_SxH, segment_BxSxH, gamma_H, beta_H,
                   noise: Optional[Noise], *, dtype: tf.DType) -> tf.Tensor:
    """dropout(LayerNorm(word + position + segment)) -> compute type [B, S, H]."""
    embedded = word_BxSxH + position_SxH + segment_BxSxH
    return tf.cast(_drop(layer_norm(embedded, gamma_H, beta_H), noise), dtype)


def split_heads(x_RxH, bias_H, sequence_length: int, num_heads: int, scale: float, *,
                dtype: tf.DType) -> tf.Tensor:
    """(x + bias) * scale, laid out by head -> compute type [B, N, S, D]."""
    x = (_float32(x_RxH) + bias_H) * scale
    x = tf.reshape(x, [-1, sequence_length, num_heads, x.shape[1] // num_heads])
    return tf.cast(tf.transpose(x, [0, 2, 1, 3]), dtype)


def merge_heads(x_BxNxSxD, *, dtype: tf.DType) -> tf.Tensor:
    """[B, N, S, D] -> compute type [R, H]."""
    _, num_heads, _, head_size = x_BxNxSxD.shape
    x = tf.transpose(x_BxNxSxD, [0, 2, 1, 3])
    return tf.cast(tf.reshape(x, [-1, num_heads * head_size]), dtype)


def masked_softmax(scores_BxNxSxS, mask_BxS, noise: Optional[Noise], *, dtype: tf.DType) -> tf.Tensor:
    """dropout(softmax over the keys whose mask is 1) -> compute type [B, N, S, S]."""
    hidden_keys = (1.0 - _float32(mask_BxS))[:, tf.newaxis, tf.newaxis, :] * MASKED_SCORE
    scores = _float32(scores_BxNxSxS) + hidden_keys
    weights = tf.exp(scores - tf.stop_gradient(tf.reduce_max(scores, axis=-1, keepdims=True)))
    probabilities = weights / tf.reduce_sum(weights, axis=-1, keepdims=True)
    return tf.cast(_drop(probabilities, noise), dtype)


def residual_norm(x_RxH, bias_H, residual_RxH, gamma_H, beta_H, sequence_length: int,
                  noise: Optional[Noise], *, dtype: tf.DType) -> tf.Tensor:
    """LayerNorm(residual + dropout(x + bias)) -> compute type [R, H]."""
    hidden_size = x_RxH.shape[1]
    x = _float32(x_RxH) + bias_H
    # Dropout counts rows by instance, so an instance must be one row of its input.
    x = _drop(tf.reshape(x, [-1, sequence_length, hidden_size]), noise)
    x = tf.reshape(x, [-1, hidden_size]) + _float32(residual_RxH)
    return tf.cast(layer_norm(x, gamma_H, beta_H), dtype)


def bias_gelu(x_RxI, bias_I, exact: bool, *, dtype: tf.DType) -> tf.Tensor:
    """GELU(x + bias) -> compute type [R, I]."""
    return tf.cast(gelu(_float32(x_RxI) + bias_I, exact), dtype)


def bias_gelu_norm(x_RxH, bias_H, gamma_H, beta_H, exact: bool, *, dtype: tf.DType) -> tf.Tensor:
    """LayerNorm(GELU(x + bias)), the transform of the masked-LM head -> compute type [R, H]."""
    return tf.cast(layer_norm(gelu(_float32(x_RxH) + bias_H, exact), gamma_H, beta_H), dtype)


def bias_tanh(x_BxH, bias_H, *, dtype: tf.DType) -> tf.Tensor:
    """tanh(x + bias), the pooler's activation -> compute type [B, H]."""
    return tf.cast(tf.tanh(_float32(x_BxH) + bias_H), dtype)


def bias_logits(x_RxW, bias_W, num_classes: int) -> tf.Tensor:
    """x + bias without padding columns -> float32 [R, num_classes]."""
    return (_float32(x_RxW) + bias_W)[:, :num_classes]


def cross_entropy(logits_RxC: tf.Tensor, labels_R: tf.Tensor, weights_R: tf.Tensor
                  ) -> Tuple[tf.Tensor, tf.Tensor]:
    """Sums over the rows of weight * cross-entropy, and of weight * (argmax is the label).

    float32 logits [R, C], int32 labels [R], float32 weights [R] -> two float32 scalars. The label
    is picked by comparison, not by gather, because XLA makes one loop of that.
    """
    picked = labels_R[:, tf.newaxis] == tf.range(logits_RxC.shape[1])[tf.newaxis, :]
    peak = tf.stop_gradient(tf.reduce_max(logits_RxC, axis=-1, keepdims=True))
    log_sum = tf.math.log(tf.reduce_sum(tf.exp(logits_RxC - peak), axis=-1)) + peak[:, 0]
    label_logit = tf.reduce_sum(tf.where(picked, logits_RxC, 0.0), axis=-1)
    correct = _float32(label_logit >= peak[:, 0])
    return tf.reduce_sum((log_sum - label_logit) * weights_R), tf.reduce_sum(correct * weights_R)


def choose_scope(enable_xla: bool, wanted: str) -> str:
    """The scope for the flags: "off" without XLA; "auto" is "step" on GPUs, "blocks" on CPUs."""
    if not enable_xla:
        return "off"
    if wanted != "auto":
        return wanted
    return "step" if tf.config.list_physical_devices("GPU") else "blocks"


class Blocks:
    """The functions above, compiled at a scope and casting to one compute type.

    Args:
      scope: "step", "blocks" or "off", see the module.
      compute_dtype: "float32", "bfloat16" or "float16", the type of the matmuls.
    """

    def __init__(self, scope: str = "off", compute_dtype: str = "float32"):
        if scope not in XLA_SCOPES:
            raise ValueError(f"scope={scope!r}: must be one of {', '.join(XLA_SCOPES)}")
        self.scope = scope
        self.compute_dtype = tf.as_dtype(compute_dtype)
        self.embedding_norm = self._block(embedding_norm)
        self.split_heads = self._block(split_heads)
        self.merge_heads = self._block(merge_heads)
        self.masked_softmax = self._block(masked_softmax)
        self.residual_norm = self._block(residual_norm)
        self.bias_gelu = self._block(bias_gelu)
        self.bias_gelu_norm = self._block(bias_gelu_norm)
        self.bias_tanh = self._block(bias_tanh)
        self.bias_logits = self._compiled(bias_logits)
        self.cross_entropy = self._compiled(cross_entropy)

    def _block(self, function: Callable) -> Callable:
        return self._compiled(functools.partial(function, dtype=self.compute_dtype))

    def _compiled(self, function: Callable) -> Callable:
        if self.scope != "blocks":
            return function
        # autograph would only look for Python control flow over tensors; there is none in here.
        return tf.function(function, jit_compile=True, autograph=False)

    def dense(self, x_RxI: tf.Tensor, kernel_IxO: tf.Tensor) -> tf.Tensor:
        """x times kernel, in the compute type. The bias belongs to the block that follows."""
        return tf.matmul(tf.cast(x_RxI, self.compute_dtype), tf.cast(kernel_IxO, self.compute_dtype))
