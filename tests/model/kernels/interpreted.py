"""The GPU's kernels on a CPU: Triton's interpreter runs them with NumPy, each of their programs after the other.

Importing this skips the tests where there is no Triton, or where it cannot be in one process with TensorFlow: each
brings its own LLVM, and TensorFlow 2.20 and Triton 3.9 end the process for it. (The product starts Triton in another.)
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np
import pytest

from bert_tf.base.machine.software import contains_keras_2
from bert_tf.base.tensorflow import tf

BFLOAT16 = tf.bfloat16.as_numpy_dtype
_FLOATS = {np.float16: "*fp16", BFLOAT16: "*bf16", np.float32: "*fp32"}
_INTEGERS = {np.int32: "*i32", np.int64: "*i64", np.uint64: "*u64"}
TYPES = {np.dtype(kind): name for kind, name in {**_FLOATS, **_INTEGERS}.items()}


def _import_interpreted(*names: str) -> list[ModuleType]:
    """Triton reads the variable when it is imported and when it decorates a kernel."""
    if not contains_keras_2(tf.__version__):
        pytest.skip("Triton and this TensorFlow cannot be in one process", allow_module_level=True)
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton", reason="Triton, which has the kernels, is not installed")
        return [importlib.import_module(f"bert_tf.model.kernels.{name}") for name in names]


MODULES = _import_interpreted("attention", "between_matmuls", "dropout_bits", "word_loss")

from triton import language  # noqa: E402  # as the lines above have imported it
from triton.runtime.interpreter import TensorHandle, interpreter_builder  # noqa: E402


def _make_dots_read_bfloat16() -> None:
    """Triton 3.9's interpreter multiplies the bits of bfloat16 as if they were integers."""
    plain_dot = interpreter_builder.create_dot

    def exact(factor: TensorHandle) -> TensorHandle:
        if factor.dtype.scalar != language.bfloat16:
            return factor
        return TensorHandle((factor.data.astype(np.uint32) << 16).view(np.float32), language.float32)

    interpreter_builder.create_dot = lambda a, b, *others: plain_dot(exact(a), exact(b), *others)


_make_dots_read_bfloat16()


def find_function(name: str):
    """The kernel of this name."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


def launch(
    name: str, grid: Sequence[int], addresses: Sequence[int], types: Sequence[str], constants: Mapping[str, float]
) -> None:
    """Runs a kernel on memory of this process; `types` as in `compilation.Kernel`."""
    pointers = []
    for address, kind in zip(addresses, types):
        pointer_type = language.str_to_ty(kind, None)
        pointers.append(language.tensor(TensorHandle(np.array([address], np.uint64), pointer_type), pointer_type))
    find_function(name)[tuple(grid)](*pointers, **constants)


def run(name: str, grid: Sequence[int], inputs: Sequence[np.ndarray], results: Sequence[np.ndarray], **constants):
    """Runs a kernel, which fills the arrays of the results; returns these."""
    arrays = [*inputs, *results]
    assert all(array.flags.c_contiguous for array in arrays)
    types = [TYPES[array.dtype] for array in arrays]
    launch(name, grid, [array.ctypes.data for array in arrays], types, constants)
    return results


def unwritten(shape: Sequence[int], dtype) -> np.ndarray:
    """Memory for a result. What a kernel leaves out stays NaN, or -1."""
    return np.full(shape, np.nan if np.dtype(dtype) in (np.float16, BFLOAT16, np.float32) else -1, dtype)


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Of the norm."""
    return float(np.linalg.norm(found.astype(np.float64) - expected) / np.linalg.norm(expected))
