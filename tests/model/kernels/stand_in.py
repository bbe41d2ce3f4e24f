"""A CPU in place of the GPU: what XLA compiles calls the kernels, and Triton's interpreter runs them on XLA's memory.

The compiler, the driver and the question which GPU this is are left out, all else is the product.
"""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Callable, Iterator, Sequence

import pytest

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import Kernel
from tests.model.kernels.interpreted import launch

# On a CPU, XLA passes results apart from inputs, and a single one not in an array.
NUM_RESULTS = {
    "draw_keep_bits": 1,
    "attend_forward": 3,
    "attend_gradients": 4,
    "attend_query_gradient": 4,
    "attend_key_value_gradients": 3,
    "add_norm_forward": 4,
    "add_norm_gradients": 3,
    "bias_gelu_forward": 1,
    "bias_gelu_gradients": 2,
}
_Pointers = ctypes.POINTER(ctypes.c_void_p)
Launch = Callable[[str, Sequence[int], Sequence[int], Sequence[str], dict], None]  # `interpreted.launch`


class StandIn:
    """How often each kernel was called, and what is called in the place of some."""

    def __init__(self) -> None:
        self.num_calls: collections.Counter[str] = collections.Counter()
        self.instead: dict[str, Launch] = {}


_kernels: list[Kernel] = []  # by the numbers in XLA's programs
_current = StandIn()


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Pointers, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
def _target(results, inputs, config, _, status):
    """The custom call's target, of which XLA keeps one for each platform."""
    try:
        number, *grid, num_buffers = map(int, config.split())
        kernel = _kernels[number]
        num_results = NUM_RESULTS[kernel.function]
        addresses = inputs[: num_buffers - num_results]
        addresses += [results] if num_results == 1 else ctypes.cast(results, _Pointers)[:num_results]
        _current.num_calls[kernel.function] += 1
        run = _current.instead.get(kernel.function, launch)
        run(kernel.function, grid, addresses, kernel.types, dict(kernel.constants))
    except Exception as error:
        text = repr(error).encode()
        _library().XlaCustomCallStatusSetFailure(ctypes.c_void_p(status), text, ctypes.c_size_t(len(text)))


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(tf.__file__.replace("__init__.py", "libtensorflow_cc.so.2"))


def _add_kernels(kernels: Sequence[Kernel]) -> list[int]:
    launching.register("Host", ctypes.cast(_target, ctypes.c_void_p).value)
    _kernels.extend(kernels)
    return list(range(len(_kernels) - len(kernels), len(_kernels)))


@pytest.fixture
def stand_in(monkeypatch) -> Iterator[StandIn]:
    global _current
    _current = StandIn()
    monkeypatch.setattr(launching, "compute_capability", lambda: (9, 0))
    monkeypatch.setattr(launching, "compile_kernels", lambda kernels, capability: kernels)
    monkeypatch.setattr(launching, "add_kernels", _add_kernels)
    launching._find_kernels.cache_clear()
    yield _current
    launching._find_kernels.cache_clear()
