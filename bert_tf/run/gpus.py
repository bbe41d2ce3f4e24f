"""The GPUs whose data sheets are known, and floating-point operations per row, for TFLOP/s and MFU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bert_tf.memory.plan import Workload


class Card(NamedTuple):
    """A card that `planning` knows by its name."""

    memory_gib: float
    bandwidth: float  # of its memory, bytes/s
    link: float  # NVLink, bytes/s in one direction: half of the data sheets' figures, which count both


class GpuKind(NamedTuple):
    """GPUs that compute equally fast."""

    driver_pattern: str  # matches the names that the driver gives them
    tflops: Mapping[str, float]  # peaks of dense matmuls, by precision
    cards: Mapping[str, Card]


# From NVIDIA's data sheets. The first pattern that matches counts.
GPUS = (
    GpuKind(
        r"\bV100.*SXM",
        {"fp16": 125.0, "fp32": 15.7},
        {"v100-16": Card(16, 900e9, 150e9), "v100-32": Card(32, 900e9, 150e9)},
    ),
    GpuKind(
        r"\bA100",
        {"fp16": 312.0, "bf16": 312.0, "tf32": 156.0, "fp32": 19.5},
        {"a100-40": Card(40, 1555e9, 300e9), "a100-80": Card(80, 2039e9, 300e9)},
    ),
    GpuKind(r"\bH100 PCIe", {"fp16": 756.0, "bf16": 756.0, "tf32": 378.0, "fp32": 51.0}, {}),
    GpuKind(r"\b(H100|H200) NVL", {"fp16": 835.0, "bf16": 835.0, "tf32": 417.5, "fp32": 60.0}, {}),
    GpuKind(
        r"\b(H100|H200)\b",
        {"fp16": 989.0, "bf16": 989.0, "tf32": 494.5, "fp32": 67.0},
        {"h100": Card(80, 3352e9, 450e9), "h200": Card(141, 4800e9, 450e9)},
    ),
)


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Dense peak of one device in TFLOP/s, or None if it is unknown (as for every CPU).

    `device_name` is what ``tf.config.experimental.get_device_details`` calls it.
    """
    for kind in GPUS:
        if re.search(kind.driver_pattern, device_name):
            return kind.tflops.get(precision)
    return None


def flops_per_row(work: Workload, num_outputs: int = 0) -> float:
    """Floating-point operations of one training row, the head included.

    Training counts as three forward passes (the backward pass needs two matmuls for each one of the
    forward pass). The figure says what the model needs, not what an implementation spends: recomputation
    is not counted, and the last layer counts in full although `BertEncoder.states_at` computes only part of
    it. A multiply-add is two operations. With length s, L layers, width h, feed-forward width i (4h in all
    published sizes), P predictions and V pieces::

        forward = s*L*(8h^2 + 4hi + 4sh)     query, key, value, output; feed-forward; attention
                + P*(2h^2 + 2hV)             MLM transform and the product with the word table
                + 2h^2                       pooler

    V is the real vocabulary: padding rows are not work of the model. The accounting is that of Narayanan
    et al. (arXiv 2104.04473, appendix), less the recomputation counted there.
    BERT-Large: 240.6e9 at s=128, P=20 and 1020.5e9 at s=512, P=80.

    Args:
      num_outputs: outputs of a task's head for one sequence, in all positions that it reads.
    """
    config, length = work.bert_config, work.sequence_length
    width, inner = config.hidden_size, config.intermediate_size
    encoder = length * config.num_hidden_layers * (8 * width**2 + 4 * width * inner + 4 * length * width)
    head = work.num_predictions * (2 * width**2 + 2 * width * config.vocab_size) + 2 * width * num_outputs
    head += 2 * width**2 if work.uses_pooler else 0
    return work.num_choices * 3.0 * (encoder + head)
