"""The device that a rank computes on: its name, and which arithmetic it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import limit_lost_memory

# Values of ONEDNN_MAX_CPU_ISA.
_BELOW_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")


def device_name() -> str:
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"


def has_fast_bf16(environ: Mapping[str, str] = os.environ, cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether oneDNN multiplies bfloat16 matrices on this processor: an x86 processor needs AVX-512 for that."""
    if environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _BELOW_AVX512:
        return False
    flags = [line for line in cpu_info.read_text().splitlines() if line.startswith("flags")]  # none: not x86
    return not flags or "avx512f" in flags[0].split()


def prepare_device(precision: str) -> None:
    """Turns TF32 on or off, for the whole process, before there is a model.

    Raises: UserError for bf16 on a processor that gains nothing.
    """
    if precision == "bf16" and not tf.config.list_physical_devices("GPU") and not has_fast_bf16():
        raise UserError(
            "--precision=bf16: this processor has no AVX-512 (or ONEDNN_MAX_CPU_ISA hides it), without which bfloat16 "
            "is slower than float32 or ends the process; omit the flag, or give --precision=fp32"
        )
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    limit_lost_memory()
