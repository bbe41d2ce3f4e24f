"""Predicts how much device memory a training needs, by model, micro-batch, precision and recomputation.

The count follows the code that runs: what the scope's backend keeps for the backward pass, what `training.step`
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
from typing import Any, NamedTuple

from bert_tf.base.machine.hardware import GIB, count_cores, free_memory, gpu_memories
from bert_tf.bert_config import TENSOR_CORE_UNIT, BertConfig
from bert_tf.model.kernels.requirements import LOSS_UNIT, can_attend, may_have_kernels
from bert_tf.optimizer_registry import OPTIMIZERS
from bert_tf.settings.programs import ProgramOptions
from bert_tf.settings.training import TrainingConfig, compute_dtype

FLOAT = 4
# The largest flat copy that an all-reduce sends (`ranks.workers`), unless a single variable is larger: large enough
# that the cost of starting a reduction does not matter, and far smaller than a second copy of all gradients.
BUCKET_BYTES = 128 << 20
# What libraries, driver and compiled code take besides tensors.
PROGRAM = 0.75 * GIB
# Copies of the word table's gradient at the end of the backward pass, including the sum over the micro-batches.
TABLE_COPIES = 4
LARGEST_MICRO_BATCH = 1024


class RankMemory(NamedTuple):
    """The memory that a rank has, and where its size comes from."""

    num_bytes: float
    source: str


def find_rank_memory(gpu_memory_gib: float | None, num_ranks: int) -> RankMemory:
    """A rank's memory: `gpu_memory_gib`, else that of the smallest usable GPU, else a share of the free memory."""
    if gpu_memory_gib is not None:
        return RankMemory(gpu_memory_gib * GIB, "--gpu_memory_gib")
    if memories := gpu_memories():
        return RankMemory(min(memories), "the GPU's memory")
    return RankMemory(free_memory() / num_ranks, f"free memory of this machine, for {num_ranks} rank(s)")


class _Amount(NamedTuple):
    """What is kept for each element of a shape."""

    values: float  # in the compute type
    extra_bytes: float = 0.0

    def bytes(self, size: int) -> float:
        """`size`: bytes of a value in the compute type."""
        return self.values * size + self.extra_bytes


class _Footprint(NamedTuple):
    """What is kept in memory in an XLA scope."""

    rows: _Amount  # by a layer for its backward pass, per element of R*H; besides, 2 values per element of R*I
    keys: _Amount  # the part of `rows` that is for keys and values
    scores: _Amount  # by a layer, per element of B*N*S*S
    logits: _Amount  # by the head and its gradient, per element of B*P*V
    working_bytes: float  # per element of R*H, while a recomputed layer is differentiated
    optimizer_copies: float  # copies of the largest variable, while it is updated
    # Short-lived tensors take more than their size if the allocator hands out a block for each, of up to twice
    # the requested size. XLA requests all memory of a step at once.
    fragmentation: float


