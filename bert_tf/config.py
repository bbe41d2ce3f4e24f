"""What a model is (`BertConfig`) and what a training run is (`PretrainingConfig`, `FinetuningConfig`).

All are frozen and checked once, when they are made; the code that gets them need not check them again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object

# layers, hidden size; heads are hidden/64 and the feed-forward part is 4 x hidden, as in all of
# Google's releases. medium, small, mini and tiny are its miniatures (arXiv 1908.08962).
PRESETS: dict[str, tuple] = {
    "large": (24, 1024),
    "base": (12, 768),
    "medium": (8, 512),
    "small": (4, 512),
    "mini": (4, 256),
    "tiny": (2, 128),
}
# "gelu" is the tanh form, which Google's and NVIDIA's code computes under that name;
# "gelu_exact" is the erf form, which Hugging Face calls "gelu".
ACTIVATIONS = ("gelu", "gelu_exact")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
OPTIMIZERS = ("lamb", "adamw", "lars")
XLA_SCOPES = ("step", "blocks", "off")
COMPRESSIONS = ("none", "fp16")
# Far beyond what anybody trains with. Without these limits a typing error begins a run that never ends.
MAX_RANKS, MAX_GLOBAL_BATCH = 16384, 1 << 20
MAX_LEARNING_RATE, MAX_EPOCHS = 10.0, 10_000.0
MAX_SEED = (1 << 64) - 1  # NumPy's and our generators take 64 bits


def check_counts(config: Any, *names: str) -> None:
    """Raises `UserError` where one of these fields is under 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1")


def check_at_most(config: Any, **limits: int) -> None:
    """Raises `UserError` where a field or property exceeds its limit."""
    for name, limit in limits.items():
        if getattr(config, name) > limit:
            raise UserError(f"{name}={getattr(config, name)}: must be at most {limit}")


