"""The mathematics of NVLAMB, BERT's Adam and LARS as pure functions of tensors.

LAMB: arXiv 1904.00962, in NVIDIA's variant ("NVLAMB"); LARS: arXiv 1708.03888; Adam: arXiv 1412.6980,
with the decoupled weight decay of Google's BERT code. docs/DEVIATIONS.md says where these differ from
other implementations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

# Parts of the names of variables that do not decay, as in Google's code.
_NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


def excluded_from_weight_decay(name: str) -> bool:
    """Whether the variable of this name is a bias or a LayerNorm parameter, which do not decay."""
    return any(part in name for part in _NOT_DECAYED)


def gradient_norms(gradients: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Euclidean norms of all V `gradients` together and of each -> scalar, [V]. Squares are summed in float32."""
    halves = [tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients]
    return tf.sqrt(2.0 * tf.add_n(halves)), tf.sqrt(2.0 * tf.stack(halves))


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Euclidean norm of all `gradients` together -> scalar."""
    return gradient_norms(gradients)[0]


def norm(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(x))


def _running_mean(mean: tf.Tensor, new: tf.Tensor, beta: float, is_finite: tf.Tensor) -> tf.Tensor:
    """beta * mean + (1 - beta) * new; `mean` itself where not `is_finite`, if `new` is 0 then.

    By the factors and not by a choice between two results, which keeps XLA from reusing the one that
    was written: twice the time.
    """
    keep = tf.where(is_finite, tf.constant(beta, mean.dtype), tf.constant(1.0, mean.dtype))
    take = tf.where(is_finite, tf.constant(1.0 - beta, mean.dtype), tf.constant(0.0, mean.dtype))
    return keep * mean + take * new


def _corrected(moment: tf.Tensor, beta: float, step: tf.Tensor) -> tf.Tensor:
    """moment / (1 - beta^step). Written so that float32 does not cancel: 1 - 0.999 has five digits."""
    return moment / -tf.math.expm1(step * math.log(beta))


def adam_direction(
    w: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    g: tf.Tensor,
    *,
    step: tf.Tensor,
    is_finite: tf.Tensor,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    bias_correction: bool,
) -> tuple[tf.Tensor, ...]:
    """What is subtracted from w, but for rate and trust ratio, and the new (m, v).

    Without `bias_correction` the first updates of BERT's Adam are up to (1-b1)/sqrt(1-b2) = 3.2 times
    as large, which the warm-up has to take; that is what Google trained and fine-tuned with.

    Args:
      w, m, v, g: weights, first and second moment, clipped gradient, all of one shape.
      step: number of updates applied, this one included, scalar of w's type.
      is_finite: bool scalar; where it is False, g is -0 and the moments stay as they are, to the bit.
      beta_1, beta_2, epsilon: as in Adam; epsilon is added to the root.
      weight_decay: 0 for variables that do not decay.
    """
    m = _running_mean(m, g, beta_1, is_finite)
    v = _running_mean(v, tf.square(g), beta_2, is_finite)
    first, second = (_corrected(m, beta_1, step), _corrected(v, beta_2, step)) if bias_correction else (m, v)
    return first / (tf.sqrt(second) + epsilon) + weight_decay * w, m, v


def nvlamb_trust_ratio(w_norm: tf.Tensor, u_norm: tf.Tensor) -> tf.Tensor:
    """||w|| / ||u||, and 1 where one of them is 0: variables that start at zero must be able to move."""
    return tf.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, tf.ones_like(w_norm))


def lars_update(
    w: tf.Tensor,
    a: tf.Tensor,
    g: tf.Tensor,
    *,
    rate: tf.Tensor,
    momentum: float,
    trust_coefficient: float,
    weight_decay: float,
    adapt: bool,
) -> tuple[tf.Tensor, ...]:
    """One LARS update of one variable -> new (w, a), and the trust ratio (arXiv 1708.03888, algorithm 1).

    Args:
      w, g: weights and clipped gradient, of one shape.
      a: the momentum, which holds the learning rates it was summed up with.
      rate: learning rate, scalar.
      momentum: the share of `a` that stays.
      trust_coefficient: of ||w|| / (||g|| + decay * ||w||), by which the rate is multiplied where `adapt`.
      weight_decay: 0 for variables that do not decay.
    """
    ratio = tf.ones([], w.dtype)
    if adapt:
        w_norm, g_norm = norm(w), norm(g)
        ratio = tf.where(
            (w_norm > 0) & (g_norm > 0), trust_coefficient * w_norm / (g_norm + weight_decay * w_norm), ratio
        )
    a = momentum * a + rate * ratio * (g + weight_decay * w)
    return w - a, a, ratio
