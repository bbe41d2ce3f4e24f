"""Predicts how much device memory a training needs, by model, micro-batch, precision and recomputation.

The count follows the code that runs: what `blocks` keeps for the backward pass, what `training.step`
sums, what `optimizer` writes. Where TensorFlow or XLA decides the order of work, a measured constant
is used; benchmarks/memory.py compares the prediction with what TensorFlow's allocator really handed
out, and docs/training.md says how far off it is. The number of micro-batches in an update does not
matter, only how many of them are in memory at the same time.

Shape letters: B micro-batch, S sequence, R = B*S rows, H hidden, I intermediate, N heads, L layers,
P masked positions, V vocabulary (padded).
"""

from __future__ import annotations

import dataclasses
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.machine import ask_nvidia_smi, count_cores, count_gpus, memory_limit
from bert_tf.bert_config import BertConfig
from bert_tf.settings.training import AUTO, BatchSplit, compute_dtype

GIB = 1 << 30
FLOAT = 4
# The largest flat copy that an all-reduce sends, unless a single variable is larger (ranks.workers.BUCKET_BYTES).
BUCKET = 128 << 20
# What libraries, driver and compiled code take besides tensors.
PROGRAM = 0.75 * GIB
# Copies of the word table's gradient at the end of the backward pass, including the sum over the micro-batches.
TABLE_COPIES = 4
LARGEST_MICRO_BATCH = 1024


class _Kept(NamedTuple):
    """How many elements of the compute type, and further bytes, are kept per element of a shape."""

    rows_elements: float  # by a layer for its backward pass, per element of R*H, besides 2 per element of R*I
    keys_elements: float  # those of rows_elements that are for keys and values
    rows_bytes: float
    scores_elements: float  # the same per element of B*N*S*S
    scores_bytes: float
    logits_elements: float  # by the head and its gradient, per element of B*P*V
    logits_bytes: float
    working_bytes: float  # while a recomputed layer is differentiated, per element of R*H
    optimizer_copies: float  # of the largest variable, while it is updated
    # Short-lived tensors take more than their size if the allocator hands out a block for each, of up to twice
    # the requested size. XLA requests all memory of a step at once.
    fragmentation: float


