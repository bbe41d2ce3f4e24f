"""TensorFlow as the project starts it, what differs between its versions, and what has no public name.

All of the library gets TensorFlow from here, because what is chosen below must be in the environment before TensorFlow
is imported. Where a user has imported it before, it stays as it is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from bert_tf.base.machine.software import check_temporary_folder, check_version, contains_keras_2
from bert_tf.base.xla_flags import configure_xla

# On processors without AVX-512 TensorFlow leaves oneDNN off, with which an update on them takes 12 % less time.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
configure_xla()
check_temporary_folder()

import tensorflow as tf  # noqa: E402

# A class's instances share the names of up to 30 attributes (SHARED_KEYS_MAX_SIZE of CPython 3.11's dictobject.c).
_MOST_SHARED_NAMES = 30


def _find_keras() -> Any:
    """Keras 2: a part of TensorFlow up to 2.15, and the package tf_keras for all later ones, whose own is Keras 3.

    Imported by its name, tf_keras does not depend on whether something has chosen a Keras before (TF_USE_LEGACY_KERAS).
    """
    check_version(tf.__version__)
    if contains_keras_2(tf.__version__):
        # It is for later versions; these, too, would look for the package tf_keras.
        os.environ.pop("TF_USE_LEGACY_KERAS", None)
        return tf.keras
    import tf_keras

    return tf_keras


if TYPE_CHECKING:
    from tensorflow import keras
else:
    keras = _find_keras()


def xla_operations() -> Any:
    """TensorFlow's operations for programs that XLA compiles."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops


def xla_messages() -> Any:
    """The messages that describe XLA's operations, such as `DotDimensionNumbers`."""
    from tensorflow.compiler.xla import xla_data_pb2

    return xla_data_pb2


def optimization_barrier(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Copies of `tensors`: XLA neither fuses nor merges what reads them with what is before them."""
    return xla_operations().xla_optimization_barrier(tensors)


def parse_object_graph(stored: bytes) -> Any:
    """The objects of a TF2 checkpoint with their Keras names, TensorFlow's message `TrackableObjectGraph`."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    return TrackableObjectGraph.FromString(stored)


def limit_lost_memory() -> None:
    """Reduces what each tensor loses on Python 3.11 with TensorFlow up to 2.15 from 48 to 16 bytes.

    To be called before the first variable. There TensorFlow does not free the array of a tensor's Python attributes
    (its issue 62551). Python makes the array large enough for the attributes of any tensor so far, and a variable's
    tensor is given six; but only as long as fewer than 30 tensors have been made.
    """
    for _ in range(_MOST_SHARED_NAMES):
        tf.constant(0)
