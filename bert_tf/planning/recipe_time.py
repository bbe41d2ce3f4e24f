"""The two-phase recipe on a cluster: its split into micro-batches, and how the time of an update is spent.

This follows the code (`training.step`): the gradients of all micro-batches are summed, then all-reduced once, in flat
buckets one after the other, while nothing is computed. Three constants are fitted, and three are assumed; all others
are from data sheets or measured (see also `gpus`). docs/clusters.md compares predictions with published figures.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import GIB
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.launch.arguments import Positionals
from bert_tf.launch.pretraining import LAMB, Phase, make_phases
from bert_tf.memory.plan import BUCKET_BYTES, FLOAT, Workload, fits, largest_micro_batch
from bert_tf.planning.gpus import Gpu
from bert_tf.settings.training import MAX_GLOBAL_BATCH, MAX_RANKS

# Fitted by trial to the published rates and times in docs/clusters.md, which are then compared with the predictions.
# Fitted to NVIDIA's TF2 code on DGX-2, DGX-2H and DGX A100: the ranks' wait for the slowest one, as a share of the
# computing time, and the host's time per update with other ranks, whatever the update's size.
WAITING_SHARE, HOST_SECS = 0.05, 0.03
# Fitted to the times that NVIDIA published for whole trainings: a phase's start, compilation and evaluation.
START_SECS = 450.0
# Assumed, as published rates hardly depend on them: the share of a link that NCCL reaches, and a message's latency.
LINK_SHARE, LATENCY_SECS = 0.8, 1e-5
# Also assumed: how fast weights, m and v are copied to the host while updates wait (PCIe 3, ordinary memory).
SAVE_BYTES_PER_SEC = 5e9
SAVE_CHECKPOINT_STEPS = 100  # the recipe's
# What an input thread reads and parses at length 128; with longer records it is faster (benchmarks/results).
INPUT_TOKENS_PER_SEC = 128 * 120_000
# A rank's own work per update for each other rank (benchmarks/results/records/control_work.md).
CONTROL_SECS_A_RANK = 1e-7


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Machines with GPUs, each with one rank."""

    gpu: Gpu
    num_nodes: int
    gpus_per_node: int
    network: float  # bandwidth of a node, bytes/s in one direction

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.gpus_per_node

    def all_reduce_secs(self, num_bytes: float) -> float:
        """Seconds of an all-reduce in a ring over all ranks, which enters and leaves each node once.

        Each link carries 2 (n-1)/n times the bytes, the slowest one at `LINK_SHARE` of its rate. For the latency,
        messages pass a node's GPUs one by one, and the nodes in a tree, there and back for each bucket.
        """
        if self.num_gpus == 1:
            return 0.0
        slowest = min(self.gpu.link, self.network) if self.num_nodes > 1 else self.gpu.link
        hops = self.gpus_per_node - 1 + math.ceil(math.log2(self.num_nodes))
        sent = 2 * (self.num_gpus - 1) / self.num_gpus * num_bytes
        return sent / (LINK_SHARE * slowest) + 2 * hops * math.ceil(num_bytes / BUCKET_BYTES) * LATENCY_SECS


@dataclasses.dataclass(frozen=True)
class UpdateTime:
    """The seconds of an update, by what they are spent on."""

    compute: float
    waiting: float  # for the slowest rank
    all_reduce: float
    optimizer: float
    host: float  # an update's fixed work, and the ranks' agreement before it
    input: float  # by how much reading takes longer than computing
    checkpoints: float  # an update's share of copying checkpoints to the host

    @property
    def total(self) -> float:
        return sum(dataclasses.astuple(self))


def update_time(
    cluster: Cluster,
    work: Workload,
    num_micro_batches: int,
    *,
    rate: float | None = None,
    gradient_bytes: float = FLOAT,
) -> UpdateTime:
    """The time of one update of `num_micro_batches` micro-batches on every rank.

    Args:
      rate: measured sequences/s of one GPU; None: predicted.
      gradient_bytes: bytes per gradient element sent between ranks; 2 with --allreduce_compression=fp16.
    """
    rows = work.micro_batch_size * num_micro_batches
    compute = rows / rate if rate else num_micro_batches * cluster.gpu.micro_batch_secs(work)
    shared = cluster.num_gpus > 1
    return UpdateTime(
        compute=compute,
        waiting=compute * WAITING_SHARE * shared,
        all_reduce=cluster.all_reduce_secs(gradient_bytes * work.num_parameters),
        optimizer=cluster.gpu.optimizer_secs(work),
        host=(HOST_SECS + cluster.num_gpus * CONTROL_SECS_A_RANK) * shared,
        input=max(0.0, rows * work.sequence_length / INPUT_TOKENS_PER_SEC - compute),
        checkpoints=3 * FLOAT * work.num_parameters / SAVE_BYTES_PER_SEC / SAVE_CHECKPOINT_STEPS,
    )


