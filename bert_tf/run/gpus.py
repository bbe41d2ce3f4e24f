"""The GPUs whose data sheets are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Card(NamedTuple):
    """A card that plans are made for by its name."""

    memory_gib: float
    bandwidth: float  # of its memory, bytes/s
    link: float  # NVLink, bytes/s in one direction: half of the data sheets' figures, which count both


class GpuKind(NamedTuple):
    """GPUs that compute equally fast."""

    driver_pattern: str  # matches the names that the driver gives them
    tflops: Mapping[str, float]  # dense peaks by precision
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
