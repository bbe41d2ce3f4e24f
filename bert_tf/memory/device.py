"""The memory that a rank may use on its device."""

from __future__ import annotations

import os
from typing import NamedTuple

from bert_tf.base.machine import GIB, ask_nvidia_smi, count_gpus, free_memory


class Device(NamedTuple):
    memory: float  # bytes
    name: str


def find_device(gpu_memory_gib: float | None, num_ranks: int) -> Device:
    """A rank's memory: as given, else that of this machine's smallest GPU, else its share of the free memory."""
    if gpu_memory_gib is not None:
        return Device(gpu_memory_gib * GIB, "--gpu_memory_gib")
    if gpus := _gpus():
        return Device(min(gpus), "the GPU's memory")
    return Device(free_memory() / num_ranks, f"free memory of this machine, for {num_ranks} rank(s)")


def _gpus() -> list[float]:
    """Memory of each GPU in bytes; empty if none may be used."""
    if not count_gpus(os.environ):
        return []
    answer = ask_nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return [float(line) * (1 << 20) for line in answer if line.isdigit()]