@dataclasses.dataclass(frozen=True)
class PhaseTime:
    """A phase as the launcher runs it."""

    phase: Phase
    work: Workload
    update: UpdateTime

    @property
    def hours(self) -> float:
        return (self.phase.num_updates * self.update.total + START_SECS) / 3600

    @property
    def sequences_per_sec(self) -> float:
        return self.phase.global_batch_size / self.update.total


@dataclasses.dataclass(frozen=True)
class RecipeTime:
    """Both phases, and the launcher's fifteen arguments."""

    cluster: Cluster
    argument_texts: Sequence[str]
    phases: Sequence[PhaseTime]

    @property
    def hours(self) -> float:
        return sum(phase.hours for phase in self.phases)

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.cluster.num_gpus


Pair = Sequence[Any]  # a user's choice for each phase; None: it is derived


def plan_recipe(
    cluster: Cluster,
    bert_model: str = "large",
    *,
    micro_batches: Pair = (None, None),
    global_batches: Pair = (None, None),
    rates: Pair = (None, None),
    gradient_bytes: float = FLOAT,
) -> RecipeTime:
    """How `cluster` would run the recipe, with its learning rates, warm-up and number of sequences at any global batch.

    Args:
      micro_batches: None: the largest that fits.
      global_batches: None: the recipe's.
      rates: measured sequences/s of one GPU; None: predicted.
      gradient_bytes: as for `update_time`.

    Raises:
      UserError: there are too many ranks, they cannot share a global batch evenly, or a micro-batch does not divide it
        or fit into memory.
    """
    default = Positionals(LAMB, [])
    original, ranks, precision = make_phases(default), cluster.num_gpus, cluster.gpu.precision
    if ranks > MAX_RANKS:
        raise UserError(
            f"{cluster.num_nodes} nodes of {cluster.gpus_per_node} GPUs are {ranks:,} GPUs: a run has at most "
            f"{MAX_RANKS:,}; plan for fewer nodes"
        )
    batches = [batch or phase.global_batch_size for batch, phase in zip(global_batches, original)]
    if any(batch % ranks for batch in batches):
        most = MAX_GLOBAL_BATCH // ranks
        near = ",".join(str(min(max(1, round(batch / ranks)), most) * ranks) for batch in batches)
        raise UserError(
            f"{' and '.join(map(str, batches))}, the phases' global batches, must be multiples of {ranks}, the number "
            f"of GPUs, as --global_batch={near} are"
        )
    argument_texts = {argument.name: argument.default for argument in LAMB}
    steps = int(default["train_steps"] * original[0].global_batch_size / batches[0])
    argument_texts.update(precision=precision, num_gpus=str(ranks), bert_model=bert_model, train_steps=str(steps))
    works = []
    for phase, batch, micro_batch in zip(original, batches, micro_batches):
        work = Workload(
            BertConfig.preset(bert_model, GOOGLE_VOCAB_SIZE),
            phase.max_seq_length,
            phase.max_predictions_per_seq,
            "step",
            precision=precision,
            num_ranks=ranks,
            has_kernels=cluster.gpu.has_bf16,
        )
        works.append(_with_micro_batch(work, cluster.gpu.memory, batch // ranks, micro_batch))
        size = works[-1].micro_batch_size
        for name, value in (
            ("train_batch_size", size),
            ("learning_rate", f"{phase.learning_rate * phase.num_ranks / ranks:.4g}"),
            ("warmup_steps", round(phase.warmup_steps * phase.global_batch_size / batch)),
            ("num_accumulation_steps", batch // ranks // size),
        ):
            argument_texts[default.name_of(name, phase.argument_suffix)] = str(value)
    times = []
    for phase, work, rate in zip(make_phases(Positionals(LAMB, list(argument_texts.values()))), works, rates):
        update = update_time(cluster, work, phase.num_accumulation_steps, rate=rate, gradient_bytes=gradient_bytes)
        times.append(PhaseTime(phase, work, update))
    return RecipeTime(cluster, list(argument_texts.values()), times)


def _with_micro_batch(work: Workload, memory: float, num_rows: int, micro_batch_size: int | None) -> Workload:
    """The work with this micro-batch, or, for None, with the largest one that fits and divides a rank's sequences."""
    size = micro_batch_size or largest_micro_batch(work, memory, num_rows)
    work = dataclasses.replace(work, micro_batch_size=size)
    if num_rows % size or not fits(work, memory):
        raise UserError(
            f"a micro-batch of {size} at length {work.sequence_length} must divide the {num_rows} sequences of a GPU, "
            f"and fit into {memory / GIB:g} GiB: take another --micro_batch, a smaller model, another precision, or a "
            "larger GPU"
        )
    return work
