"""The device that a rank computes on: its name, and which arithmetic it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import processor_facts
from bert_tf.base.tensorflow import limit_leaked_memory, tf


def device_name() -> str:
    """The driver's name of the first GPU, else "CPU"."""
    gpus = tf.config.get_visible_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"


def has_fast_bf16(facts: Mapping[str, str] | None = None) -> bool:
    """Whether oneDNN gains from bfloat16 matmuls on this processor: x86 with AVX-512, ARM with BF16, never on macOS."""
    facts = processor_facts() if facts is None else facts  # has "flags" on x86, "Features" on ARM; empty on macOS
    return not {"avx512f", "bf16"}.isdisjoint(facts.get("flags", facts.get("Features", "")).split())


def slow_fp16(precision: str, facts: Mapping[str, str] | None = None) -> str:
    """A warning about fp16 on x86 without AVX512-FP16, where TensorFlow has no fast matmul in it; else ""."""
    flags = (processor_facts() if facts is None else facts).get("flags", "").split()
    if precision != "fp16" or not flags or "avx512_fp16" in flags or tf.config.list_physical_devices("GPU"):
        return ""
    faster = "fp32 or bf16" if "avx512f" in flags else "fp32"
    return f"--precision=fp16: matmuls in fp16 take this processor some hundred times as long as in fp32; use {faster}"


def prepare_device(precision: str, scope: str) -> None:
    """Turns TF32 on or off and makes GPU sums deterministic for the whole process. Call it before making the model.

    `scope`: the XLA scope of `model.backends`. In "step" XLA compiles every sum, and `model.lookup_gradient` fixes the
    order; TensorFlow's op determinism would turn each sum over equal ids into a loop over the tokens.

    Raises: UserError for bf16 on a processor that does not gain from it.
    """
    if precision == "bf16" and not tf.config.list_physical_devices("GPU") and not has_fast_bf16():
        raise UserError(
            "--precision=bf16: this processor has no AVX-512, or BF16 on ARM, or this is a Mac: "
            "bfloat16 is slower there than fp32 or ends the process; omit the flag, or give --precision=fp32"
        )
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if tf.config.list_physical_devices("GPU"):
        if scope == "step":
            os.environ.pop("TF_DETERMINISTIC_OPS", None)  # op determinism, requested by the user's environment
        else:
            tf.config.experimental.enable_op_determinism()
    limit_leaked_memory()
