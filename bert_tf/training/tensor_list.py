"""Many tensors packed as one, to pass them from one tf.function to the next.

Each tensor that leaves a tf.function costs the host a Python object, hundreds an update for BERT; and TensorFlow up to
2.15 leaks some bytes of each on Python 3.11 (tensorflow/tensorflow issue 62551), gigabytes in a long training.
The list holds the tensors themselves: nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.tensorflow import tf


def pack(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """One scalar of type variant that holds `tensors`, which are of one type and of any shapes."""
    dtype = tensors[0].dtype
    handle = tf.raw_ops.TensorListReserve(element_shape=-1, num_elements=len(tensors), element_dtype=dtype)
    for number, tensor in enumerate(tensors):
        handle = tf.raw_ops.TensorListSetItem(input_handle=handle, index=number, item=tensor)
    return handle


def unpack(handle: tf.Tensor, dtype: tf.DType, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    """The tensors that `pack` was given, whose type and shapes the caller knows."""
    return [
        tf.raw_ops.TensorListGetItem(input_handle=handle, index=number, element_shape=shape, element_dtype=dtype)
        for number, shape in enumerate(shapes)
    ]