# In "blocks" a layer keeps the tensors that pass between matmuls and blocks, and two dropout masks of a byte per
# element; of the attention scores it keeps the float32 softmax, the softmax after dropout, and the dropout mask. The
# plain graph keeps every intermediate value of the blocks. In "step" XLA's program for GPUs keeps query, key, value,
# context, the arguments and results of both LayerNorms, and an eighth of a byte per element for each dropout; and the
# scores and the softmax after dropout. benchmarks/gpu_program compares with XLA's own figures.
_KEPT = {
    "blocks": _Kept(12, 4, 2, 1, 5, 2, 20, 60, 3, 1.1),
    "off": _Kept(12, 4, 88, 1, 5, 1, 9, 60, 10, 1.1),
    "step": _Kept(8, 2, 0.25, 2, 0.125, 2, 0, 0, 3, 1.0),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is trained and how, as far as memory is concerned."""

    bert_config: BertConfig
    max_seq_length: int
    max_predictions_per_seq: int  # 0: the head for spans instead of the two heads of pre-training
    scope: str
    micro_batch_size: int = 1
    precision: str = "fp32"
    recompute: bool = False
    num_ranks: int = 1
    classifies: bool = False  # with 0 predictions: a classifier after the pooler instead of the head for spans
    num_at_once: int = 1  # micro-batches in memory at the same time, from `micro_batches_at_once`

    @classmethod
    def from_flags(cls, flags: Mapping[str, Any], bert_config: BertConfig, num_ranks: int) -> Workload:
        """What a program would train with these flags, given by name and completed by `with_scope`."""
        return cls(
            bert_config,
            flags["max_seq_length"],
            flags.get("max_predictions_per_seq", 0),
            flags["xla_scope"],
            precision=flags["precision"],
            recompute=flags["recompute"],
            num_ranks=num_ranks,
            classifies="task_name" in flags,
            num_at_once=flags["num_at_once"],
        )

    @property
    def num_layer_parameters(self) -> int:
        """The number of parameters of all layers."""
        config, hidden = self.bert_config, self.bert_config.hidden_size
        wide = 2 * hidden * config.intermediate_size + config.intermediate_size + hidden
        return config.num_hidden_layers * (4 * (hidden * hidden + hidden) + wide + 4 * hidden)

    @property
    def num_parameters(self) -> int:
        """The number of trained weights, including the rows that pad the word table to a multiple of 8."""
        config, hidden = self.bert_config, self.bert_config.hidden_size
        embeddings = (config.padded_vocab_size + config.type_vocab_size + config.max_position_embeddings + 2) * hidden
        square = hidden * hidden + hidden
        heads = 2 * hidden + 2  # next sentence, spans (without a pooler), or a classifier of two classes
        if self.classifies:
            heads += square
        if self.max_predictions_per_seq:
            heads += 2 * square + 2 * hidden + config.padded_vocab_size
        return embeddings + self.num_layer_parameters + heads

    @property
    def last_layer_share(self) -> float:
        """The share of a row's positions for which the last layer computes results."""
        if self.classifies or self.max_predictions_per_seq:
            return min(1.0, (self.max_predictions_per_seq + 1) / self.max_seq_length)
        return 1.0

    @property
    def compute_bytes(self) -> int:
        return 4 if compute_dtype(self.precision) == "float32" else 2


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of each kind at the peak of memory use."""

    weights: float
    gradients: float  # their sums over the micro-batches
    first_moments: float
    second_moments: float
    activations: float  # kept for the backward pass
    workspace: float  # temporary: the head, a layer's gradients, copies made by the optimizer and the all-reduce

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))


def predict(work: Workload) -> Memory:
    """The device memory that `work` takes, without the program itself (`PROGRAM`)."""
    config, kept, size = work.bert_config, _KEPT[work.scope], work.compute_bytes
    parameters = FLOAT * work.num_parameters
    table = FLOAT * config.padded_vocab_size * config.hidden_size
    num_rows = work.micro_batch_size * work.num_at_once
    rows = num_rows * work.max_seq_length * config.hidden_size
    scores = num_rows * config.num_attention_heads * work.max_seq_length**2
    wide = config.intermediate_size / config.hidden_size
    layer = rows * ((kept.rows_elements + 2 * wide) * size + kept.rows_bytes) + scores * (
        kept.scores_elements * size + kept.scores_bytes
    )
    share = work.last_layer_share
    last = share * layer + (1 - share) * rows * kept.keys_elements * size
    layers = config.num_hidden_layers * rows * size if work.recompute else (config.num_hidden_layers - 1) * layer + last
    logits = num_rows * work.max_predictions_per_seq * config.padded_vocab_size
    head = logits * (kept.logits_elements * size + kept.logits_bytes) + (table if logits else 0)
    # Weights in the compute type are kept for the whole update.
    casts = 0 if size == FLOAT or work.recompute else parameters / FLOAT * size
    # The head's backward pass comes first, then that of each layer, and the word table's last. Outside XLA the layers'
    # gradients were observed to be kept until then, and only then added to the sums.
    waiting = 0 if work.scope == "step" else FLOAT * work.num_layer_parameters
    again = layer + kept.working_bytes * rows + waiting
    moments = (
        layers + casts + head,
        layers + casts + (table if logits else 0) + (again if work.recompute else 0),
        casts + table + max((TABLE_COPIES - 1) * table, waiting),
    )
    passing = kept.fragmentation * max(moments)
    # The means besides the sums, and one bucket that is being sent. The reduced bucket is split without a copy.
    reduced = parameters + min(max(BUCKET, table), parameters) if work.num_ranks > 1 else 0
    applying = kept.optimizer_copies * table + reduced
    activations = min(layers, passing)
    return Memory(parameters, parameters, parameters, parameters, activations, max(passing, applying) - activations)


def largest_micro_batch(work: Workload, limit: float, num_rows: int) -> int:
    """The largest divisor of a rank's `num_rows` that fits into `limit` bytes; 1 if none does."""
    sizes = [size for size in range(1, min(num_rows, LARGEST_MICRO_BATCH) + 1) if num_rows % size == 0]
    splits = (split_into(work, size, num_rows // size) for size in sizes)
    return max((split.micro_batch_size for split in splits if fits(split, limit)), default=1)


def split_into(work: Workload, micro_batch_size: int, num_accumulation_steps: int) -> Workload:
    """The same work with updates of `num_accumulation_steps` micro-batches of `micro_batch_size`."""
    num_at_once = min(work.num_at_once, num_accumulation_steps)
    return dataclasses.replace(work, micro_batch_size=micro_batch_size, num_at_once=num_at_once)


def micro_batches_at_once(scope: str, for_gpu: bool = False) -> int:
    """How many micro-batches of an update are computed at the same time: two on a CPU if TensorFlow has two threads.

    On a CPU compiled blocks use a single core for much of their time. `for_gpu` as in `choose_scope`.
    """
    import tensorflow as tf  # imported late, because the launchers do without it

    if scope == "step" or for_gpu or tf.config.get_visible_devices("GPU"):
        return 1
    given = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    return min(2, int(given) if given.isdecimal() and int(given) else count_cores())


def fits(work: Workload, limit: float) -> bool:
    return predict(work).total + PROGRAM <= limit


class Device(NamedTuple):
    memory: float  # bytes
    name: str


def find_device(gpu_memory_gib: float | None, num_ranks: int) -> Device:
    """A rank's memory: as given, else that of this machine's smallest GPU, else its share of the free memory."""
    if gpu_memory_gib is not None:
        if not gpu_memory_gib > 0:
            raise UserError(f"--gpu_memory_gib={gpu_memory_gib:g}: must be positive")
        return Device(gpu_memory_gib * GIB, "--gpu_memory_gib")
    gpus = _gpus()
    if gpus:
        return Device(min(gpus), "the GPU's memory")
    return Device(_free_memory() / num_ranks, f"free memory of this machine, for {num_ranks} rank(s)")


def with_scope(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags with the XLA scope that `choose_scope` chooses for them here, and with `num_at_once`."""
    from bert_tf.model.backends import choose_scope  # imports TensorFlow, which the launchers do without

    # A plan may be for a GPU that is specified by its memory and need not be in this machine.
    for_gpu = flags["plan"] and flags["gpu_memory_gib"] is not None and flags["device"] != "cpu"
    scope = choose_scope(flags["enable_xla"], flags["xla_scope"], flags["recompute"], for_gpu)
    return {**flags, "xla_scope": scope, "num_at_once": micro_batches_at_once(scope, for_gpu)}


def _gpus() -> list[float]:
    """Memory of each GPU in bytes; empty if none may be used."""
    if not count_gpus(os.environ):
        return []
    answer = ask_nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return [float(line) * (1 << 20) for line in answer if line.isdigit()]


def _free_memory() -> float:
    """Bytes that this process may still use, within the machine's, its container's and its own limit."""
    kinds = {
        line.split(":")[0]: 1024 * int(line.split()[1])
        for file in ("/proc/meminfo", "/proc/self/status")
        for line in Path(file).read_text().splitlines()
        if line.split()[-1] == "kB"
    }
    free = [kinds["MemAvailable"]]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free.append(limit - kinds["VmSize"])
    if (of_container := memory_limit()) is not None:
        free.append(of_container - kinds["VmRSS"])
    return min(free)


def choose_split(flags: Mapping[str, Any], describe: Callable[[], Workload], workers: Any) -> BatchSplit:
    """The batch split that --train_batch_size asks for: a number, or "auto" with a global batch to be split.

    Args:
      flags: by name; None for a flag that was not given.
      describe: returns the training that must fit; its micro-batch is ignored.
      workers: the ranks, from `ranks.workers`. The smallest of the micro-batches that they find is used.

    Raises:
      UserError: these flags contradict each other, or the ranks cannot share the global batch.
    """
    size, steps, global_size = (
        flags[name] for name in ("train_batch_size", "num_accumulation_steps", "global_batch_size")
    )
    if size != AUTO:
        if not size.isdecimal() or int(size) < 1:
            raise UserError(f"--train_batch_size={size}: must be a whole number of at least 1, or {AUTO}")
        if global_size is not None:
            raise UserError(
                f"--global_batch_size belongs to --train_batch_size={AUTO}; without it the global batch is "
                "train_batch_size x num_accumulation_steps x ranks"
            )
        return BatchSplit(int(size), 1 if steps is None else steps, workers.size)
    if global_size is None:
        raise UserError(f"--train_batch_size={AUTO} needs --global_batch_size, the sequences of all ranks in an update")
    if steps is not None:
        raise UserError(f"--train_batch_size={AUTO} finds --num_accumulation_steps by itself; omit that")
    if global_size < 1 or global_size % workers.size:
        raise UserError(f"--global_batch_size={global_size}: must be a multiple of the {workers.size} rank(s)")
    num_rows = global_size // workers.size
    limit = find_device(flags["gpu_memory_gib"], workers.size).memory
    smallest = int(workers.gather(np.array([largest_micro_batch(describe(), limit, num_rows)])).min())
    split = BatchSplit(smallest, num_rows // smallest, workers.size)
    if workers.is_chief:
        print(
            f"--train_batch_size={AUTO}: by the plan {split.num_accumulation_steps} micro-batch(es) of "
            f"{split.micro_batch_size} on each rank fit",
            flush=True,
        )
    return split


def check_unpacked(train_batch_size: str | int, packing: bool) -> None:
    """Raises `UserError` for an automatic batch size with packing: the plan assumes one instance per row."""
    if packing and train_batch_size == AUTO:
        raise UserError(
            f"the batch size {AUTO} and packing do not go together, because the memory plan does not "
            "know packed rows: give the size as a number, or turn packing off"
        )


def plan(work: Workload, device: Device) -> list[str]:
    """The table that ``--plan`` prints."""
    config, fixed = work.bert_config, predict(work)
    task = "classifying" if work.classifies else "finding spans"
    if work.max_predictions_per_seq:
        task = f"{work.max_predictions_per_seq} predictions, pre-training"
    lines = [
        f"model: {config.num_hidden_layers} layers x {config.hidden_size}, vocabulary of {config.vocab_size}, "
        f"{work.num_parameters / 1e6:.1f} million parameters",
        f"work: sequences of {work.max_seq_length}, {task}; scope {work.scope}, {work.num_ranks} rank(s)",
        f"device: {device.memory / GIB:.2f} GiB ({device.name}), of which {PROGRAM / GIB:g} GiB for the program itself",
        "",
        "whatever the micro-batch, GiB:",
    ]
    for name, size in zip(("parameters", "gradients", "m", "v"), dataclasses.astuple(fixed)):
        lines.append(f"  {name:<15}{size / GIB:8.2f}")
    variants = {
        f"{name}{', recompute' if recompute else ''}": dataclasses.replace(
            work,
            precision=precision,
            recompute=recompute,
            scope="blocks" if recompute and work.scope == "step" else work.scope,  # as in `choose_scope`
        )
        for name, precision in (("fp32", "fp32"), ("16 bit", "bf16"))
        for recompute in (False, True)
    }
    lines += [
        "",
        "activations + workspace = total with the program, GiB; * fits:",
        "micro-batch" + "".join(f"{name:>28}" for name in variants),
    ]
    any_fits, size = True, 1
    while any_fits and size <= LARGEST_MICRO_BATCH:
        line, any_fits = f"{size:>11}", False
        for variant in variants.values():
            memory = predict(dataclasses.replace(variant, micro_batch_size=size))
            total = memory.total + PROGRAM
            any_fits |= total <= device.memory
            line += f"{memory.activations / GIB:>12.2f} +{memory.workspace / GIB:>5.2f} ={total / GIB:>6.2f}"
            line += "*" if total <= device.memory else " "
        lines.append(line)
        size *= 2
    lines += ["", "16 bit: fp16 or bf16; tf32 takes as much as fp32. Accumulation takes no memory"]
    lines[-1] += " beyond that of the two micro-batches computed at the same time." if work.num_at_once > 1 else "."
    return lines
