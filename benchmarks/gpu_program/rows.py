"""The configurations that are compiled, the most important ones first."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.gpu_program.roofline import GPUS
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, PRESETS, BertConfig
from bert_tf.memory.plan import Workload

LAYERS = (2, 4)
PREDICTIONS = {128: 20, 512: 80}
# NVIDIA's published sequences/s (BERT-Large, TF2, one GPU: V100 32 GB and A100 80 GB, TensorFlow 21.02 container).
PUBLISHED = {
    ("V100", "fp16", 128): 206.5,
    ("V100", "fp16", 512): 40.95,
    ("V100", "fp32", 128): 49.97,
    ("V100", "fp32", 512): 11.06,
    ("A100", "fp16", 128): 485.59,
    ("A100", "fp16", 512): 96.52,
    ("A100", "tf32", 128): 282.98,
    ("A100", "tf32", 512): 54.92,
}
# Micro-batches of NVIDIA's published figures (TF2, one GPU) by GPU and bytes of the compute type, at 128 and at 512.
MICRO_BATCHES = {("V100", 2): (60, 10), ("V100", 4): (32, 6), ("A100", 2): (312, 40), ("A100", 4): (176, 22)}
# Larger ones in half precision, for which our program has the memory (V100 32 GB, A100 80 GB). They divide the global
# batches of NVIDIA's presets, 61,440 and 30,720 on 16 V100, 79,872 and 30,720 on 8 A100.
LARGE_MICRO_BATCHES = {"V100": (160, 32), "A100": (416, 64)}


@dataclasses.dataclass(frozen=True)
class Row:
    """A configuration, compiled for one GPU."""

    gpu: str
    bert_model: str
    length: int
    precision: str
    micro_batch_size: int
    packing: bool = False
    part: str = "program"  # or "memory", "check", "peer", "optimizer"

    @property
    def title(self) -> str:
        work = f"{self.gpu} {self.bert_model} {self.precision} {self.length} x {self.micro_batch_size}"
        return f"{self.part} {work} {'packed' if self.packing else 'plain'}"

    @property
    def num_layers(self) -> int:
        return PRESETS[self.bert_model][0]

    @property
    def layers(self) -> tuple[int, ...]:
        return (*LAYERS, self.num_layers) if self.part == "check" else LAYERS

    def workload(self, num_layers: int) -> Workload:
        config = BertConfig.preset(self.bert_model, GOOGLE_VOCAB_SIZE)
        config = dataclasses.replace(config, num_hidden_layers=num_layers)
        return Workload(
            config, self.length, PREDICTIONS[self.length], "step", self.micro_batch_size, precision=self.precision
        )


def plan_rows() -> list[Row]:
    """All rows, the most important ones first."""

    def row(gpu: str, model: str, length: int, precision: str, size: int | None = None, **changes: Any) -> Row:
        like = "V100" if gpu == "V100" else "A100"
        best = MICRO_BATCHES[like, 2 if precision in ("fp16", "bf16") else 4][length == 512]
        return Row(gpu, model, length, precision, size or best, **changes)

    lengths, halves = (128, 512), ("fp16", "bf16")
    singles = {gpu: "fp32" if gpu == "V100" else "tf32" for gpu in GPUS}
    rows = [row(gpu, "large", length, "fp16") for gpu in ("V100", "A100") for length in lengths]
    rows += [row(gpu, "large", length, precision, part="peer") for gpu, precision, length in PUBLISHED]
    rows += [row("V100", "large", 128, "fp16", 8, part="optimizer")]
    rows += [row("V100", "large", 128, "fp16", 8, part="memory"), row("V100", "large", 512, "fp16", 2, part="memory")]
    rows += [row(gpu, "large", length, singles[gpu]) for gpu in ("V100", "A100") for length in lengths]
    rows += [row("H100", "large", length, precision) for precision in halves for length in lengths]
    rows += [row("A100", "base", length, "fp16") for length in lengths]
    rows += [row("A100", "large", length, "fp16", packing=True) for length in lengths]
    rows += [row("V100", "base", 128, "fp16", 8, part="check")]
    rows += [row(gpu, "large", 128, "bf16") for gpu in ("V100", "A100")]
    rows += [
        row(gpu, model, length, precision, packing=packing)
        for packing in (False, True)
        for model in ("large", "base")
        for gpu in GPUS
        for length in lengths
        for precision in (*halves, singles[gpu])
    ]
    rows += [row("V100", "large", 128, "fp16", size, part="check") for size in (8, None)]
    rows += [
        row(gpu, "large", length, "fp16", size, packing=packing)
        for packing in (False, True)
        for gpu, sizes in LARGE_MICRO_BATCHES.items()
        for length, size in zip(lengths, sizes)
    ]
    return list(dict.fromkeys(rows))
