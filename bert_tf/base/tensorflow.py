"""TensorFlow as the project starts it, what differs between its versions, and what has no public name.

The whole library imports TensorFlow from this module, because the variables set below must be in the environment before
TensorFlow is imported. If a user's program has imported TensorFlow before, they have no effect.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import TYPE_CHECKING, Any

from bert_tf.base.machine.software import check_temporary_folder, check_version, contains_keras_2
from bert_tf.base.xla_flags import configure_xla

# Without AVX-512 TensorFlow leaves oneDNN off, although it makes an update on such a processor take 12 % less time.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
configure_xla()
check_temporary_folder()

import tensorflow as tf  # noqa: E402

# A class's instances share the names of up to 30 attributes (SHARED_KEYS_MAX_SIZE of CPython 3.11's dictobject.c).
_MOST_SHARED_NAMES = 30


def _find_keras() -> Any:
    """Keras 2: a part of TensorFlow up to 2.15; for later versions, which contain Keras 3, the package tf_keras.

    tf_keras is imported by its own name, so that TF_USE_LEGACY_KERAS, which decides what tf.keras is, does not matter.
    """
    check_version(tf.__version__)
    if contains_keras_2(tf.__version__):
        # Meant for later versions, it would make 2.15, too, look for the package tf_keras.
        os.environ.pop("TF_USE_LEGACY_KERAS", None)
        return tf.keras
    import tf_keras

    return tf_keras


if TYPE_CHECKING:
    from tensorflow import keras
else:
    keras = _find_keras()


def is_of_keras_3(value: Any) -> bool:
    """Whether a value is a symbolic tensor of Keras 3, such as its inputs."""
    return type(value).__module__.startswith("keras.src.backend.")


def is_called_by_keras_3() -> bool:
    """Whether a layer or model of Keras 3 is being called: it does not know the variables of a model of Keras 2."""
    state = sys.modules.get("keras.src.backend.common.global_state")
    return state is not None and state.get_global_attribute("current_call_ctx") is not None


def xla_operations() -> Any:
    """TensorFlow's module of operations for programs that XLA compiles."""
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops


def xla_messages() -> Any:
    """The messages that describe XLA's operations, such as `DotDimensionNumbers`."""
    from tensorflow.compiler.xla import xla_data_pb2

    return xla_data_pb2


def optimization_barrier(*tensors: tf.Tensor) -> list[tf.Tensor]:
    """Copies of `tensors`: XLA fuses or merges no operation that reads them with one that computes `tensors`."""
    return xla_operations().xla_optimization_barrier(tensors)


def parse_object_graph(stored: bytes) -> Any:
    """The objects of a TF2 checkpoint with their Keras names, TensorFlow's message `TrackableObjectGraph`."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    return TrackableObjectGraph.FromString(stored)


def bind_gradient(result: tf.Tensor) -> None:
    """Binds the gradient function of a result of `tf.custom_gradient` in a graph to the life of this graph.

    TensorFlow registers the function for the life of the process, and it holds the graph, which holds the memory of all
    variables that it reads: a program that makes models again and again would run out of memory.
    """
    from tensorflow.python.framework.ops import gradient_registry

    name, graph = result.op.get_attr("_gradient_op_type").decode(), result.graph
    gradient = gradient_registry.lookup(name)
    if not hasattr(graph, "bound_gradients"):
        graph.bound_gradients = []
    graph.bound_gradients.append(gradient)
    find = weakref.ref(gradient)

    def call(*arguments: Any) -> Any:
        alive = find()
        assert alive, "whoever asks for an operation's gradient has its graph"
        return alive(*arguments)

    gradient_registry._registry[name]["type"] = call


def limit_leaked_memory() -> None:
    """Reduces the memory that each tensor leaks on Python 3.11 with TensorFlow up to 2.15 from 48 to 16 bytes.

    To be called before the first variable is created. In these versions TensorFlow does not free the array of a
    tensor's Python attributes (its issue 62551). Python makes the array large enough for the attributes of any earlier
    tensor, and a variable's tensor gets six of them; but only while fewer than 30 tensors have been created.
    """
    for _ in range(_MOST_SHARED_NAMES):
        tf.constant(0)
