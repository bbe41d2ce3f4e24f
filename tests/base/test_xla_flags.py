"""XLA is told not to time matmuls and to leave out a pass, unless the user has told it otherwise."""

import sys

import pytest

from bert_tf.base.xla_flags import configure_xla
from tests.processes import answer

LEVEL, TRITON = "--xla_gpu_autotune_level=0", "--xla_gpu_enable_triton_gemm=false"
PASSES = "--xla_disable_hlo_passes=reshape-mover"
COMPILES = """
from bert_tf.base.xla_flags import configure_xla
configure_xla()
import tensorflow as tf
tf.function(lambda x: x + 1.0, jit_compile=True)(tf.ones([2]))
"""


@pytest.mark.parametrize(
    "given, expected",
    [
        (None, f"{LEVEL} {TRITON} {PASSES}"),
        (" ", f"{LEVEL} {TRITON} {PASSES}"),
        ("--xla_dump_to=x", f"--xla_dump_to=x {LEVEL} {TRITON} {PASSES}"),
        ("--xla_gpu_autotune_level=4", f"--xla_gpu_autotune_level=4 {TRITON} {PASSES}"),
        (f"--xla_gpu_enable_triton_gemm {LEVEL}", f"--xla_gpu_enable_triton_gemm {LEVEL} {PASSES}"),
        ("--xla_gpu_autotune_level_of_mine=4", f"--xla_gpu_autotune_level_of_mine=4 {LEVEL} {TRITON} {PASSES}"),
        ("/etc/xla_flags", "/etc/xla_flags"),  # a file
    ],
)
def test_what_the_user_has_set_stays(given, expected):
    environ = {} if given is None else {"XLA_FLAGS": given}
    for _ in range(2):  # a rank may inherit what its launcher has set
        configure_xla(environ)
        assert environ == {"XLA_FLAGS": expected}


@pytest.mark.slow
def test_this_tensorflow_knows_the_flags():
    """XLA ends the process otherwise."""
    done = answer(sys.executable, "-c", COMPILES)
    assert done.returncode == 0, done.stderr
