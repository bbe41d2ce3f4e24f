"""How the time of an update is spent on a cluster: computing, waiting, exchanging gradients, saving.

This follows the code (`training.step`): the gradients of all micro-batches are summed, then all-reduced once, in flat
buckets one after the other, while nothing is computed. Three constants are fitted, and three are assumed; all others
are from data sheets, measured here, or counted in compiled programs (`gpus`). docs/clusters.md compares predictions
with published figures.
"""

from __future__ import annotations

import dataclasses
import math

from bert_tf.memory.plan import BUCKET_BYTES, FLOAT, Workload
from bert_tf.planning.gpus import Gpu

# Fitted by trial to the published rates and times in docs/clusters.md, which are then compared with the predictions.
# Fitted to NVIDIA's TF2 code on DGX-2, DGX-2H and DGX A100: the ranks' wait for the slowest one, as a share of the
# computing time, and the host's time per update with other ranks, whatever the update's size.
WAITING_SHARE, HOST_SECS = 0.05, 0.03
# Fitted to the times that NVIDIA published for whole trainings: a phase's start, compilation and evaluation.
START_SECS = 450.0
# Assumed, as the published rates hardly depend on them: the share of a link that NCCL reaches, and a message's latency.
LINK_SHARE, LATENCY_SECS = 0.8, 1e-5
# Also assumed: how fast weights, m and v are copied to the host while updates wait (PCIe 3, ordinary memory).
SAVE_BYTES_PER_SEC = 5e9
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
    save_checkpoint_steps: int = 100,
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
        checkpoints=3 * FLOAT * work.num_parameters / SAVE_BYTES_PER_SEC / save_checkpoint_steps,
    )
