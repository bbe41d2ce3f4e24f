"""What a model is (`BertConfig`) and what a training run is (`PretrainingConfig`).

Both are frozen and validated once, when they are made; everything below them may trust them.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def check_counts(config: Any, *names: str) -> None:
    """Raises `UserError` where one of these fields is under 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1")


def check_choices(config: Any, **allowed: tuple[str, ...]) -> None:
    """Raises `UserError` where a field has none of its allowed values."""
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
        counts = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "type_vocab_size",
        )
        for name in counts:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"{name}={value!r} in the model's configuration: must be a whole number >= 1")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}: every head takes an equal share"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
                raise UserError(f"{name}={rate!r}: a dropout rate must lie in [0, 1)")
        if not isinstance(self.initializer_range, (int, float)) or not 0 < self.initializer_range < 10:
            raise UserError(f"initializer_range={self.initializer_range!r}: must be a number above 0, and under 10")
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
        """Takes the fields we know; others are only accepted where they cannot change the model."""
        known = {field.name for field in dataclasses.fields(cls)}
        # Present in some of Google's files (pooler_*, directionality) and without effect on BERT.
        harmless = [key for key in values if key.startswith("pooler_") or key == "directionality"]
        unknown = sorted(set(values) - known - set(harmless))
        if unknown:
            raise UserError(f"{source}: unknown field(s) {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if "vocab_size" not in values:
            raise UserError(f"{source}: vocab_size is missing")
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


@dataclasses.dataclass(frozen=True)
class PretrainingConfig:
    """One pre-training phase. Batch sizes and the learning rate are per rank, as they are typed."""

    num_train_steps: int  # updates in the whole phase
    warmup_steps: int
    learning_rate: float
    train_batch_size: int  # micro-batch of one rank
    num_accumulation_steps: int
    num_ranks: int
    max_seq_length: int
    max_predictions_per_seq: int
    eval_batch_size: int = 8
    max_eval_steps: int = 0  # 0: the whole test split
    optimizer_type: str = "lamb"
    lamb_adapt_excluded: bool = True  # biases and LayerNorm parameters have a trust ratio
    adam_bias_correction: bool = False
    continuous_join: bool = False  # the rate does not drop where the warm-up ends
    packing: bool = False  # several short instances share a row
    precision: str = "fp32"
    xla_scope: str = "off"
    allreduce_compression: str = "none"  # type in which the ranks' gradients travel
    recompute: bool = False  # layers are computed again in the backward pass, not kept
    may_split_more: bool = False  # the first updates halve a micro-batch that does not fit
    seed: int = 12345
    save_checkpoint_steps: int = 100
    display_loss_steps: int = 10
    keep_checkpoints: int = 3

    def __post_init__(self) -> None:
        check_counts(
            self,
            "num_train_steps",
            "train_batch_size",
            "num_accumulation_steps",
            "num_ranks",
            "max_seq_length",
            "max_predictions_per_seq",
            "eval_batch_size",
            "save_checkpoint_steps",
            "display_loss_steps",
            "keep_checkpoints",
        )
        for name in ("warmup_steps", "max_eval_steps", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: must not be negative")
        if self.warmup_steps > self.num_train_steps:
            raise UserError(
                f"warmup_steps={self.warmup_steps} is more than num_train_steps={self.num_train_steps}: "
                "the learning rate would never come down; warm up for less or train for longer"
            )
        if not self.learning_rate > 0:
            raise UserError(f"learning_rate={self.learning_rate}: must be positive")
        check_choices(
            self,
            optimizer_type=OPTIMIZERS,
            precision=PRECISIONS,
            xla_scope=XLA_SCOPES,
            allreduce_compression=COMPRESSIONS,
        )
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
    def global_batch_size(self) -> int:
        """Instances in one update: micro-batch x accumulation x ranks, always."""
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def effective_learning_rate(self) -> float:
        """The peak rate really used: the flag is per rank (as in NVIDIA's recipe)."""
        return self.learning_rate * self.num_ranks

    @property
    def optimizer_options(self) -> dict[str, Any]:
        """What the optimizer's class takes beside its schedule."""
        return {
            "lamb": {"adapt_excluded": self.lamb_adapt_excluded},
            "adamw": {"bias_correction": self.adam_bias_correction},
        }.get(self.optimizer_type, {})

    def identity(self) -> dict[str, Any]:
        """The settings that make a run this run and no other.

        How the global batch is split, how it is compiled and how often it is shown or saved may
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
            "continuous_join": self.continuous_join,
            "precision": self.precision,
            "allreduce_compression": self.allreduce_compression,
            "packing": self.packing,  # dropout goes by the row
            "seed": self.seed,
        }

    @property
    def scales_loss(self) -> bool:
        """Whether float16 holds gradients anywhere, whose small values need a loss scale."""
        return "fp16" in (self.precision, self.allreduce_compression)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def compute_dtype(precision: str) -> str:
    """The type in which matmuls are computed, or gradients travel; everything else stays float32."""
    return {"none": "float32", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]


@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """How a task is trained. Batch sizes and the learning rate are per rank, as they are typed."""

    learning_rate: float
    num_train_epochs: float
    warmup_proportion: float
    train_batch_size: int  # micro-batch of one rank
    num_accumulation_steps: int
    num_ranks: int
    precision: str = "fp32"
    xla_scope: str = "off"
    recompute: bool = False  # layers are computed again in the backward pass, not kept
    may_split_more: bool = False  # the first updates halve a micro-batch that does not fit
    seed: int = 12345
    save_checkpoint_steps: int = 1000
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
        for name in ("learning_rate", "num_train_epochs"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name}={getattr(self, name)}: must be positive")
        if not 0 <= self.warmup_proportion < 1:
            raise UserError(f"warmup_proportion={self.warmup_proportion}: must lie in [0, 1)")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: must not be negative")
        check_choices(self, precision=PRECISIONS, xla_scope=XLA_SCOPES)

    @property
    def global_batch_size(self) -> int:
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def effective_learning_rate(self) -> float:
        """The peak rate really used: the flag is per rank, in fine-tuning too."""
        return self.learning_rate * self.num_ranks

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
            "precision": self.precision,
            "seed": self.seed,
        }
