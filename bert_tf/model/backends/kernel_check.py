"""Checks on a small example that our kernels compute on this device what XLA computes.

A wrong driver, card or version of Triton shows here instead of as a training that learns nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from bert_tf.base.tensorflow import tf
from bert_tf.model.backends.plain import Plain, WordLogits
from bert_tf.model.kernels.compilation import KernelsUnavailable
from bert_tf.model.kernels.fused_attention import FusedAttention
from bert_tf.model.kernels.fused_blocks import AddNorm, BiasGelu, WordLoss
from bert_tf.model.kernels.fused_operation import FusedOperation
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.model.visibility import VisibleKeys

# The largest error, as a share of the norm of a result or gradient. Rounding to bfloat16 makes 0.5 %.
_TOLERANCE = 0.03
_BATCH_SIZE = 2  # the smallest batch of an example
# (backend, *arrays) -> result, and the shapes of the arrays: matrices are in the compute type, vectors in float32.
Example = tuple[Callable[..., tf.Tensor], Sequence[Sequence[int]]]


def require_agreement(operation: FusedOperation, with_kernels: Plain, without: Plain) -> None:
    """Compares the results of the operation's kernels with those of XLA.

    Raises: KernelsUnavailable, if they differ or fail.
    """
    # In a thread of its own: this one is tracing a graph, where nothing can be run and compared.
    with ThreadPoolExecutor(max_workers=1) as pool:
        error = pool.submit(_largest_error, operation, with_kernels, without).result()
    if not error <= _TOLERANCE:
        raise KernelsUnavailable(f"on this device they differ from XLA's results by {100 * error:.1f} %")


def _largest_error(operation: FusedOperation, with_kernels: Plain, without: Plain) -> float:
    """The largest error among the result and the gradients, relative to the norm of XLA's."""
    compute, shapes = _EXAMPLES[type(operation)](operation)
    arrays = [
        tf.cast(_normal(number, shape), without.compute_dtype if len(shape) == 2 else tf.float32)
        for number, shape in enumerate(shapes)
    ]

    @tf.function(jit_compile=True, autograph=False)
    def errors(*inputs: tf.Tensor) -> tf.Tensor:
        backends = (with_kernels, without)
        computed, expected = (_results(functools.partial(compute, backend), inputs) for backend in backends)
        return tf.stack([tf.norm(x - exact) / tf.norm(exact) for x, exact in zip(computed, expected)])

    try:
        # Not by calling the tf.function itself: at the fifth one TensorFlow would warn of retracing.
        return float(np.max(errors.get_concrete_function(*arrays)(*arrays)))  # XLA's maximum may leave out a NaN
    except tf.errors.OpError as error:
        raise KernelsUnavailable(f"they fail on this device: {error.message.splitlines()[0][:200]}") from None


def _results(compute: Callable[..., tf.Tensor], inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The result, and the gradients of the inputs for a made-up gradient."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = compute(*inputs)
    gradients = tape.gradient(result, inputs, tf.cast(_normal(99, result.shape), result.dtype))
    return [tf.cast(value, tf.float32) for value in [result, *gradients]]


def _normal(number: int, shape: Sequence[int]) -> tf.Tensor:
    return tf.random.stateless_normal(shape, [number, 0])


def _dropout(backend: Plain, rate: float, *shape: int) -> Any:
    return backend.dropout(DropoutKey(tf.constant(update_key(1, 1)), tf.constant(5, tf.int64)), 0, rate, shape)


def _attention(operation: FusedAttention) -> Example:
    length, num_heads, width = operation.sequence_length, operation.num_heads, operation.num_heads * operation.head_size
    # Unpacked: a shorter and a full row; packed: a row of two instances and a row of one.
    numbers_BxS = tf.cast(tf.range(length) < [[length // 3], [length]], tf.int32)
    visible = VisibleKeys(numbers_BxS, numbers_BxS if operation.is_packed else None)

    def compute(backend: Plain, query, key, value, query_bias, value_bias) -> tf.Tensor:
        dropout = _dropout(backend, operation.dropout_rate, _BATCH_SIZE, num_heads, length, length)
        # The keys' bias is left at 0 and unchecked: its gradient is only rounding errors.
        projected = ((query, query_bias), (key, tf.zeros([width])), (value, value_bias))
        return backend.attention(projected, visible, dropout, num_heads, length)

    return compute, [[_BATCH_SIZE * length, width]] * 3 + [[width]] * 2


def _add_norm(operation: AddNorm) -> Example:
    length, width = operation.sequence_length, operation.hidden_size
    num_rows = _BATCH_SIZE * math.lcm(length, operation.smallest_num_rows)

    def compute(backend: Any, *arrays: tf.Tensor) -> tf.Tensor:
        dropout = _dropout(backend, operation.dropout_rate, num_rows // length, length, width)
        return backend.residual_norm(*arrays, operation.epsilon, length, dropout)

    return compute, [[num_rows, width], [width], [num_rows, width], [width], [width]]


def _bias_gelu(operation: BiasGelu) -> Example:
    def compute(backend: Any, *arrays: tf.Tensor) -> tf.Tensor:
        return backend.bias_gelu(*arrays, operation.is_exact)

    width = operation.intermediate_size
    return compute, [[operation.smallest_num_rows, width], [width]]


def _word_loss(operation: WordLoss) -> Example:
    num_rows = operation.smallest_num_rows
    labels_R = tf.random.stateless_uniform([num_rows], [98, 0], 0, operation.vocab_size, tf.int32)
    weights_R = tf.random.stateless_uniform([num_rows], [97, 0])

    def compute(backend: Plain, logits, bias) -> tf.Tensor:
        loss, _ = backend.word_loss(WordLogits(logits, bias, operation.vocab_size), labels_R, weights_R)
        return loss

    return compute, [[num_rows, operation.padded_size], [operation.padded_size]]


_EXAMPLES: dict[type, Callable[[Any], Example]] = {
    FusedAttention: _attention,
    AddNorm: _add_norm,
    BiasGelu: _bias_gelu,
    WordLoss: _word_loss,
}
