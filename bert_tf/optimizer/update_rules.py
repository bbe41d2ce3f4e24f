"""The update rules of NVLAMB, BERT's Adam and LARS as pure functions of tensors.

LAMB: arXiv 1904.00962, in NVIDIA's variant ("NVLAMB"); LARS: arXiv 1708.03888; Adam: arXiv 1412.6980,
with the decoupled weight decay of Google's BERT code. docs/DEVIATIONS.md says where these differ from
other implementations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bert_tf.base.tensorflow import tf
from bert_tf.optimizer.groups import call_in_groups, compile_for_groups

# Variables whose names contain one of these do not decay, as in Google's code.
_NOT_DECAYED = ("LayerNorm", "layer_norm", "bias")


def excluded_from_weight_decay(name: str) -> bool:
    """Whether the variable with this name is a bias or a LayerNorm parameter."""
    return any(part in name for part in _NOT_DECAYED)


def gradient_norms(gradients: Sequence[tf.Tensor], compiled: bool = True) -> tuple[tf.Tensor, tf.Tensor]:
    """Global Euclidean norm of the V `gradients`, scalar, and the norm of each, [V]. Squares are summed in float32.

    On a GPU XLA compiles this, if `compiled` (see `groups`).

    tf.add_n is not used: the order in which it adds depends on which inputs no other operation still needs.
    """
    stack_half_squares = compile_for_groups(_half_squares, compiled)
    half_squares_V = call_in_groups(
        [(tuple(gradient.shape), gradient.dtype) for gradient in gradients],
        lambda numbers: stack_half_squares([gradients[number] for number in numbers]),
    )
    return tf.sqrt(2.0 * tf.reduce_sum(half_squares_V)), tf.sqrt(2.0 * half_squares_V)


def _half_squares(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.nn.l2_loss(tf.cast(gradient, tf.float32)) for gradient in gradients])


def norm(x: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(2.0 * tf.nn.l2_loss(x))


def _running_mean(mean: tf.Tensor, new: tf.Tensor, beta: float, is_finite: tf.Tensor) -> tf.Tensor:
    """beta * mean + (1 - beta) * new; if not `is_finite`, `mean` (then `new` must be 0).

    Selects factors, not results: selecting results stops XLA updating in place, which doubles the time.
    """
    old_factor = tf.where(is_finite, tf.constant(beta, mean.dtype), tf.constant(1.0, mean.dtype))
    new_factor = tf.where(is_finite, tf.constant(1.0 - beta, mean.dtype), tf.constant(0.0, mean.dtype))
    return old_factor * mean + new_factor * new


def _weight_sum(beta: float, step: tf.Tensor) -> tf.Tensor:
    """1 - beta^step: the sum of the weights in a running mean that began at 0.

    Uses expm1, because in float32 the difference 1 - 0.999 is accurate to only five digits.
    """
    return -tf.math.expm1(step * math.log(beta))


def adam_direction(
    w: tf.Tensor,
    moments: tuple[tf.Tensor, tf.Tensor],
    g: tf.Tensor,
    step: tf.Tensor,
    is_finite: tf.Tensor,
    *,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    weight_decay: float,
    bias_correction: str,
) -> tuple[tf.Tensor, ...]:
    """The direction of LAMB and Adam, and the two new moments. Rate * trust ratio * direction is subtracted from w.

    Args:
      w, moments, g: weights, first and second moment, clipped gradient, all of one shape.
      step: number of applied updates including this one, scalar of w's type.
      is_finite: bool scalar; if it is False, g must be -0, and every bit of the moments stays as it is.
      beta_1, beta_2, epsilon: as in Adam; epsilon is added to the root of the second moment.
      weight_decay: 0 for variables that do not decay.
      bias_correction: "moments": both moments are corrected and epsilon is added to the root of the corrected
        second, as in the papers. "rate": epsilon is added to the root of the uncorrected one, and the quotient is
        multiplied by sqrt(1-b2^t)/(1-b1^t), as in the Adam of Keras and so of NVIDIA's TF2 recipe: where
        gradients are as small as epsilon, early updates are smaller. "none": Google's BERT Adam, whose first
        updates are up to (1-b1)/sqrt(1-b2) = 3.2 times as large; the warm-up has to compensate.
    """
    m = _running_mean(moments[0], g, beta_1, is_finite)
    v = _running_mean(moments[1], tf.square(g), beta_2, is_finite)
    if bias_correction == "moments":
        u = m / _weight_sum(beta_1, step) / (tf.sqrt(v / _weight_sum(beta_2, step)) + epsilon)
    else:
        u = m / (tf.sqrt(v) + epsilon)
    if bias_correction == "rate":
        u *= tf.sqrt(_weight_sum(beta_2, step)) / _weight_sum(beta_1, step)
    return u + weight_decay * w, m, v


def nvlamb_trust_ratio(w_norm: tf.Tensor, u_norm: tf.Tensor) -> tf.Tensor:
    """||w|| / ||u||, but 1 if either is 0, so that variables that start at zero can change."""
    return tf.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, tf.ones_like(w_norm))


def lars_update(
    w: tf.Tensor,
    a: tf.Tensor,
    g: tf.Tensor,
    rate: tf.Tensor,
    *,
    momentum: float,
    trust_coefficient: float,
    weight_decay: float,
    adapt: bool,
) -> tuple[tf.Tensor, ...]:
    """One LARS update of one variable -> new (w, a), and the trust ratio (arXiv 1708.03888, algorithm 1).

    Args:
      w, g: weights and clipped gradient, of one shape.
      a: the momentum: a decaying sum of past changes, each scaled by the learning rate of its own update.
      rate: learning rate, scalar.
      momentum: factor of the old momentum.
      trust_coefficient: the factor in the trust ratio, trust_coefficient * ||w|| / (||g|| + decay * ||w||).
      weight_decay: 0 for variables that do not decay.
      adapt: whether the rate is multiplied by the trust ratio.
    """
    ratio = tf.ones([], w.dtype)
    if adapt:
        w_norm, g_norm = norm(w), norm(g)
        ratio = tf.where(
            (w_norm > 0) & (g_norm > 0), trust_coefficient * w_norm / (g_norm + weight_decay * w_norm), ratio
        )
    a = momentum * a + rate * ratio * (g + weight_decay * w)
    return w - a, a, ratio
