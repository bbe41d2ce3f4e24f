"""The settings of a training run: `PretrainingConfig` and `FinetuningConfig`, frozen and checked when created.

A config first holds the settings as typed; `memory.split.complete_config` completes it for this machine and the number
of ranks.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

from bert_tf.base.errors import UserError
from bert_tf.optimizer_registry import OPTIMIZERS
from bert_tf.settings.declaration import LARGEST, check, fixed_settings, setting, with_default

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
XLA_SCOPES = ("step", "blocks", "off")
AUTO = "auto"  # --train_batch_size: the largest micro-batch that fits
EPOCH = "epoch"  # --eval_steps
SEED = 12345
MAX_RANKS, MAX_GLOBAL_BATCH = 16384, 1 << 20
MAX_SEED = 10**18 - 1  # the digits that `parse_whole` reads; NumPy's Philox would round a key of over 63 bits
# Held-out instances evaluated by default: about 200,000 masked tokens at 20 each, enough to know the accuracy to 0.1 %.
EVALUATED_INSTANCES = 10_240


class BatchSplit(NamedTuple):
    """How the global batch is split (micro-batch x gradient accumulation x ranks), and which rank this is."""

    micro_batch_size: int
    num_accumulation_steps: int = 1
    num_ranks: int = 1
    rank: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """[A, B], the leading dimensions of a rank's features: micro-batches, and rows of each."""
        return self.num_accumulation_steps, self.micro_batch_size

    @property
    def rows_per_rank(self) -> int:
        return self.micro_batch_size * self.num_accumulation_steps

    @property
    def global_batch_size(self) -> int:
        return self.rows_per_rank * self.num_ranks