def check_choices(config: Any, **allowed: tuple[str, ...]) -> None:
    """Raises `UserError` where the value of a field is not among the allowed ones."""
    for name, choices in allowed.items():
        if getattr(config, name) not in choices:
            raise UserError(f"{name}={getattr(config, name)!r}: must be one of {', '.join(choices)}")


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape of a BERT encoder, with the field names of Google's ``bert_config.json``."""

    vocab_size: int
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 2 if field.name == "type_vocab_size" else 1  # an instance has two segments
            if field.type == "int" and not (type(value) is int and value >= least):
                raise UserError(
                    f"{field.name}={value!r} in the model's configuration: must be a whole number >= {least}"
                )
            if field.type == "float" and type(value) not in (int, float):
                raise UserError(f"{field.name}={value!r} in the model's configuration: must be a number")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}: all heads are of one size"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
                raise UserError(f"{name}={rate!r}: a dropout rate must lie in [0, 1)")
        if not isinstance(self.initializer_range, (int, float)) or not 0 < self.initializer_range <= 1:
            raise UserError(
                f"initializer_range={self.initializer_range!r}: the deviation of new weights must lie in (0, 1]"
            )
        check_choices(self, hidden_act=ACTIVATIONS)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table inside the model: a multiple of 8, which tensor cores want."""
        return -(-self.vocab_size // 8) * 8

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def preset(cls, name: str, vocab_size: int) -> BertConfig:
        """One of Google's published sizes over a vocabulary of `vocab_size` pieces."""
        if name not in PRESETS:
            raise UserError(f"bert_model={name!r}: must be one of {', '.join(PRESETS)}")
        num_layers, hidden_size = PRESETS[name]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 64,
            intermediate_size=4 * hidden_size,
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "bert_config") -> BertConfig:
        """Takes the fields of Google's files, all of them; others are accepted where they cannot change the model."""
        known = {field.name for field in dataclasses.fields(cls)}
        # Present in some of Google's files (pooler_*, directionality) and without effect on BERT.
        harmless = [key for key in values if key.startswith("pooler_") or key == "directionality"]
        unknown = sorted(set(values) - known - set(harmless))
        if unknown:
            raise UserError(f"{source}: unknown field(s) {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        missing = sorted(known - set(values))
        if missing:
            raise UserError(f"{source}: {', '.join(missing)} missing; a bert_config.json holds all the model's sizes")
        return cls(**{key: values[key] for key in values if key in known})

    @classmethod
    def from_json_file(cls, path: str | Path) -> BertConfig:
        """Reads Google's ``bert_config.json``; raises `UserError` naming the file."""
        values = read_json_object(Path(path), "name a model's bert_config.json")
        try:
            return cls.from_dict(values, str(path))
        except UserError as error:
            raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"


class BatchSplit(NamedTuple):
    """How the rows of an update are divided: micro-batch x accumulation x ranks, and which rank this is."""

    micro_batch_size: int
    num_accumulation_steps: int = 1
    num_ranks: int = 1
    rank: int = 0

    @property
    def rows_per_rank(self) -> int:
        return self.micro_batch_size * self.num_accumulation_steps

    @property
    def global_batch_size(self) -> int:
        return self.rows_per_rank * self.num_ranks

    def with_micro_batch(self, size: int) -> BatchSplit:
        """The same rows in micro-batches of `size`, which divides them."""
        return self._replace(micro_batch_size=size, num_accumulation_steps=self.rows_per_rank // size)


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What pre-training and fine-tuning have in common. Batch sizes and the learning rate are per rank, as typed."""

    learning_rate: float
    train_batch_size: int  # micro-batch of one rank
    num_accumulation_steps: int
    num_ranks: int
    precision: str = "fp32"
    xla_scope: str = "off"
    recompute: bool = False  # layers are computed again in the backward pass, not kept
    may_split_more: bool = False  # the first updates halve a micro-batch that does not fit
    seed: int = 12345
    save_checkpoint_steps: int = 100
    display_loss_steps: int = 10
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        check_counts(
            self,
            "train_batch_size",
            "num_accumulation_steps",
            "num_ranks",
            "save_checkpoint_steps",
            "display_loss_steps",
            "keep_checkpoints",
        )
        check_at_most(self, num_ranks=MAX_RANKS, global_batch_size=MAX_GLOBAL_BATCH, seed=MAX_SEED)
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:  # written so that NaN is refused, too
            raise UserError(f"learning_rate={self.learning_rate}: must be positive and at most {MAX_LEARNING_RATE:g}")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: must not be negative")
        check_choices(self, precision=PRECISIONS, xla_scope=XLA_SCOPES)

    @property
    def global_batch_size(self) -> int:
        """Instances in one update: micro-batch x accumulation x ranks, always."""
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def effective_learning_rate(self) -> float:
        """The peak rate really used: the flag is per rank (as in NVIDIA's recipe), in fine-tuning too."""
        return self.learning_rate * self.num_ranks

    def split(self, rank: int = 0) -> BatchSplit:
        """How one rank reads its rows."""
        return BatchSplit(self.train_batch_size, self.num_accumulation_steps, self.num_ranks, rank)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(TrainingConfig):
    """One pre-training phase."""

    # These three must be given: 0 is refused. (A base with defaults allows no field without one.)
    num_train_steps: int = 0  # updates in the whole phase
    max_seq_length: int = 0
    max_predictions_per_seq: int = 0
    eval_batch_size: int = 8
    optimizer_type: str = "lamb"
    lamb_adapt_excluded: bool = True  # biases and LayerNorm parameters have a trust ratio
    adam_bias_correction: bool = False
    # Whether the rate goes on without a step where the warm-up ends; None: as is usual for the optimizer.
    continuous_join: bool | None = None
    packing: bool = False  # several short instances share a row
    allreduce_compression: str = "none"  # type in which the ranks' gradients travel
    warmup_steps: int = 0
    max_eval_steps: int = 0  # 0: the whole test split

    def __post_init__(self) -> None:
        check_counts(self, "num_train_steps", "max_seq_length", "max_predictions_per_seq", "eval_batch_size")
        super().__post_init__()
        for name in ("warmup_steps", "max_eval_steps"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: must not be negative")
        if self.warmup_steps > self.num_train_steps:
            raise UserError(
                f"warmup_steps={self.warmup_steps} is more than num_train_steps={self.num_train_steps}: "
                "the learning rate would never come down; warm up for less or train for longer"
            )
        check_choices(self, optimizer_type=OPTIMIZERS, allreduce_compression=COMPRESSIONS)
        for name, owner, default in (("lamb_adapt_excluded", "lamb", True), ("adam_bias_correction", "adamw", False)):
            if self.optimizer_type != owner and getattr(self, name) != default:
                raise UserError(
                    f"{name}={getattr(self, name)} has no effect with "
                    f"optimizer_type={self.optimizer_type}; it belongs to {owner}"
                )
        if self.max_predictions_per_seq > self.max_seq_length:
            raise UserError(
                f"max_predictions_per_seq={self.max_predictions_per_seq} is more than "
                f"max_seq_length={self.max_seq_length}"
            )

    @property
    def joins_continuously(self) -> bool:
        """Whether the rate goes on without a step where the warm-up ends."""
        return joins_continuously(self.optimizer_type) if self.continuous_join is None else self.continuous_join

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """What the optimizer's class takes beside its schedule."""
        return {
            "lamb": {"adapt_excluded": self.lamb_adapt_excluded},
            "adamw": {"bias_correction": self.adam_bias_correction},
        }.get(self.optimizer_type, {})

    def identity(self) -> dict[str, Any]:
        """The settings that make a run this run and no other.

        How the global batch is split, how it is compiled and how often it is logged or saved may
        change when a run is resumed, because the update does not depend on them.
        """
        return {
            "num_train_steps": self.num_train_steps,
            "warmup_steps": self.warmup_steps,
            "effective_learning_rate": self.effective_learning_rate,
            "global_batch_size": self.global_batch_size,
            "max_seq_length": self.max_seq_length,
            "max_predictions_per_seq": self.max_predictions_per_seq,
            "optimizer_type": self.optimizer_type,
            "lamb_adapt_excluded": self.lamb_adapt_excluded,
            "adam_bias_correction": self.adam_bias_correction,
            "continuous_join": self.joins_continuously,
            "precision": self.precision,
            "allreduce_compression": self.allreduce_compression,
            "packing": self.packing,  # dropout masks follow the row's number
            "seed": self.seed,
        }

    @property
    def scales_loss(self) -> bool:
        """Whether float16 holds gradients anywhere, whose small values need a loss scale."""
        return "fp16" in (self.precision, self.allreduce_compression)


def joins_continuously(optimizer_type: str) -> bool:
    """Whether the rate of this optimizer usually goes on without a step where the warm-up ends.

    Adam's does in NVIDIA's code. LAMB's drops in the published recipe; LARS is there to be compared with LAMB.
    """
    return optimizer_type == "adamw"


def compute_dtype(precision: str) -> str:
    """The type in which matmuls are computed, or gradients travel; everything else stays float32."""
    return {"none": "float32", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(TrainingConfig):
    """How a task is trained, by BERT's Adam."""

    num_train_epochs: float = 0.0  # must be given: 0 is refused
    warmup_proportion: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.num_train_epochs <= MAX_EPOCHS:
            raise UserError(f"num_train_epochs={self.num_train_epochs}: must be positive and at most {MAX_EPOCHS:g}")
        if not 0 <= self.warmup_proportion < 1:
            raise UserError(f"warmup_proportion={self.warmup_proportion}: must lie in [0, 1)")

    def num_updates(self, num_rows: int) -> int:
        """Updates in all epochs. Raises `UserError` where the rows do not fill one."""
        # A hair more, so that 100 rows * 0.29 epochs, which floating point makes 28.999..., are 29.
        updates = int(num_rows * self.num_train_epochs / self.global_batch_size + 1e-9)
        if updates < 1:
            raise UserError(
                f"{num_rows} rows x {self.num_train_epochs:g} epochs do not fill one update of "
                f"{self.global_batch_size} rows (train_batch_size {self.train_batch_size} x num_accumulation_steps "
                f"{self.num_accumulation_steps} x {self.num_ranks} rank(s)); make one of these smaller or "
                "num_train_epochs larger"
            )
        return updates

    def identity(self) -> dict[str, Any]:
        """The settings that make a run this run; the others may change when it is resumed."""
        return {
            "num_train_epochs": self.num_train_epochs,
            "warmup_proportion": self.warmup_proportion,
            "effective_learning_rate": self.effective_learning_rate,
            "global_batch_size": self.global_batch_size,
            "continuous_join": joins_continuously("adamw"),
            "precision": self.precision,
            "seed": self.seed,
        }
