"""What stays on a GPU: outside XLA no tensor of a batch goes through an operation that TensorFlow keeps on the host,
and nothing is called back to it.

A build of TensorFlow for CPUs knows no GPU kernels, so they are listed here.
"""

import pytest
import tensorflow as tf

from tests.training.test_packed_update import pack, short_batch
from tests.training.test_train_step import Workers, global_batch, make_step, rows_of, traced_apply, traced_sums

# Operations whose kernels for GPUs have int32 in host memory: registered with HostMemory for all tensors where T is
# int32 ("A special GPU kernel for int32") in TensorFlow 2.15.1's tensorflow/core/kernels/.
HOST_INT32 = set(
    """Add AddN AddV2 ConcatV2 Equal ExpandDims Fill FloorDiv FloorMod Greater GreaterEqual Identity Less LessEqual Max
    Maximum Min Minimum Mul NotEqual Pack Range Reshape Squeeze StridedSlice StridedSliceGrad Sub Sum Unpack""".split()
)
LARGEST_SHAPE = 8  # elements: more than any tensor's dimensions, fewer than the values of any batch here


def operations_outside_xla(graph):
    """Of a graph and of the functions that it calls, but for those that XLA compiles."""
    for operation in graph.get_operations():
        yield operation
        for name in operation.node_def.attr:
            called = operation.node_def.attr[name].func.name
            if called and not is_compiled(graph, called):
                yield from operations_outside_xla(graph._get_function(called).graph)


def is_compiled(graph, name):
    return graph._get_function(name).cached_definition.attr["_XlaMustCompile"].b


def is_large_int32(tensor):
    size = tensor.shape.num_elements()
    return tensor.dtype == tf.int32 and (size is None or size > LARGEST_SHAPE)


def on_the_host(graph):
    return {
        (operation.type, operation.name)
        for operation in operations_outside_xla(graph)
        if operation.type in HOST_INT32 and any(map(is_large_int32, [*operation.inputs, *operation.outputs]))
    }


@pytest.mark.parametrize("scope", ["off", "blocks"])
def test_no_batch_goes_through_the_host(scope):
    step, *_ = make_step(Workers(), scope=scope)
    batch, num_micro_batches = pack(short_batch(0), 2)
    packed = traced_sums(step, rows_of(batch, 0, 4, 2), tf.constant(num_micro_batches))
    for concrete in packed, traced_sums(step, rows_of(global_batch(), 0, 2, 4)), traced_apply(step):
        seen = [operation.type for operation in operations_outside_xla(concrete.graph)]
        assert len(seen) > 100 and not on_the_host(concrete.graph)
        assert not {"PyFunc", "PyFuncStateless", "EagerPyFunc"} & set(seen)
