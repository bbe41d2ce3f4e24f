"""A CPU in place of the GPU: what XLA compiles calls the kernels, and Triton's interpreter runs them on XLA's memory.

The compiler, the driver and the question which GPU this is are left out, all else is the product, but for the drawing
of dropouts: the interpreter takes two seconds for a row.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import Kernel, KernelsUnavailable
from tests.model.kernels.interpreted import launch

# On a CPU, XLA passes results apart from inputs, and a single one not in an array.
NUM_RESULTS = dict(draw_keep_bits=1, attend_forward=3, attend_gradients=4)
NUM_RESULTS |= dict(attend_query_gradient=4, attend_key_value_gradients=3, add_norm_forward=4, add_norm_gradients=3)
NUM_RESULTS |= dict(bias_gelu_forward=1, bias_gelu_gradients=2, word_loss=3, word_loss_gradient=2)
_Pointers = ctypes.POINTER(ctypes.c_void_p)
Launch = Callable[[str, Sequence[int], Sequence[int], Sequence[str], dict], None]  # `interpreted.launch`


def draw_keep_bits(
    name: str, grid: Sequence[int], addresses: Sequence[int], types: Sequence[str], constants: dict
) -> None:
    """The kernel's work in NumPy; that the words are the same: test_dropout_bits."""
    num_rows, num_counts = grid[1], constants["COUNTS"]

    def array(address, dtype, *shape):
        buffer = (ctypes.c_char * (np.dtype(dtype).itemsize * math.prod(shape))).from_address(address)
        return np.frombuffer(buffer, dtype).reshape(shape)

    key, first_row = array(addresses[0], np.uint64, 1), array(addresses[1], np.int64, 1)
    counts = first_row * num_counts + np.arange(num_rows * num_counts)
    random = philox(key, counts.astype(np.uint64)).view(np.int16).reshape(num_rows, num_counts, 8)
    kept = random >= constants["THRESHOLD"] >> 16
    words = np.packbits(kept.transpose(0, 2, 1), bitorder="little").view(np.int32)
    array(addresses[2], np.int32, num_rows, num_counts // 4)[:] = words.reshape(num_rows, num_counts // 4)


def philox(key: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Philox 4x32-10 (Salmon et al., 2011) of counts [N] of 64 bits with a key: uint32 [N, 4]."""
    low, upper = np.uint64(2**32 - 1), np.uint64(32)
    a, b, c, d = counts & low, counts >> upper, 0 * counts, 0 * counts
    k_a, k_c = key & low, key >> upper
    for _ in range(10):
        product_a, product_c = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = product_c >> upper ^ b ^ k_a, product_c & low, product_a >> upper ^ d ^ k_c, product_a & low
        k_a, k_c = k_a + np.uint64(0x9E3779B9) & low, k_c + np.uint64(0xBB67AE85) & low
    return np.stack([a, b, c, d], axis=-1).astype(np.uint32)


class StandIn:
    """How often each kernel was called, and what is called in the place of some."""

    def __init__(self) -> None:
        self.num_calls: collections.Counter[str] = collections.Counter()
        self.instead: dict[str, Launch] = {"draw_keep_bits": draw_keep_bits}


_kernels: list[Kernel] = []  # by the numbers in XLA's programs
_current = StandIn()
_Target = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _Pointers, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)


@_Target
def _target(results, inputs, config, size, status):
    """The custom call's target, of which XLA keeps one for each platform."""
    try:
        number, *grid, num_buffers = map(int, config[:size].split())
        kernel = _kernels[number]
        num_results = NUM_RESULTS[kernel.function]
        addresses = inputs[: num_buffers - num_results]
        addresses += [results] if num_results == 1 else ctypes.cast(results, _Pointers)[:num_results]
        _current.num_calls[kernel.function] += 1
        run = _current.instead.get(kernel.function, launch)
        run(kernel.function, grid, addresses, kernel.types, dict(kernel.constants))
    except Exception as error:
        text = str(error).encode()
        # It fails with what it was told instead of a launch.
        _target_for_gpus()(None, None, text, len(text), status)


@functools.cache
def _target_for_gpus():
    """The product's target, which it gives to nobody but XLA's registry."""
    addresses = []
    add_type = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
    registry, add = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: None), add_type(lambda *given: addresses.append(given[2]))
    functions = [ctypes.cast(function, ctypes.c_void_p) for function in (registry, add)]
    launching.launcher().register_target(*functions, b"", None, b"")
    return _Target(addresses[0])


def _add_kernels(kernels: Sequence[Kernel]) -> list[int]:
    _kernels.extend(kernels)
    return list(range(len(_kernels) - len(kernels), len(_kernels)))


@contextlib.contextmanager
def in_place_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Whoever asks for kernels gets those of the stand-in."""
    global _current
    try:
        launching.register("Host", ctypes.cast(_target, ctypes.c_void_p).value)
    except KernelsUnavailable as reason:
        pytest.skip(str(reason))
    _current = StandIn()
    monkeypatch.setattr(launching, "compute_capability", lambda: (9, 0))
    monkeypatch.setattr(launching, "compile_kernels", lambda kernels, capability: kernels)
    monkeypatch.setattr(launching, "add_kernels", _add_kernels)
    launching.find_kernels.cache_clear()
    yield _current
    launching.find_kernels.cache_clear()
