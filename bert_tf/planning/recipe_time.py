"""The two-phase recipe on a cluster: micro-batches, accumulation, and how long it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.base.machine import GIB
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.launch import lamb
from bert_tf.launch.pretraining import Phase
from bert_tf.memory.plan import FLOAT, Workload, fits, largest_micro_batch
from bert_tf.planning.update_time import START_SECS, Cluster, UpdateTime, update_time


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a user may choose; pairs have an entry for each phase."""

    bert_model: str = "large"
    precision: str = "fp16"
    micro_batches: Sequence[int | None] = (None, None)  # None: the largest that fits
    global_batches: Sequence[int | None] = (None, None)  # None: the recipe's
    rates: Sequence[float | None] = (None, None)  # measured sequences/s of one GPU; None: predicted


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
    typed: Sequence[str]
    phases: Sequence[PhaseTime]

    @property
    def hours(self) -> float:
        return sum(phase.hours for phase in self.phases)

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.cluster.num_gpus


def plan_recipe(cluster: Cluster, choices: Choices, gradient_bytes: float = FLOAT) -> RecipeTime:
    """How `cluster` would run the recipe, with its learning rates, warm-up and number of sequences at any global batch.

    Raises:
      UserError: the ranks cannot share a global batch evenly, or a micro-batch does not divide it or fit into memory.
    """
    default = lamb.parse([])
    steps, original = default["train_steps"], lamb.make_phases(default)
    ranks, typed = cluster.num_gpus, {argument.name: argument.default for argument in lamb.ARGUMENTS}
    works, batches = [], [given or phase.global_batch_size for given, phase in zip(choices.global_batches, original)]
    if any(batch % ranks for batch in batches):
        near = ",".join(str(max(1, round(batch / ranks)) * ranks) for batch in batches)
        raise UserError(
            f"{ranks} GPUs cannot share {' and '.join(map(str, batches))} sequences, the global batches of the phases, "
            f"evenly: each must be a multiple of {ranks}; --global_batch={near} is"
        )
    scale = original[0].global_batch_size / batches[0]
    for number, (phase, batch) in enumerate(zip(original, batches), 1):
        work = Workload(
            BertConfig.preset(choices.bert_model, GOOGLE_VOCAB_SIZE),
            phase.max_seq_length,
            phase.max_predictions_per_seq,
            "step",
            precision=choices.precision,
            num_ranks=ranks,
        )
        work = _split(work, cluster.gpu.memory, batch // ranks, choices.micro_batches[number - 1])
        works.append(work)
        typed[f"train_batch_size_phase{number}"] = str(work.micro_batch_size)
        typed[f"learning_rate_phase{number}"] = f"{phase.learning_rate * phase.num_ranks / ranks:.4g}"
        typed[f"warmup_steps_phase{number}"] = str(round(phase.warmup_steps * phase.global_batch_size / batch))
        accumulation = ("num_accumulation_phase1", "num_accumulation_steps_phase2")[number - 1]
        typed[accumulation] = str(batch // ranks // work.micro_batch_size)
    typed.update(precision=choices.precision, num_gpus=str(ranks), bert_model=choices.bert_model)
    typed["train_steps"] = str(int(steps * scale))
    values = lamb.parse(list(typed.values()))
    times = [
        PhaseTime(
            phase,
            work,
            update_time(
                cluster,
                work,
                phase.num_accumulation_steps,
                save_checkpoint_steps=values["save_checkpoint_steps"],
                rate=rate,
                gradient_bytes=gradient_bytes,
            ),
        )
        for phase, work, rate in zip(lamb.make_phases(values), works, choices.rates)
    ]
    return RecipeTime(cluster, list(typed.values()), times)


def _split(work: Workload, memory: float, num_rows: int, micro_batch_size: int | None) -> Workload:
    """The work with this micro-batch; None: with the largest one that fits and divides a rank's sequences."""
    size = micro_batch_size or largest_micro_batch(work, memory, num_rows)
    length = work.sequence_length
    if num_rows % size:
        raise UserError(
            f"--micro_batch: {size} at length {length} does not divide the {num_rows} sequences of a GPU in an update"
        )
    work = dataclasses.replace(work, micro_batch_size=size)
    if not fits(work, memory):
        raise UserError(
            f"a micro-batch of {size} at length {length} needs more than {memory / GIB:g} GiB with this model; take a "
            "smaller micro-batch or model, another precision, or a larger GPU"
        )
    return work
