"""What XLA is told before TensorFlow starts: matmuls on GPUs that are the same in every run, and faster compilation."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

# XLA would time several algorithms of cuBLAS for a matmul, and kernels of its own that are only chosen by timing. The
# fastest one differs from run to run, and rounds otherwise. All supported versions of TensorFlow, those for CPUs too,
# know these flags; XLA ends the process at one that it does not know.
_WITHOUT_TIMING = {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": "false"}
# The time of this pass grows with the square of the program: 69 of the 105 seconds in which XLA compiles BERT-Large's
# step. Without it the program has 1 % more kernels, and the same memory.
_FASTER = {"xla_disable_hlo_passes": "reshape-mover"}


def configure_xla(environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets these flags of XLA. Must be called before TensorFlow is imported.

    A flag that the user has set stays as it is, and so does XLA_FLAGS if it names a file of flags.
    """
    given = environ.get("XLA_FLAGS", "").strip()
    if given and not given.startswith("-"):
        return
    named = set(re.findall(r"(?:^|\s)--?(\w+)", given))
    added = [f"--{name}={value}" for name, value in {**_WITHOUT_TIMING, **_FASTER}.items() if name not in named]
    environ["XLA_FLAGS"] = " ".join(filter(None, [given, *added]))
