"""Matmuls on GPUs that are the same in every run."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

# XLA would time several algorithms of cuBLAS for a matmul, and kernels of its own that are only chosen by timing. The
# fastest one differs from run to run, and rounds otherwise. All supported versions of TensorFlow, those for CPUs too,
# know these flags; XLA ends the process at one that it does not know.
_WITHOUT_TIMING = {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": "false"}


def choose_matmuls_without_timing(environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets XLA take cuBLAS's own choice for each matmul. Must be called before TensorFlow is imported.

    A flag that the user has set stays as it is, and so does XLA_FLAGS if it names a file of flags.
    """
    given = environ.get("XLA_FLAGS", "").strip()
    if given and not given.startswith("-"):
        return
    named = set(re.findall(r"(?:^|\s)--?(\w+)", given))
    added = [f"--{name}={value}" for name, value in _WITHOUT_TIMING.items() if name not in named]
    environ["XLA_FLAGS"] = " ".join(filter(None, [given, *added]))
