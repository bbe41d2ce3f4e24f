"""The backend that compiles each element-wise block separately. The formulas are those of `plain`.

A block keeps only its inputs for the backward pass, where a second compiled function recomputes and differentiates it.
Autodiff through the first function would store every intermediate value, which takes longer than recomputing them, and
several times the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from bert_tf.base.tensorflow import tf
from bert_tf.model.backends.plain import Plain
from bert_tf.model.randomness import draw_decisions, keep_mask
from bert_tf.model.recomputation import float_tensors, keep_only_arguments

_RECOMPUTED = (
    "embedding_norm split_heads merge_heads residual_norm bias_gelu bias_gelu_norm bias_tanh apply_dropout bias_logits"
)
_WITH_OWN_GRADIENT = "_masked_softmax _masked_softmax_gradient _cross_entropy _cross_entropy_gradient"


def _compiled(function: Callable) -> Callable:
    # Autograph is off because blocks have no Python control flow over tensors.
    return tf.function(function, jit_compile=True, autograph=False)


class CpuBlocks(Plain):
    """Scope "blocks"."""

    scope = "blocks"

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        for name in _RECOMPUTED.split():
            setattr(self, name, _Block(getattr(self, name)))
        for name in _WITH_OWN_GRADIENT.split():
            setattr(self, name, _compiled(getattr(self, name)))
        # Two functions, or XLA would draw the random bits eight times, once for each bit of a byte.
        self._draw_decisions, self._keep_mask = _compiled(draw_decisions), _compiled(keep_mask)

    def _draw_mask(self, rate, site_key, first_row, shape, positions_BxP) -> tf.Tensor:
        return self._keep_mask(self._draw_decisions(rate, site_key, first_row, shape, True), shape, positions_BxP)


class _Block:
    """A separately compiled function that is recomputed in the backward pass.

    Its arguments are tensors and static values. Tensors with fewer dimensions than the first argument are parameters,
    which are broadcast over the rows of the first.
    """

    def __init__(self, function: Callable):
        def differentiate(d_result: tf.Tensor, *inputs: Any) -> list[tf.Tensor]:
            """Gradients of the float tensors; for a parameter, of its broadcast copies, one for each row."""
            copies = [
                tf.broadcast_to(value, tf.shape(inputs[0])) if _is_parameter(value, inputs) else value
                for value in inputs
            ]
            watched = float_tensors(copies)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                result = function(*copies)
            return tape.gradient(result, watched, d_result)

        differentiate.__name__ = f"{function.__name__}_gradient"  # for profiles
        self._forward, self._backward = _compiled(function), _compiled(differentiate)

    def __call__(self, *arguments: Any) -> tf.Tensor:
        return keep_only_arguments(self._forward, self._differentiate, arguments)

    def _differentiate(self, d_result: tf.Tensor, inputs: Sequence[Any]) -> list[tf.Tensor]:
        return [
            _sum_over_rows(gradient, value.shape) if _is_parameter(value, inputs) else gradient
            for value, gradient in zip(float_tensors(inputs), self._backward(d_result, *inputs))
        ]


def _is_parameter(value: Any, inputs: Sequence[Any]) -> bool:
    return tf.is_tensor(value) and value.dtype.is_floating and len(value.shape) < len(inputs[0].shape)


def _sum_over_rows(copies: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Sum over the rows -> `shape`, as a matmul: XLA's sum over the first axis is 20 times slower on a CPU."""
    copies = tf.reshape(copies, [-1, shape.num_elements()])
    return tf.reshape(tf.matmul(tf.ones([1, tf.shape(copies)[0]]), copies), shape)
