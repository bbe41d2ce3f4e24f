"""Predicts, without measuring, how long a GPU takes for a micro-batch and for an update of the weights.

The figures for programs are those that XLA's compiler reports for ours (benchmarks/gpu_program,
benchmarks/results/gpu_program.md), as functions of the model's shape. A test requires this module to be within 12 % of
the roofline of BERT-Large's programs, and 17 % of BERT-Base's, whose small matmuls do not fill a large GPU.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.machine import GIB
from bert_tf.memory.plan import Workload
from bert_tf.run.gpus import GPUS, Card, pretraining_flops_per_sequence
from bert_tf.settings.declaration import Setting

# The shares of a GPU's peaks that are reached: by matmuls on tensor cores and on ordinary cores (a mean over the
# compiled programs, including the loss in partly filled tiles), and by kernels that stream memory. Then the seconds
# between two kernels.
TENSOR_CORE_SHARE, CORE_SHARE, MEMORY_SHARE = 0.62, 0.83, 0.80
LAUNCH_SECS = 4e-6
# Kernel launches: of a micro-batch, in addition of each of its layers, and of LAMB per layer.
LAUNCHES, LAYER_LAUNCHES, LAMB_LAYER_LAUNCHES = 40, 82, 78
# Bytes that LAMB moves per parameter.
LAMB_BYTES = 56


class _OutsideMatmuls(NamedTuple):
    """What a layer's forward and backward pass costs besides matmuls."""

    row_bytes: float  # per element of B*S*H
    score_bytes: float  # per element of B*N*S*S
    row_flops: float = 700.0  # float32 arithmetic per element of B*S*H


_OUTSIDE_MATMULS = {2: _OutsideMatmuls(140, 12.4), 4: _OutsideMatmuls(292, 24.4)}  # by bytes of the compute type


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet, and its connection to the other GPUs of its machine."""

    precision: str
    tflops: float  # dense peak of matmuls in this precision
    fp32_tflops: float
    memory: float  # bytes
    bandwidth: float  # of its memory, bytes/s
    link: float  # to the other GPUs of its machine, bytes/s in one direction

    def micro_batch_secs(self, work: Workload) -> float:
        """Seconds for the forward and backward pass of one micro-batch."""
        config = work.bert_config
        # The last layer computes some positions only, but keys and values, a sixth of its matmuls, at all of them.
        num_layers = config.num_hidden_layers - (1 - work.last_layer_share) * 5 / 6
        elements = work.micro_batch_size * work.sequence_length * num_layers * config.hidden_size
        scores = elements / config.head_size * work.sequence_length
        outside = _OUTSIDE_MATMULS[work.compute_bytes]
        flops = work.micro_batch_size * pretraining_flops_per_sequence(
            config, work.sequence_length, work.num_predictions
        )
        flops *= num_layers / config.num_hidden_layers
        share = CORE_SHARE if self.precision == "fp32" else TENSOR_CORE_SHARE
        return (
            flops / (share * self.tflops * 1e12)
            + (elements * outside.row_bytes + scores * outside.score_bytes) / (MEMORY_SHARE * self.bandwidth)
            + elements * outside.row_flops / (self.fp32_tflops * 1e12)
            + (LAUNCHES + LAYER_LAUNCHES * config.num_hidden_layers) * LAUNCH_SECS
        )

    def optimizer_secs(self, work: Workload) -> float:
        """Seconds for LAMB with gradient clipping, once per update."""
        launches = LAMB_LAYER_LAUNCHES * work.bert_config.num_hidden_layers
        return LAMB_BYTES * work.num_parameters / (MEMORY_SHARE * self.bandwidth) + launches * LAUNCH_SECS


KNOWN = {name: (kind.tflops, card) for kind in GPUS for name, card in kind.cards.items()}
# A rate, memory or price that makes sense; beyond it sums may become infinite.
SENSIBLE = Setting("", "float", None, at_least=1e-3, at_most=1e6)
_FIELDS = "TFLOPS,FP32_TFLOPS,MEMORY_GIB,MEMORY_GB_PER_SEC,LINK_GB_PER_SEC"


def _of_data_sheet(precision: str, tflops: Mapping[str, float], card: Card) -> Gpu:
    return Gpu(precision, tflops[precision], tflops["fp32"], card.memory_gib * GIB, card.bandwidth, card.link)


def recognise(device_name: str, memory: float, precision: str) -> Gpu | None:
    """The GPU that the driver calls so; of two cards of a kind, that with about so many bytes of memory.

    None if its data sheet is not known here, or it has no such precision.
    """
    kind = next((kind for kind in GPUS if re.search(kind.driver_pattern, device_name)), None)
    if kind is None or not kind.cards or precision not in kind.tflops:
        return None
    card = min(kind.cards.values(), key=lambda card: abs(card.memory_gib * GIB - memory))
    return _of_data_sheet(precision, kind.tflops, card)


def find_gpu(text: str, precision: str) -> Gpu:
    """A GPU by its name in `KNOWN`, or from the five numbers of its data sheet.

    Raises:
      UserError: it is neither, or has no such precision.
    """
    if text.lower() in KNOWN:
        peaks, card = KNOWN[text.lower()]
        if precision not in peaks:
            raise UserError(f"--precision={precision}: {text} has no such arithmetic; choose fp16 or fp32")
        return _of_data_sheet(precision, peaks, card)
    try:
        tflops, fp32, memory, bandwidth, link = map(SENSIBLE.parse, text.split(","))
    except ValueError:
        raise UserError(
            f"--gpu={text}: must be one of {', '.join(KNOWN)}, or five numbers of the data sheet, each "
            f"{SENSIBLE.rule}: {_FIELDS} (65,8.1,16,320,12 is a T4 in fp16)"
        ) from None
    return Gpu(precision, tflops, fp32, memory * GIB, bandwidth * 1e9, link * 1e9)
