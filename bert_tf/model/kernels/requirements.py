"""Where kernels of our own can be used, as far as it can be said without TensorFlow: the memory plan asks, too."""

from __future__ import annotations

import importlib.util

from bert_tf.base.machine.hardware import compute_capabilities

# The compute capability from which on Triton makes matrix instructions of the kernels.
OLDEST_CAPABILITY = (8, 0)
HEAD_SIZES = (32, 64, 128)
# The lengths of sequences: multiples of this, and one that is shorter.
LENGTH_UNIT, SHORT_LENGTH = 64, 32


def may_have_kernels() -> bool:
    """Whether this machine's GPUs can run the kernels: all are of `OLDEST_CAPABILITY` or later, and Triton is there."""
    capabilities = compute_capabilities()
    has_triton = importlib.util.find_spec("triton") is not None
    return has_triton and bool(capabilities) and min(capabilities) >= OLDEST_CAPABILITY


def can_attend(head_size: int, sequence_length: int) -> bool:
    """Whether there are kernels for the attention of such heads."""
    return head_size in HEAD_SIZES and has_blocks(sequence_length)


def has_blocks(sequence_length: int) -> bool:
    """Whether the kernels' blocks divide a length."""
    return sequence_length % LENGTH_UNIT == 0 or sequence_length == SHORT_LENGTH
