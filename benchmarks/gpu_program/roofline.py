"""How long a GPU would take for the kernels of a compiled program: a prediction, not a measurement.

A kernel takes as long as its arithmetic or its memory traffic, whichever is longer, plus the time of a launch. Apart
from the data sheets' peaks there are the constants below, which are the same for all GPUs, programs and precisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from benchmarks.gpu_program.kernels import Kernel
from bert_tf.run.gpus import peak_tflops

# Shares of the peaks that are reached in practice: by cuBLAS with large matrices on tensor cores and on ordinary cores,
# by kernels that stream memory, and by element-wise arithmetic, half of which is not fused multiply-adds.
TENSOR_CORE_SHARE = 0.70
CORE_SHARE = 0.90
MEMORY_SHARE = 0.80
ARITHMETIC_SHARE = 0.50
# Time between the end of one kernel and the useful work of the next.
LAUNCH_SECS = 4e-6
# A matmul is cut into tiles of this many rows and columns, or half as many; every multiprocessor takes one at a time.
TILE = 128
# The inner dimension of a matmul that is no batch of several is cut into up to this many parts, where that is faster.
MOST_PARTS = 8


class Gpu(NamedTuple):
    """Facts from NVIDIA's data sheets and device queries."""

    name: str  # as the driver says it
    capability: tuple[int, int]
    multiprocessors: int
    lanes: int  # float32 lanes of a multiprocessor
    shared_memory: int  # bytes of a multiprocessor
    shared_memory_of_block: int
    l2_cache: int
    clock_ghz: float
    bandwidth: float  # bytes/s
    memory: int  # bytes

    @property
    def tensor_core_types(self) -> tuple[str, ...]:
        return ("f16",) if self.capability < (8, 0) else ("f16", "bf16", "tf32")

    def description(self) -> str:
        """A GpuTargetConfigProto as text, for the compiler."""
        major, minor = self.capability
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  shared_memory_per_block: 49152 shared_memory_per_core: {self.shared_memory}
  shared_memory_per_block_optin: {self.shared_memory_of_block}
  core_count: {self.multiprocessors} fpus_per_core: {self.lanes} clock_rate_ghz: {self.clock_ghz}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth:.0f} l2_cache_size: {self.l2_cache} device_memory_size: {self.memory}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
}}
platform_name: "CUDA" dnn_version_info {{ major: 8 minor: 9 patch: 4 }} device_description_str: "{self.name}"
"""


GPUS = {
    "V100": Gpu("Tesla V100-SXM2-32GB", (7, 0), 80, 64, 98304, 98304, 6 << 20, 1.53, 898e9, 34072559616),
    "A100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 167936, 166912, 40 << 20, 1.41, 2039e9, 85094825984),
    "H100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 233472, 232448, 50 << 20, 1.98, 3352e9, 84942979072),
}


def matmul_type(kernel: Kernel, precision: str) -> str:
    """The type in which a matmul is computed: float32 becomes tf32 if that is on."""
    return "tf32" if kernel.dtype == "f32" and precision == "tf32" else kernel.dtype


def on_tensor_cores(kernel: Kernel, gpu: Gpu, precision: str) -> bool:
    """Whether cuBLAS uses tensor cores for a matmul: its type must allow it, and its sides be multiples of 16 bytes."""
    multiple = 8 if kernel.dtype in ("f16", "bf16") else 4
    aligned = all(size % multiple == 0 for size in kernel.shape[1:])
    return matmul_type(kernel, precision) in gpu.tensor_core_types and aligned


def matmul_peak(kernel: Kernel, gpu: Gpu, precision: str) -> float:
    """FLOP/s that matmuls of this type reach if whole tiles keep all multiprocessors busy and memory does not limit."""
    if on_tensor_cores(kernel, gpu, precision):
        named = {"f16": "fp16", "bf16": "bf16", "tf32": "tf32"}[matmul_type(kernel, precision)]
        return TENSOR_CORE_SHARE * 1e12 * (peak_tflops(gpu.name, named) or math.nan)
    return CORE_SHARE * 1e12 * (peak_tflops(gpu.name, "fp32") or math.nan)


def matmul_secs(kernel: Kernel, gpu: Gpu, precision: str, parts: int = 1) -> float:
    """Seconds of a matmul, its inner dimension cut into `parts` whose products a second launch adds up.

    A matmul with few tiles and a long inner dimension, such as the gradient of a weight, keeps all multiprocessors busy
    only if it is cut. cuBLAS does that (split-K: NVIDIA, Matrix Multiplication Background User's Guide).
    """
    batch, rows, columns, _ = kernel.shape
    tiles, used = float(batch * parts), 1.0
    for size in (rows, columns):
        tile = TILE if size > TILE // 2 else TILE // 2
        count = math.ceil(size / tile)
        tiles, used = tiles * count, used * size / (count * tile)
    waves = math.ceil(tiles / gpu.multiprocessors)
    rate = matmul_peak(kernel, gpu, precision) * used * tiles / (waves * gpu.multiprocessors)
    bandwidth = MEMORY_SHARE * gpu.bandwidth
    products = 4.0 * parts * rows * columns if parts > 1 else 0.0  # bytes, in float32
    multiplied = LAUNCH_SECS + max(kernel.flops / rate, (kernel.bytes + products) / bandwidth)
    return multiplied + (LAUNCH_SECS + products / bandwidth if products else 0.0)


def kernel_secs(kernel: Kernel, gpu: Gpu, precision: str) -> float:
    """Seconds of one launch, or of the two of a matmul whose inner dimension is cut."""
    if kernel.kind == "matmul":
        most = MOST_PARTS if kernel.shape[0] == 1 else 1
        return min(matmul_secs(kernel, gpu, precision, parts) for parts in range(1, most + 1))
    rate = ARITHMETIC_SHARE * gpu.multiprocessors * gpu.lanes * gpu.clock_ghz * 1e9
    return LAUNCH_SECS + max(kernel.flops / rate, kernel.bytes / (MEMORY_SHARE * gpu.bandwidth))


def total_secs(kernels: Iterable[Kernel], gpu: Gpu, precision: str) -> float:
    return sum(kernel.times * kernel_secs(kernel, gpu, precision) for kernel in kernels)
