"""How layers and heads compute: the same functions, compiled in different ways. The XLA scope chooses a backend.

* ``off``: `plain`. A plain graph, or eager code.
* ``blocks``: `cpu_blocks`. Each element-wise block is a small compiled function; the matmuls stay outside, where oneDNN
  or cuBLAS computes them. On a CPU this is faster, bfloat16 pays off only in this scope, and compilation
  takes seconds whatever the number of layers.
* ``step``: the caller compiles the whole forward and backward pass. `gpu_step` on a GPU, `plain.PlainInStep` on a CPU.

Matmuls are computed in the compute type, everything else in float32; a result that feeds a matmul is cast to the
compute type. Shape letters in all backends: B batch, S sequence, H hidden, N heads, D head size, I intermediate,
R = B*S rows, P masked or other chosen positions, C classes, V vocabulary (padded: W), T segments.
"""

from __future__ import annotations

from bert_tf.base.errors import UserError
from bert_tf.base.tensorflow import tf
from bert_tf.model.backends.cpu_blocks import CpuBlocks
from bert_tf.model.backends.gpu_step import GpuStep
from bert_tf.model.backends.plain import Plain, PlainInStep


def choose_scope(enable_xla: bool, scope: str, recompute: bool, for_gpu: bool = False) -> str:
    """The XLA scope for the flags: "off" without XLA; "auto" is "step" on GPUs, "blocks" on CPUs and with `recompute`.

    `for_gpu`: choose for a GPU even if this machine has none.

    Raises:
      UserError: a scope without XLA; or `recompute` with scope "step", where measurements show that it saves no memory.
    """
    if not enable_xla:
        if scope != "auto":
            raise UserError(f"--xla_scope={scope} has no effect without --enable_xla: give that too, or leave it out")
        return "off"
    if recompute:
        if scope == "step":
            raise UserError(
                "--recompute saves no memory where XLA compiles the whole step: leave out "
                "--xla_scope=step, or give --xla_scope=blocks"
            )
        return "blocks"
    if scope != "auto":
        return scope
    return "step" if for_gpu or tf.config.list_physical_devices("GPU") else "blocks"


def make_backend(
    scope: str = "off", compute_dtype: str = "float32", *, recompute: bool = False, for_gpu: bool | None = None
) -> Plain:
    """The backend of an XLA scope.

    Args:
      compute_dtype: "float32", "bfloat16" or "float16".
      recompute: the backward pass computes each encoder layer again.
      for_gpu: whether lookup gradients are added in the way for GPUs, and "step" computes more to move fewer bytes;
        results change by rounding. None: whether TensorFlow sees a GPU.
    """
    if for_gpu is None:
        for_gpu = bool(tf.config.get_visible_devices("GPU"))
    if scope == "blocks":
        return CpuBlocks(compute_dtype, recompute, for_gpu)
    if scope == "off":
        return Plain(compute_dtype, recompute, for_gpu)
    assert scope == "step" and not recompute, "`choose_scope` gives no other"
    return GpuStep(compute_dtype) if for_gpu else PlainInStep(compute_dtype)
