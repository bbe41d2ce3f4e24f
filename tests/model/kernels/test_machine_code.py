"""What the compiler makes of the kernels: matrix instructions, no more shared memory and spilled registers than known.

The figures are those of Triton 3.9.0. Where another version needs more, measure before raising them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
from typing import NamedTuple

import pytest

from bert_tf.base.tensorflow import tf
from bert_tf.model.kernels import launching
from bert_tf.model.kernels.compilation import Compiled, Kernel, compile_kernels
from bert_tf.model.kernels.fused_attention import FusedAttention
from bert_tf.model.kernels.fused_blocks import AddNorm, BiasGelu

if importlib.util.find_spec("triton") is None:  # nor imported: it is for other processes
    pytest.skip("Triton, which compiles the kernels, is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow

KIB = 1024
MATRIX_INSTRUCTION = {(8, 0): r"\bHMMA\b", (12, 0): r"\bHMMA\b", (9, 0): r"\bHGMMA\b", (10, 0): r"\bUTC[A-Z]*MMA\b"}
# Of a block. Cards of 8.6, 8.9 and 12.0 have the least.
SHARED_LIMIT = {(8, 0): 99 * KIB, (12, 0): 99 * KIB, (9, 0): 227 * KIB, (10, 0): 227 * KIB}
# Bytes of a thread's registers that are in memory, by card, kernel, length and head size; 0 elsewhere.
SPILLED = {
    ((8, 0), "attend_forward", 128, 64): 16,
    ((8, 0), "attend_gradients", 128, 64): 208,
    ((9, 0), "attend_key_value_gradients", 512, 64): 8,
    ((10, 0), "attend_key_value_gradients", 512, 128): 64,
    ((12, 0), "attend_forward", 512, 128): 8,
}


class Facts(NamedTuple):
    code: str
    shared_bytes: int
    spilled_bytes: int  # of a thread: its stack, which nothing but spilled registers is on


def kernels_of(monkeypatch, capability, made_by) -> tuple[Kernel, ...]:
    """The kernels that are compiled where something is made, and those of its dropout."""
    asked = []
    monkeypatch.setattr(launching, "compute_capability", lambda: capability)
    monkeypatch.setattr(launching, "compile_kernels", lambda kernels, _: asked.extend(kernels) or kernels)
    monkeypatch.setattr(launching, "add_kernels", lambda kernels: kernels)
    launching.find_kernels.cache_clear()
    made_by()
    launching.find_kernels.cache_clear()
    return tuple(asked)


def facts(compiled: Compiled, tmp_path) -> Facts:
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled.image)
    program = importlib.metadata.distribution("triton").locate_file("triton/backends/nvidia/bin/cuobjdump")

    def dump(what):
        return subprocess.run([program, what, file], capture_output=True, text=True, check=True).stdout

    (stack,) = re.findall(r"STACK:(\d+)", dump("-res-usage"))
    return Facts(dump("-sass"), compiled.shared_bytes, int(stack))


@pytest.mark.parametrize(
    ("capability", "S", "D", "packed"),
    [
        ((8, 0), 32, 128, True),
        ((10, 0), 32, 64, True),
        *[((9, 0), length, 64, True) for length in (32, 128, 512)],
        ((8, 0), 128, 64, True),
        ((10, 0), 512, 128, False),
        ((12, 0), 512, 128, False),
    ],
)
def test_attention(monkeypatch, tmp_path, capability, S, D, packed):
    kernels = kernels_of(monkeypatch, capability, lambda: FusedAttention(2 * S, S, 12, D, 0.1, packed, tf.float16))
    compiled = compile_kernels(kernels, capability)
    is_one_block = S <= 128 and (capability in ((9, 0), (10, 0)) or D <= 64 or S < 64)
    # Those of 9.0 and 10.0 have at least 64 rows.
    instruction = MATRIX_INSTRUCTION[capability if S >= 64 else (8, 0)]
    assert len(kernels) == (3 if is_one_block else 4)
    for kernel, each in zip(kernels, compiled):
        found = facts(each, tmp_path)
        if kernel.function != "draw_keep_bits":
            assert re.search(instruction, found.code), kernel.function
        assert found.shared_bytes <= SHARED_LIMIT[capability], kernel.function
        assert found.spilled_bytes <= SPILLED.get((capability, kernel.function, S, D), 0), kernel.function
        # Once for each matmul, and not after each of its instructions, which would then run one after the other.
        assert 2 * found.code.count("WARPGROUP.DEPBAR") <= found.code.count("HGMMA"), kernel.function


@pytest.mark.parametrize(
    "kind, sizes",
    [
        *((AddNorm, (2048, 128, hidden_size, 0.1, 1e-12)) for hidden_size in (1024, 2048, 4096)),
        (BiasGelu, (2048, 4096, True)),
    ],
)
def test_between_matmuls(monkeypatch, tmp_path, kind, sizes):
    capability = (9, 0)
    kernels = kernels_of(monkeypatch, capability, lambda: kind(*sizes, tf.float16))
    for kernel, each in zip(kernels, compile_kernels(kernels, capability)):
        found = facts(each, tmp_path)
        assert found.spilled_bytes == 0 and found.shared_bytes <= 16 * KIB, kernel
