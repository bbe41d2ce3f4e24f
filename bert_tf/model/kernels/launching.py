"""Kernels as operations of programs that XLA compiles: TensorFlow calls a C function of ours, which launches them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.compiled import compiled_file, load_library
from bert_tf.base.tensorflow import tf, xla_operations
from bert_tf.model.kernels.compilation import Compiled, Kernel, KernelsUnavailable, compile_kernels
from bert_tf.model.kernels.requirements import LAUNCHER, OLDEST_CAPABILITY

# Triton's names for the types of kernels' parameters.
TYPES = {
    tf.bfloat16: "*bf16",
    tf.float16: "*fp16",
    tf.float32: "*fp32",
    tf.int32: "*i32",
    tf.int64: "*i64",
    tf.uint64: "*u64",
}
Buffer = tuple[Sequence[int], tf.DType]  # shape and type
TARGET = "bert_tf_kernel"  # XLA's name for the C function
# C++ names in TensorFlow's library: xla::CustomCallTargetRegistry's Global() and Register(name, function, platform).
_REGISTRY = "_ZN3xla24CustomCallTargetRegistry6GlobalEv"
_REGISTER = "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPvS8_"


def compute_capability() -> tuple[int, int]:
    """Of the GPU that TensorFlow uses. Raises: KernelsUnavailable, without one."""
    for gpu in tf.config.get_visible_devices("GPU"):
        return tf.config.experimental.get_device_details(gpu)["compute_capability"]
    raise KernelsUnavailable("there is no GPU")


@functools.cache
def find_kernels(kernels: tuple[Kernel, ...]) -> list[int]:
    """The numbers by which `call` names these kernels, compiled for this machine's GPU.

    Raises: KernelsUnavailable.
    """
    capability = compute_capability()
    if capability < OLDEST_CAPABILITY:
        raise KernelsUnavailable("they need compute capability 8.0 or later, not {}.{}".format(*capability))
    return add_kernels(compile_kernels(kernels, capability))


def add_kernels(kernels: Sequence[Compiled]) -> list[int]:
    """Makes kernels known to the C function. Returns the numbers by which `call` names them.

    Raises: KernelsUnavailable.
    """
    code = launcher()
    code.load_driver.restype = ctypes.c_char_p
    if missing := code.load_driver():
        raise KernelsUnavailable(f"the GPU's driver lacks {missing.decode()}")
    register("CUDA")
    return [
        code.add_kernel(
            kernel.image,
            ctypes.c_size_t(len(kernel.image)),
            kernel.name.encode(),
            kernel.num_warps,
            kernel.shared_bytes,
        )
        for kernel in kernels
    ]


@functools.cache
def launcher() -> ctypes.PyDLL:
    """The compiled launch.cpp. Raises: KernelsUnavailable."""
    code = load_library(compiled_file(LAUNCHER))
    if code is None:
        raise KernelsUnavailable("the project's C++ is not compiled (python -m bert_tf.base.compiled)")
    return code


@functools.cache
def register(platform: str, function: int | None = None) -> None:
    """Registers the target of `call` with XLA for a platform, "CUDA" or "Host".

    Args:
      function: the address of a C function (stream, buffers, config, its size, status); None: the one for GPUs.

    Raises: KernelsUnavailable.
    """
    try:
        library = ctypes.CDLL(str(Path(tf.__file__).with_name("libtensorflow_cc.so.2")))
        addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p) for name in (_REGISTRY, _REGISTER)]
    except (OSError, AttributeError):
        raise KernelsUnavailable("this build of TensorFlow does not show XLA's registry of custom calls") from None
    launcher().register_target(*addresses, TARGET.encode(), ctypes.c_void_p(function), platform.encode())


def call(kernel: int, grid: Sequence[int], operands: Sequence[tf.Tensor], results: Sequence[Buffer]) -> list[tf.Tensor]:
    """Launches a kernel over a grid of programs, within a program that XLA compiles.

    Args:
      operands: the kernel's first parameters, row-major.
      results: shapes and types of what the kernel writes, its last parameters.

    Returns: the results.
    """
    return xla_operations().xla_custom_call_v2(
        list(operands),
        call_target_name=TARGET,
        backend_config=" ".join(map(str, (kernel, *grid, len(operands) + len(results)))),
        has_side_effect=False,
        result_dtypes=[dtype for _, dtype in results],
        result_shapes=[tf.TensorShape(shape) for shape, _ in results],
    )
