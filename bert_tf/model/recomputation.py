"""Functions that keep only their arguments for the backward pass (activation checkpointing, arXiv 1604.06174)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Callable

from bert_tf.base.tensorflow import tf
from bert_tf.model.elementwise import with_gradient


def float_tensors(structure: Any) -> list[tf.Tensor]:
    """The differentiable tensors of a nested structure, in its order."""
    return [value for value in tf.nest.flatten(structure) if tf.is_tensor(value) and value.dtype.is_floating]


def _with_tensors(structure: Any, tensors: Iterable[tf.Tensor]) -> Any:
    """The structure with its tensors replaced by `tensors`, in order."""
    remaining = iter(tensors)
    return tf.nest.map_structure(lambda value: next(remaining) if tf.is_tensor(value) else value, structure)


def keep_only_arguments(function: Callable, differentiate: Callable, arguments: Sequence[Any]) -> tf.Tensor:
    """function(*arguments), for whose backward pass only the arguments are kept.

    Args:
      differentiate: (gradient of the result, arguments) -> gradients of their `float_tensors`.
      arguments: nested tensors, variables and static values.
    """
    arguments = tf.nest.map_structure(
        lambda value: tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value, tuple(arguments)
    )

    def run(*tensors: tf.Tensor):
        inputs = _with_tensors(arguments, tensors)

        def gradient(d_result: tf.Tensor) -> list[tf.Tensor | None]:
            gradients = iter(differentiate(d_result, inputs))
            return [next(gradients) if tensor.dtype.is_floating else None for tensor in tensors]

        return function(*inputs), gradient

    return with_gradient(run, *(value for value in tf.nest.flatten(arguments) if tf.is_tensor(value)))


def _not_before(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Copies of the tensors, none of which is available before all the tensors are.

    This forces the recomputation: TensorFlow's graph optimiser would merge it with the forward pass
    if both had the same inputs, but it does not see that these copies equal the originals.
    """
    with tf.control_dependencies(tensors):
        return [tf.identity(tensor) for tensor in tensors]


def recompute_in_backward(function: Callable, *arguments: Any) -> tf.Tensor:
    """function(*arguments), computed again in the backward pass. All variables that it uses must be arguments."""

    def differentiate(d_result: tf.Tensor, inputs: Sequence[Any]) -> list[tf.Tensor]:
        tensors = [value for value in tf.nest.flatten(inputs) if tf.is_tensor(value)]
        *copies, d_result = _not_before([*tensors, d_result])
        inputs = _with_tensors(inputs, copies)
        watched = float_tensors(inputs)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(watched)
            result = function(*inputs)
        # All at once: the gradient of x starts the backward pass of the layer below, whose memory must not
        # come on top of this layer's.
        return _not_before(tape.gradient(result, watched, d_result))

    return keep_only_arguments(function, differentiate, arguments)
