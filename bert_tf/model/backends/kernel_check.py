"""Whether the GPU's own kernels compute what XLA computes, on a small example on this device.

A wrong driver, card or version of Triton shows here, and not as a training that learns nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bert_tf.base.tensorflow import tf
from bert_tf.model.backends.plain import Plain, WordLogits
from bert_tf.model.kernels.compilation import Unavailable
from bert_tf.model.kernels.fused_attention import FusedAttention
from bert_tf.model.kernels.fused_blocks import AddNorm, BiasGelu, WordLoss
from bert_tf.model.kernels.fused_operation import FusedOperation
from bert_tf.model.randomness import DropoutKey, update_key
from bert_tf.model.visibility import VisibleKeys

# Of the norm of a result or gradient. Rounding to bfloat16 makes 0.5 %.
_TOLERANCE = 0.03
_BATCH_SIZE = 2  # of an example, at least
# (backend, arrays) -> result, and the shapes of the arrays: those in the compute type, those in float32.
Example = tuple[Callable[..., tf.Tensor], Sequence[Sequence[int]], Sequence[Sequence[int]]]


def require_agreement(made: FusedOperation, with_kernels: Plain, without: Plain) -> None:
    """Compares the kernels of `made` with what XLA makes.

    Raises: Unavailable, if they differ or fail.
    """
    # In a thread of its own: this one is tracing a graph, where nothing can be run and compared.
    with ThreadPoolExecutor(max_workers=1) as pool:
        error = pool.submit(_largest_error, made, with_kernels, without).result()
    if not error <= _TOLERANCE:
        raise Unavailable(f"on this device they differ from XLA's results by {100 * error:.1f} %")


def _largest_error(made: FusedOperation, with_kernels: Plain, without: Plain) -> float:
    """Of the result and the gradients, relative to XLA's."""
    compute, data_shapes, float_shapes = _EXAMPLES[type(made)](made)
    given = [_normal(number, shape) for number, shape in enumerate([*data_shapes, *float_shapes])]
    given[: len(data_shapes)] = [tf.cast(array, without.compute_dtype) for array in given[: len(data_shapes)]]

    @tf.function(jit_compile=True, autograph=False)
    def largest_error(*inputs: tf.Tensor) -> tf.Tensor:
        computed, expected = (_results(functools.partial(compute, each), inputs) for each in (with_kernels, without))
        return tf.reduce_max([tf.norm(one - other) / tf.norm(other) for one, other in zip(computed, expected)])

    try:
        # Not called itself, or TensorFlow would warn of the fifth such function.
        return float(largest_error.get_concrete_function(*given)(*given))
    except tf.errors.OpError as error:
        raise Unavailable(f"they fail on this device: {error.message.splitlines()[0][:200]}") from None


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


def _attention(made: FusedAttention) -> Example:
    length, num_heads, width = made.sequence_length, made.num_heads, made.num_heads * made.head_size
    # A shorter and a full row, or two instances and one.
    numbers_BxS = tf.cast(tf.range(length) < [[length // 3], [length]], tf.int32)
    visible = VisibleKeys(numbers_BxS, numbers_BxS if made.is_packed else None)

    def compute(backend: Plain, query, key, value, query_bias, value_bias) -> tf.Tensor:
        dropout = _dropout(backend, made.dropout_rate, _BATCH_SIZE, num_heads, length, length)
        # The keys' bias has no gradient but rounding.
        projected = ((query, query_bias), (key, tf.zeros([width])), (value, value_bias))
        return backend.attention(projected, visible, dropout, num_heads, length)

    return compute, [[_BATCH_SIZE * length, width]] * 3, [[width]] * 2


def _add_norm(made: AddNorm) -> Example:
    length, width = made.sequence_length, made.hidden_size
    num_rows = _BATCH_SIZE * math.lcm(length, made.smallest_num_rows)

    def compute(backend: Plain, x, residual, bias, gamma, beta) -> tf.Tensor:
        dropout = _dropout(backend, made.dropout_rate, num_rows // length, length, width)
        return backend.residual_norm(x, bias, residual, gamma, beta, made.epsilon, length, dropout)

    return compute, [[num_rows, width]] * 2, [[width]] * 3


def _bias_gelu(made: BiasGelu) -> Example:
    def compute(backend: Plain, x, bias) -> tf.Tensor:
        return backend.bias_gelu(x, bias, made.exact)

    return compute, [[made.smallest_num_rows, made.intermediate_size]], [[made.intermediate_size]]


def _word_loss(made: WordLoss) -> Example:
    num_rows = made.smallest_num_rows
    labels_R = tf.random.stateless_uniform([num_rows], [98, 0], 0, made.vocab_size, tf.int32)

    def compute(backend: Plain, logits, bias) -> tf.Tensor:
        loss, _ = backend.word_loss(WordLogits(logits, bias, made.vocab_size), labels_R, tf.ones([num_rows]))
        return loss

    return compute, [[num_rows, made.padded_size]], [[made.padded_size]]


_EXAMPLES: dict[type, Callable[[Any], Example]] = {
    FusedAttention: _attention,
    AddNorm: _add_norm,
    BiasGelu: _bias_gelu,
    WordLoss: _word_loss,
}
