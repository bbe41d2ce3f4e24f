"""XLA's flags, set before TensorFlow starts: matmuls on GPUs with the same result in every run, faster compilation."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

# By default XLA times several algorithms of cuBLAS for a matmul, and Triton kernels, which it chooses only by timing.
# Which one is fastest differs from run to run, and so does the rounding. All supported versions of TensorFlow, those
# for CPUs too, know these flags; XLA ends the process at one that it does not know.
_WITHOUT_TIMING = {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": "false"}
# The time of this pass grows with the square of the program's size: 69 of the 105 seconds in which XLA compiles
# BERT-Large's step. Without it the program has 1 % more kernels, and the same memory.
_FASTER = {"xla_disable_hlo_passes": "reshape-mover"}


def configure_xla(environ: MutableMapping[str, str] = os.environ) -> None:
    """Adds the flags above to XLA_FLAGS. Must be called before TensorFlow is imported.

    A flag that the user has set stays as it is, and so does XLA_FLAGS if it names a file of flags.
    """
    user_flags = environ.get("XLA_FLAGS", "").strip()
    if user_flags and not user_flags.startswith("-"):
        return
    user_names = set(re.findall(r"(?:^|\s)--?(\w+)", user_flags))
    added = [f"--{name}={value}" for name, value in {**_WITHOUT_TIMING, **_FASTER}.items() if name not in user_names]
    environ["XLA_FLAGS"] = " ".join(filter(None, [user_flags, *added]))
