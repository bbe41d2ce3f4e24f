"""Where kernels of our own can be used, as far as is known without TensorFlow: the memory plan needs it, too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bert_tf.base.compiled import compiled_file
from bert_tf.base.machine.hardware import compute_capabilities

# The oldest compute capability for which Triton compiles the kernels to matrix instructions.
OLDEST_CAPABILITY = (8, 0)
HEAD_SIZES = (32, 64, 128)
# Sequence lengths: multiples of the first, or the second, which is shorter.
LENGTH_UNIT, SHORT_LENGTH = 64, 32
# The rows of the masked words' loss, a micro-batch's predictions, must be a multiple of this.
LOSS_UNIT = 64
# The C++ that XLA calls.
LAUNCHER = Path(__file__).with_name("launch.cpp")


def may_have_kernels() -> bool:
    """Whether this machine can run the kernels: Triton and our C++ are there, and all GPUs are new enough."""
    capabilities = compute_capabilities()
    is_installed = importlib.util.find_spec("triton") is not None and compiled_file(LAUNCHER).exists()
    return is_installed and bool(capabilities) and min(capabilities) >= OLDEST_CAPABILITY


def can_attend(head_size: int, sequence_length: int) -> bool:
    """Whether there are attention kernels for this head size and sequence length."""
    return head_size in HEAD_SIZES and has_blocks(sequence_length)


def has_blocks(sequence_length: int) -> bool:
    """Whether the sequence length is made up of the kernels' blocks."""
    return sequence_length % LENGTH_UNIT == 0 or sequence_length == SHORT_LENGTH
