"""Where kernels of our own can be used, as far as it can be said without TensorFlow: the memory plan asks, too."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bert_tf.base.compiled import compiled_file
from bert_tf.base.machine.hardware import compute_capabilities

# The compute capability from which on Triton makes matrix instructions of the kernels.
OLDEST_CAPABILITY = (8, 0)
HEAD_SIZES = (32, 64, 128)
# The lengths of sequences: multiples of this, and one that is shorter.
LENGTH_UNIT, SHORT_LENGTH = 64, 32
# The rows of the masked words' loss, the predictions of a micro-batch: multiples of this.
LOSS_UNIT = 64
# The C++ that XLA calls.
LAUNCHER = Path(__file__).with_name("launch.cpp")


def may_have_kernels() -> bool:
    """Whether this machine can run the kernels: Triton and our C++ are there, and all GPUs are new enough."""
    capabilities = compute_capabilities()
    is_installed = importlib.util.find_spec("triton") is not None and compiled_file(LAUNCHER).exists()
    return is_installed and bool(capabilities) and min(capabilities) >= OLDEST_CAPABILITY


def can_attend(head_size: int, sequence_length: int) -> bool:
    """Whether there are kernels for the attention of such heads."""
    return head_size in HEAD_SIZES and has_blocks(sequence_length)


def has_blocks(sequence_length: int) -> bool:
    """Whether the kernels' blocks divide a length."""
    return sequence_length % LENGTH_UNIT == 0 or sequence_length == SHORT_LENGTH