Config = TypeVar("Config", bound="TrainingConfig")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Settings shared by pre-training and fine-tuning. Batch size and learning rate are per rank, like the flags.

    Raises: UserError for a value that its declaration does not allow.
    """

    learning_rate: float = setting(
        0.0, "Peak rate of one rank; multiplied by the number of ranks.", above=0, at_most=100.0
    )
    train_batch_size: int = setting(
        0,
        "Micro-batch of one rank; auto: the largest that fits and divides its share of --global_batch_size.",
        at_least=1,
        at_most=MAX_GLOBAL_BATCH,
        word=AUTO,
    )
    num_accumulation_steps: int = setting(
        1, "Micro-batches of one rank in an update; default: 1; with --train_batch_size=auto computed.", at_least=1
    )
    num_ranks: int = setting(1, at_least=1, at_most=MAX_RANKS, is_flag=False)
    precision: str = setting("fp32", "Number format of the matmuls.", choices=PRECISIONS, is_fixed=True)
    xla_scope: str = setting(
        AUTO,
        "What XLA compiles; auto: the whole step on GPUs, the element-wise blocks on CPUs and with --recompute.",
        choices=(AUTO, *XLA_SCOPES),
    )
    # Activation checkpointing: the backward pass computes each layer again.
    recompute: bool = setting(
        False,
        "Compute each layer again in the backward pass instead of keeping it: a third more arithmetic, a fraction of "
        "the memory, the same update.",
        variable="RECOMPUTE",
    )
    # Whether the first updates may halve a micro-batch that does not fit into memory.
    may_split_more: bool = setting(False, "", is_flag=False)
    adam_bias_correction: bool = setting(
        False, "Whether Adam corrects its moments' bias, as Keras does.", is_fixed=True
    )
    seed: int = setting(
        SEED, "Seed of new weights, data order and dropout.", at_least=0, at_most=MAX_SEED, is_fixed=True
    )
    save_checkpoint_steps: int = setting(100, "Updates between checkpoints.", at_least=1)
    display_loss_steps: int = setting(10, "Updates between two log lines.", at_least=1)
    keep_checkpoints: int = setting(3, "How many of the newest checkpoints stay.", at_least=1)
    eval_steps: float | None = setting(
        None,
        "Updates between two evaluations on held-out data while training; below 1 a part of an epoch; or epoch. The "
        "best checkpoint is then kept, too, and stands for the run.",
        above=0,
        at_most=100_000_000.0,
        word=EPOCH,
        variable="EVAL_STEPS",
    )
    early_stopping: int | None = setting(
        None,
        "With --eval_steps: stop after so many evaluations without a better score.",
        at_least=1,
        variable="EARLY_STOPPING",
    )
    max_hours: float | None = setting(
        None,
        "So many hours after this start, save and stop with exit code 75, as on a signal.",
        above=0,
        at_most=100_000.0,
        variable="MAX_HOURS",
    )

    optimizer_type = "adamw"

    def __post_init__(self) -> None:
        check(self)
        if self.train_batch_size != AUTO and self.global_batch_size > MAX_GLOBAL_BATCH:
            raise UserError(f"global_batch_size={self.global_batch_size}: must be at most {MAX_GLOBAL_BATCH:,}")
        if isinstance(self.eval_steps, float) and self.eval_steps > 1 and self.eval_steps % 1:
            raise UserError(
                f"eval_steps={self.eval_steps:g}: above 1 it is a number of updates, which must be whole, and below 1 "
                "a part of an epoch"
            )
        if self.early_stopping and not self.eval_steps:
            raise UserError(f"early_stopping={self.early_stopping} counts evaluations: give eval_steps, too")

    def with_split(self: Config, split: BatchSplit) -> Config:
        """The same settings with the global batch split so."""
        return dataclasses.replace(
            self,
            train_batch_size=split.micro_batch_size,
            num_accumulation_steps=split.num_accumulation_steps,
            num_ranks=split.num_ranks,
            may_split_more=self.train_batch_size == AUTO,
        )

    @property
    def global_batch_size(self) -> int:
        """Instances in one update: micro-batch x gradient accumulation x ranks."""
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def effective_learning_rate(self) -> float:
        """The peak learning rate: the flag is per rank (as in NVIDIA's recipe), in fine-tuning too."""
        return self.learning_rate * self.num_ranks

    def split(self, rank: int = 0) -> BatchSplit:
        """The global batch as `rank` sees it."""
        return BatchSplit(self.train_batch_size, self.num_accumulation_steps, self.num_ranks, rank)

    def eval_interval(self, num_rows: int) -> float | None:
        """Updates between two evaluations, not always whole, with `num_rows` in an epoch; None: no evaluations."""
        steps = 1.0 if self.eval_steps == EPOCH else self.eval_steps
        is_fraction = self.eval_steps == EPOCH or (steps or 1) < 1
        return max(1.0, steps * num_rows / self.global_batch_size) if steps and is_fraction else steps

    @property
    def joins_continuously(self) -> bool:
        """Whether the decay of the rate is counted from the end of the warm-up (`optimizer.schedule`)."""
        return OPTIMIZERS[self.optimizer_type].continuous_join

    def decay_start(self, num_warmup_updates: int) -> int:
        """The update from which the decay of the learning rate is counted."""
        return num_warmup_updates if self.joins_continuously else 0

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """Arguments of the optimizer's class, besides its schedule."""
        return {argument: getattr(self, name) for name, argument in OPTIMIZERS[self.optimizer_type].options.items()}

    def identity(self) -> dict[str, Any]:
        """The settings that must not change when a run is resumed.

        The split of the global batch, compilation, logging and saving may change: updates do not depend on them.
        """
        return {
            **fixed_settings(self),
            "effective_learning_rate": self.effective_learning_rate,
            "global_batch_size": self.global_batch_size,
            "continuous_join": self.joins_continuously,
        }


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(TrainingConfig):
    """One pre-training phase."""

    learning_rate: float = with_default(TrainingConfig, "learning_rate", 7.5e-4)
    train_batch_size: int = with_default(TrainingConfig, "train_batch_size", 32)
    # The default is used only by --plan, which does not need it.
    num_train_steps: int = setting(LARGEST, "Updates in this phase.", at_least=1, is_required=True, is_fixed=True)
    max_seq_length: int = setting(
        128, "Tokens of an instance; records have one length, token files any.", at_least=1, is_fixed=True
    )
    max_predictions_per_seq: int = setting(20, "Masked positions of an instance.", at_least=1, is_fixed=True)
    eval_batch_size: int = setting(8, "Evaluation batch of one rank.", at_least=1, at_most=MAX_GLOBAL_BATCH)
    optimizer_type: str = setting("lamb", "lamb is NVLAMB.", choices=tuple(OPTIMIZERS), is_fixed=True)
    lamb_adapt_excluded: bool = setting(
        True,
        "Whether biases and LayerNorm parameters have a trust ratio; false is the variant of MLPerf and apex.",
        is_fixed=True,
    )
    continuous_join: bool | None = setting(
        None,
        "Count the decay from the end of the warm-up, so that the rate does not drop there; default: adamw does, "
        "lamb and lars do not, as published.",
    )
    decay_steps: int | None = setting(
        None,
        "Last updates, in which the rate falls from its peak to 0; default: it falls from the warm-up on.",
        at_least=1,
        is_fixed=True,
    )
    dropout: float | None = setting(
        None,
        "Dropout rate while pre-training; default: the model's own, which fine-tuning has in any case.",
        at_least=0,
        at_most=0.9,
        variable="DROPOUT",
        is_fixed=True,
    )
    # Fixed, because dropout masks depend on the row's number.
    packing: bool = setting(
        False,
        "Pack up to three instances of an update into one row, where they fit: the same update with less padding.",
        variable="PACKING",
        is_fixed=True,
    )
    no_next_sentence: bool = setting(
        False,
        "Single segments and masked words only, without next sentence; needs token files.",
        variable="NO_NEXT_SENTENCE",
        is_fixed=True,
        actions="create_pairs",
    )
    allreduce_compression: str = setting(
        "none",
        "fp16: the ranks exchange gradients in half precision; none: in float32.",
        choices=("none", "fp16"),
        is_fixed=True,
    )
    warmup_steps: int = setting(0, "Updates until the rate reaches its peak.", at_least=0, is_fixed=True)
    max_eval_steps: int | None = setting(
        None,
        "Evaluation batches of each rank; 0: all; default: as many as 10,240 instances fill.",
        at_least=0,
        variable="MAX_EVAL_STEPS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_steps > self.num_train_steps:
            raise UserError(
                f"warmup_steps={self.warmup_steps} is more than num_train_steps={self.num_train_steps}: the learning "
                "rate would never decay; warm up for fewer, or train for more"
            )
        if self.decay_steps and self.decay_steps > self.num_train_steps - self.warmup_steps:
            raise UserError(
                f"decay_steps={self.decay_steps}: more than there are, {self.num_train_steps} updates less "
                f"{self.warmup_steps} of warm-up; take fewer"
            )
        if self.decay_steps and self.continuous_join is not None:
            raise UserError(
                "continuous_join has no effect with decay_steps, which say when the rate falls; leave it out"
            )
        for owner, entry in OPTIMIZERS.items():
            for name in entry.options if owner != self.optimizer_type else ():
                if (value := getattr(self, name)) != getattr(type(self), name):
                    raise UserError(
                        f"{name}={value} has no effect with optimizer_type={self.optimizer_type}; {owner} has it"
                    )
        if self.max_predictions_per_seq > self.max_seq_length:
            raise UserError(
                f"max_predictions_per_seq={self.max_predictions_per_seq}: must be at most max_seq_length="
                f"{self.max_seq_length}"
            )

    def with_split(self, split: BatchSplit) -> PretrainingConfig:
        config = super().with_split(split)
        if config.max_eval_steps is not None:
            return config
        num_steps = -(-EVALUATED_INSTANCES // (config.eval_batch_size * config.num_ranks))
        return dataclasses.replace(config, max_eval_steps=num_steps)

    def num_updates(self, num_rows: int) -> int:
        return self.num_train_steps

    def num_warmup_updates(self, num_rows: int) -> int:
        return self.warmup_steps

    @property
    def joins_continuously(self) -> bool:
        return super().joins_continuously if self.continuous_join is None else self.continuous_join

    def decay_start(self, num_warmup_updates: int) -> int:
        return self.num_train_steps - self.decay_steps if self.decay_steps else super().decay_start(num_warmup_updates)

    def identity(self) -> dict[str, Any]:
        # None for False: the same identity as of runs that began before this setting existed.
        return {**super().identity(), "no_next_sentence": self.no_next_sentence or None}


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(TrainingConfig):
    """Fine-tuning on a task, with BERT's Adam."""

    learning_rate: float = with_default(TrainingConfig, "learning_rate", 5e-5)
    train_batch_size: int = with_default(TrainingConfig, "train_batch_size", 8)
    adam_bias_correction: bool = with_default(TrainingConfig, "adam_bias_correction", True)
    save_checkpoint_steps: int = with_default(TrainingConfig, "save_checkpoint_steps", 1000)
    num_train_epochs: float = setting(
        3.0, "Passes over the training file; may be fractional.", above=0, at_most=10_000.0, is_fixed=True
    )
    warmup_proportion: float = setting(
        0.1, "Share of the updates in which the rate rises.", at_least=0, below=1, is_fixed=True
    )

    def num_updates(self, num_rows: int) -> int:
        """The updates of all epochs. Raises `UserError` if the rows do not fill a single update."""
        # Thanks to the 1e-9, 100 rows x 0.29 epochs are 29 rows, not 28.999... as in floating point.
        updates = int(num_rows * self.num_train_epochs / self.global_batch_size + 1e-9)
        if updates < 1:
            raise UserError(
                f"{num_rows} rows x {self.num_train_epochs:g} epochs do not fill one update of "
                f"{self.global_batch_size} rows (train_batch_size x num_accumulation_steps x ranks): make it smaller, "
                "or num_train_epochs larger"
            )
        return updates

    def num_warmup_updates(self, num_rows: int) -> int:
        return int(self.num_updates(num_rows) * self.warmup_proportion)

    def identity(self) -> dict[str, Any]:
        # None for False: the same identity as of runs that began before this setting existed.
        return {**super().identity(), "adam_bias_correction": self.adam_bias_correction or None}


def check_unpacked(train_batch_size: str | int, packing: bool) -> None:
    """Raises `UserError` for an automatic batch size with packing: the plan assumes one instance per row."""
    if packing and train_batch_size == AUTO:
        raise UserError(f"the batch size {AUTO} and packing do not go together: give it as a number, or do not pack")


def compute_dtype(precision: str) -> str:
    """The type of the matmuls, or of the all-reduced gradients; everything else stays float32."""
    return {"none": "float32", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]