# In "blocks" a layer keeps the tensors that pass between matmuls and blocks, and two dropout masks of a byte per
# element; of the attention scores it keeps the float32 softmax, the softmax after dropout, and the dropout mask. The
# plain graph keeps every intermediate value of the blocks. In "step" XLA's program for GPUs keeps query, key, value,
# context, the arguments and results of both LayerNorms, and an eighth of a byte per element for each dropout; besides,
# the scores and the softmax after dropout, but neither of these with kernels of our own.
_BLOCKS = _Footprint(
    _Amount(12, 2), _Amount(4), _Amount(1, 5), _Amount(2, 20), 60, optimizer_copies=3, fragmentation=1.1
)
_STEP = _Footprint(
    _Amount(8, 0.25), _Amount(2), _Amount(2, 0.125), _Amount(2, 3), 0, optimizer_copies=3, fragmentation=1.0
)
_FOOTPRINTS = {
    "blocks": _BLOCKS,
    "off": _BLOCKS._replace(rows=_Amount(12, 88), logits=_Amount(1, 9), optimizer_copies=10),
    "step": _STEP,
}
_STEP_WITH_KERNELS = _STEP._replace(scores=_Amount(0, 0.125), logits=_Amount(2))
# The most that TensorFlow's allocator handed out beyond this in scope "step", over 16 programs on an H200
# (benchmarks/results/records/gpu_h200.md).
STEP_WORKSPACE = 0.3 * GIB


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is trained and how, as far as memory is concerned."""

    bert_config: BertConfig
    sequence_length: int
    num_predictions: int  # 0: the head for spans instead of those of pre-training
    scope: str
    micro_batch_size: int = 1
    precision: str = "fp32"
    recompute: bool = False
    num_ranks: int = 1
    classifies: bool = False  # with 0 predictions: a classifier after the pooler instead of the head for spans
    no_next_sentence: bool = False  # with predictions: neither a pooler nor the head for the next sentence
    num_choices: int = 1  # sequences in each row of a micro-batch
    num_instances: int = 1  # the most that are packed into a row
    num_at_once: int = 1  # micro-batches in memory at the same time
    num_moments: int = 2  # values that the optimizer keeps for each weight
    has_kernels: bool = False  # whether the GPU can run kernels of our own, in scope "step"

    @classmethod
    def from_config(
        cls, config: TrainingConfig, options: ProgramOptions, bert_config: BertConfig, **task: Any
    ) -> Workload:
        """The workload of a training with these settings, whose XLA scope is resolved; `task`: its task's fields."""
        return cls(
            bert_config,
            scope=config.xla_scope,
            precision=config.precision,
            recompute=config.recompute,
            num_ranks=config.num_ranks,
            num_at_once=micro_batches_at_once(config.xla_scope, options.plans_for_gpu),
            num_moments=len(OPTIMIZERS[config.optimizer_type].slots),
            has_kernels=config.xla_scope == "step" and may_have_kernels(),
            **task,
        )

    @property
    def uses_pooler(self) -> bool:
        return self.classifies or (self.num_predictions > 0 and not self.no_next_sentence)

    @property
    def num_layer_parameters(self) -> int:
        config, hidden = self.bert_config, self.bert_config.hidden_size
        wide = 2 * hidden * config.intermediate_size + config.intermediate_size + hidden
        return config.num_hidden_layers * (4 * (hidden * hidden + hidden) + wide + 4 * hidden)

    @property
    def num_parameters(self) -> int:
        """The number of trained weights, including the rows that pad the word table to a multiple of 8."""
        config, hidden = self.bert_config, self.bert_config.hidden_size
        embeddings = (config.padded_vocab_size + config.type_vocab_size + config.max_position_embeddings + 2) * hidden
        square = hidden * hidden + hidden
        # Next sentence, spans (without a pooler), or a classifier of two classes.
        heads = 0 if self.no_next_sentence else 2 * hidden + 2
        if self.uses_pooler:
            heads += square
        if self.num_predictions:
            heads += square + 2 * hidden + config.padded_vocab_size
        return embeddings + self.num_layer_parameters + heads

    @property
    def last_layer_share(self) -> float:
        """The share of a row's positions for which the last layer computes results."""
        num_read = self.num_predictions + self.uses_pooler * self.num_instances
        num_read += -num_read % TENSOR_CORE_UNIT
        return min(1.0, num_read / self.sequence_length) if num_read else 1.0

    @property
    def uses_kernels(self) -> bool:
        """Whether attention is computed by a kernel of our own (`kernels.fused_attention`)."""
        is_supported = can_attend(self.bert_config.head_size, self.sequence_length)
        return self.has_kernels and self.scope == "step" and self.compute_bytes == 2 and is_supported

    @property
    def compute_bytes(self) -> int:
        return 4 if compute_dtype(self.precision) == "float32" else 2


