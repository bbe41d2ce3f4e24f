"""The device that a rank computes on: its name, and which arithmetic it can do."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import processor_facts
from bert_tf.base.tensorflow import limit_leaked_memory, tf


def device_name() -> str:
    gpus = tf.config.get_visible_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"


def has_fast_bf16(facts: Mapping[str, str] | None = None) -> bool:
    """Whether oneDNN multiplies bfloat16 matrices here: on x86 with AVX-512, on ARM with BF16, and not on macOS."""
    facts = processor_facts() if facts is None else facts  # of x86 with "flags", of ARM with "Features"; of macOS none
    return not {"avx512f", "bf16"}.isdisjoint(facts.get("flags", facts.get("Features", "")).split())


def prepare_device(precision: str, scope: str) -> None:
    """Turns TF32 on or off, and makes GPUs add in one order, for the whole process, before there is a model.

    `scope`: XLA's, of `model.backends`. In "step", where XLA compiles all that adds, `model.lookup_gradient` keeps the
    order; there TensorFlow's demand for it would turn each sum over equal ids into a loop over the tokens.

    Raises: UserError for bf16 on a processor that gains nothing.
    """
    if precision == "bf16" and not tf.config.list_physical_devices("GPU") and not has_fast_bf16():
        raise UserError(
            "--precision=bf16: this processor has no AVX-512, or BF16 on ARM, or this is a Mac: "
            "bfloat16 is slower there than fp32 or ends the process; omit the flag, or give --precision=fp32"
        )
    tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
    if tf.config.list_physical_devices("GPU"):
        if scope == "step":
            os.environ.pop("TF_DETERMINISTIC_OPS", None)  # the same demand, by a user's variable
        else:
            tf.config.experimental.enable_op_determinism()
    limit_leaked_memory()
