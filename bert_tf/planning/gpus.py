"""Predicts, without measuring, how long a GPU takes for a micro-batch and for an update of the weights.

The constants come from measurements on one H200 in bf16 (benchmarks/results/records/gpu_h200.md); a test requires the
predictions to be within 10 % of these. Other cards are scaled by their data sheets: none has been measured.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import GIB
from bert_tf.memory.plan import Workload
from bert_tf.run.gpus import GPUS, Card, flops_per_row
from bert_tf.settings.declaration import Setting

# Shares of a GPU's peaks that kernels reach. Matmuls on tensor cores: 728 of 989 TFLOP/s with 4 layers, a tenth less
# with 24, under whose load the clock falls. On ordinary cores: not measured. Kernels that stream memory: 134 MB in 35
# us, LayerNorm of 16,384 x 1,024.
TENSOR_CORE_SHARE, CORE_SHARE, MEMORY_SHARE = 0.66, 0.83, 0.80
# Time of a kernel launch that computes little, with the gap before it: LAMB of 4 layers takes 2.5 ms.
LAUNCH_SECS = 4e-6
# Kernel launches: per micro-batch, additionally per layer of it (390 with 4 layers), and per layer of LAMB.
LAUNCHES, LAYER_LAUNCHES, LAMB_LAYER_LAUNCHES = 40, 82, 78
# Bytes that LAMB moves per parameter.
LAMB_BYTES = 56


class _OutsideMatmuls(NamedTuple):
    """What a layer's forward and backward pass costs besides matmuls."""

    row_bytes: float  # per element of B*S*H
    score_bytes: float  # per element of B*N*S*S
    row_flops: float  # float32 arithmetic per element of B*S*H
    score_flops: float  # the same per element of B*N*S*S
    slowness: float = 1.0  # factor by which the measured time exceeds the computed one


# Kernels of our own. GELU and LayerNorm take 0.156 and 0.198 ms of a layer of 16,384 x 1,024, as 81 bytes do; the rest
# is for sums and the loss. Attention takes 0.63 ms on an H100 at 512, with its dropout's bits and its matmuls.
_OWN_KERNELS = _OutsideMatmuls(90, 0, 0, 240)
# Kernels by XLA, by bytes of the compute type: what its compiler planned to move and compute. The slowness is fitted to
# the three rows that were measured before there were kernels of our own (`before` in the record).
_XLA_KERNELS = {2: _OutsideMatmuls(140, 12.4, 700, 0, 1.8), 4: _OutsideMatmuls(292, 24.4, 700, 0, 1.8)}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet, and its connection to the other GPUs of its machine."""

    precision: str
    tflops: float  # dense peak of matmuls in this precision
    fp32_tflops: float
    memory: float  # bytes
    bandwidth: float  # of its memory, bytes/s
    link: float  # to the other GPUs of its machine, bytes/s in one direction
    has_bf16: bool = False  # from compute capability 8.0 on; such cards run our own kernels in 16 bit

    def micro_batch_secs(self, work: Workload) -> float:
        """Seconds for the forward and backward pass of one micro-batch."""
        config = work.bert_config
        # The last layer computes only some positions, but its keys and values, a sixth of its matmuls, for all.
        num_layers = config.num_hidden_layers - (1 - work.last_layer_share) * 5 / 6
        elements = work.micro_batch_size * work.sequence_length * num_layers * config.hidden_size
        scores = elements / config.head_size * work.sequence_length
        has_own_kernels = self.has_bf16 and work.compute_bytes == 2
        costs = _OWN_KERNELS if has_own_kernels else _XLA_KERNELS[work.compute_bytes]
        flops = work.micro_batch_size * flops_per_row(work)
        flops *= num_layers / config.num_hidden_layers
        share = CORE_SHARE if self.precision == "fp32" else TENSOR_CORE_SHARE
        outside_secs = (
            (elements * costs.row_bytes + scores * costs.score_bytes) / (MEMORY_SHARE * self.bandwidth)
            + (elements * costs.row_flops + scores * costs.score_flops) / (self.fp32_tflops * 1e12)
            + (LAUNCHES + LAYER_LAUNCHES * config.num_hidden_layers) * LAUNCH_SECS
        )
        return flops / (share * self.tflops * 1e12) + costs.slowness * outside_secs

    def optimizer_secs(self, work: Workload) -> float:
        """Seconds for LAMB with gradient clipping, once per update."""
        launches = LAMB_LAYER_LAUNCHES * work.bert_config.num_hidden_layers
        return LAMB_BYTES * work.num_parameters / (MEMORY_SHARE * self.bandwidth) + launches * LAUNCH_SECS


KNOWN_CARDS = {name: (kind.tflops, card) for kind in GPUS for name, card in kind.cards.items()}
# The range of rates, memory sizes and prices; beyond it sums may become infinite.
SENSIBLE_RANGE = Setting("", "float", None, at_least=1e-3, at_most=1e6)
_FIELDS = "TFLOPS,FP32_TFLOPS,MEMORY_GIB,MEMORY_GB_PER_SEC,LINK_GB_PER_SEC"


def _make_gpu(precision: str, tflops: Mapping[str, float], card: Card) -> Gpu:
    peaks = tflops[precision], tflops["fp32"]
    return Gpu(precision, *peaks, card.memory_gib * GIB, card.bandwidth, card.link, "bf16" in tflops)


def recognise(device_name: str, memory: float, precision: str) -> Gpu | None:
    """The GPU with this name from the driver; of two cards of a kind, the one closest to `memory` bytes.

    None if its data sheet is not in `GPUS`, or if it does not have the precision.
    """
    kind = next((kind for kind in GPUS if re.search(kind.driver_pattern, device_name)), None)
    if kind is None or not kind.cards or precision not in kind.tflops:
        return None
    card = min(kind.cards.values(), key=lambda card: abs(card.memory_gib * GIB - memory))
    return _make_gpu(precision, kind.tflops, card)


def find_gpu(text: str, precision: str) -> Gpu:
    """The GPU that `text` describes: by its name in `KNOWN_CARDS`, or by five numbers of its data sheet.

    Raises:
      UserError: `text` is neither, or the GPU does not have the precision.
    """
    if text.lower() in KNOWN_CARDS:
        peaks, card = KNOWN_CARDS[text.lower()]
        if precision not in peaks:
            raise UserError(f"--precision={precision}: {text} has no such arithmetic; choose fp16 or fp32")
        return _make_gpu(precision, peaks, card)
    try:
        tflops, fp32, memory, bandwidth, link = map(SENSIBLE_RANGE.parse, text.split(","))
    except ValueError:
        raise UserError(
            f"--gpu={text}: must be one of {', '.join(KNOWN_CARDS)}, or five numbers of the data sheet, each "
            f"{SENSIBLE_RANGE.rule}: {_FIELDS} (65,8.1,16,320,12 is a T4 in fp16)"
        ) from None
    return Gpu(precision, tflops, fp32, memory * GIB, bandwidth * 1e9, link * 1e9, precision == "bf16")