def micro_batches_at_once(scope: str, for_gpu: bool = False) -> int:
    """How many micro-batches of an update are computed at the same time: two on a CPU if TensorFlow has two threads.

    On a CPU compiled blocks use a single core for much of their time. `for_gpu` as in `choose_scope`.
    """
    from bert_tf.base.tensorflow import tf  # imported late, because the launchers do without it

    if scope == "step" or for_gpu or tf.config.get_visible_devices("GPU"):
        return 1
    threads = os.environ.get("TF_NUM_INTEROP_THREADS", "")
    return min(2, int(threads) if threads.isdecimal() and int(threads) else count_cores())


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of each kind at the peak of memory use."""

    weights: float
    gradients: float  # their sums over the micro-batches
    moments: float  # what the optimizer keeps for each weight
    activations: float  # kept for the backward pass
    workspace: float  # temporary: the head, a layer's gradients, copies made by the optimizer and the all-reduce

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))


def predict(work: Workload) -> Memory:
    """The device memory that `work` takes, without the program itself (`PROGRAM`)."""
    config, size, without_kernels = work.bert_config, work.compute_bytes, _FOOTPRINTS[work.scope]
    footprint = _STEP_WITH_KERNELS if work.uses_kernels else without_kernels
    parameters = FLOAT * work.num_parameters
    table = FLOAT * config.padded_vocab_size * config.hidden_size
    # `rows` and `scores` are numbers of elements: of R*H and of B*N*S*S.
    num_rows = work.micro_batch_size * work.num_choices * work.num_at_once
    rows = num_rows * work.sequence_length * config.hidden_size
    scores = num_rows * config.num_attention_heads * work.sequence_length**2

    wide_bytes = 2 * config.intermediate_size / config.hidden_size * size
    layer_without_scores = rows * (footprint.rows.bytes(size) + wide_bytes)
    layer = layer_without_scores + scores * footprint.scores.bytes(size)
    # Kernels of our own compute all queries of a row, so the last layer, which computes only some, goes without.
    last = layer_without_scores + scores * without_kernels.scores.bytes(size)
    last = work.last_layer_share * last + (1 - work.last_layer_share) * rows * footprint.keys.bytes(size)
    layers = config.num_hidden_layers * rows * size if work.recompute else (config.num_hidden_layers - 1) * layer + last
    num_words = num_rows * work.num_predictions
    bytes_per_logit = (without_kernels if num_words % LOSS_UNIT else footprint).logits.bytes(size)
    logits = num_words * config.padded_vocab_size * bytes_per_logit
    head_table = table if work.num_predictions else 0
    # Weights in the compute type are kept for the whole update.
    casts = 0 if size == FLOAT or work.recompute else parameters / FLOAT * size
    # Except in "step", the layers' gradients were seen to be kept until the end, and only then added to the sums.
    pending = 0 if work.scope == "step" else FLOAT * work.num_layer_parameters
    recomputed = layer + footprint.working_bytes * rows + pending if work.recompute else 0
    # The backward pass: first the head's, then that of each layer, and the word table's last.
    head_peak, layers_peak = layers + casts + head_table + logits, layers + casts + head_table + recomputed
    table_peak = casts + table + max((TABLE_COPIES - 1) * table, pending)
    # In "step" the sum of the embeddings is kept in float32.
    step_extra = FLOAT * rows + STEP_WORKSPACE if work.scope == "step" else 0
    backward_peak = footprint.fragmentation * max(head_peak, layers_peak, table_peak) + step_extra

    # The all-reduced means besides the sums, and one bucket being sent; splitting a reduced bucket makes no copy.
    reduced = parameters + min(max(BUCKET_BYTES, table), parameters) if work.num_ranks > 1 else 0
    update_peak = footprint.optimizer_copies * table + reduced
    activations = min(layers, backward_peak)
    moments, workspace = work.num_moments * parameters, max(backward_peak, update_peak) - activations
    return Memory(parameters, parameters, moments, activations, workspace)


def largest_micro_batch(work: Workload, limit: float, num_rows: int) -> int:
    """The largest divisor of a rank's `num_rows` that fits into `limit` bytes; 1 if none does."""
    for size in range(min(num_rows, LARGEST_MICRO_BATCH), 0, -1):
        if num_rows % size == 0 and fits(split_into(work, size, num_rows // size), limit):
            return size
    return 1


def split_into(work: Workload, micro_batch_size: int, num_accumulation_steps: int) -> Workload:
    """The same work with updates of `num_accumulation_steps` micro-batches of `micro_batch_size`."""
    return dataclasses.replace(
        work, micro_batch_size=micro_batch_size, num_at_once=min(work.num_at_once, num_accumulation_steps)
    )


def fits(work: Workload, limit: float) -> bool:
    return predict(work).total + PROGRAM <= limit


def plan(work: Workload, rank_memory: RankMemory) -> list[str]:
    """The table that ``--plan`` prints."""
    config, memory = work.bert_config, predict(work)
    task = "classifying" if work.classifies else "finding spans"
    if work.num_predictions:
        task = f"{work.num_predictions} predictions, pre-training"
        task += " without next sentence" if work.no_next_sentence else ""
    task += f" ({work.num_choices} sequences to a question)" if work.num_choices > 1 else ""
    lines = [
        f"model: {config.num_hidden_layers} layers x {config.hidden_size}, vocabulary of {config.vocab_size}, "
        f"{work.num_parameters / 1e6:.1f} million parameters",
        f"work: sequences of {work.sequence_length}, {task}; scope {work.scope}, {work.num_ranks} rank(s)",
        f"device: {rank_memory.num_bytes / GIB:.2f} GiB ({rank_memory.source}), of which "
        f"{PROGRAM / GIB:g} GiB for the program itself",
        "",
        "whatever the micro-batch, GiB:",
    ]
    for name, size in (("parameters", memory.weights), ("gradients", memory.gradients), ("moments", memory.moments)):
        lines.append(f"  {name:<15}{size / GIB:8.2f}")
    recompute_scope = "blocks" if work.scope == "step" else work.scope  # as in `choose_scope`
    variants = {}
    for name, precision in (("fp32", "fp32"), ("16 bit", "bf16")):
        variants[name] = dataclasses.replace(work, precision=precision, recompute=False)
        variants[f"{name}, recompute"] = dataclasses.replace(
            work, precision=precision, recompute=True, scope=recompute_scope
        )
    lines += [
        "",
        "activations + workspace = total with the program, GiB; * fits:",
        "micro-batch" + "".join(f"{name:>28}" for name in variants),
    ]
    for size in (1 << exponent for exponent in range(LARGEST_MICRO_BATCH.bit_length())):
        planned = [predict(dataclasses.replace(variant, micro_batch_size=size)) for variant in variants.values()]
        lines.append(f"{size:>11}" + "".join(_cell(memory, rank_memory.num_bytes) for memory in planned))
        if "*" not in lines[-1]:
            break
    exception = " beyond that of the two micro-batches computed at the same time" if work.num_at_once > 1 else ""
    return [*lines, "", f"16 bit: fp16 or bf16; tf32 takes as much as fp32. Accumulation takes no memory{exception}."]


def _cell(memory: Memory, limit: float) -> str:
    total = memory.total + PROGRAM
    parts = f"{memory.activations / GIB:>12.2f} +{memory.workspace / GIB:>5.2f} ={total / GIB:>6.2f}"
    return parts + ("*" if total <= limit else " ")
