"""Settings of a model (`BertConfig`) and of a training run (`PretrainingConfig`, `FinetuningConfig`).

All are frozen and validated when they are created, so code that receives them need not check them again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object

# (layers, hidden size). There are hidden/64 heads and the feed-forward size is 4 x hidden, as in all
# of Google's releases. medium, small, mini and tiny are from arXiv 1908.08962.
PRESETS: dict[str, tuple] = {
    "large": (24, 1024),
    "base": (12, 768),
    "medium": (8, 512),
    "small": (4, 512),
    "mini": (4, 256),
    "tiny": (2, 128),
}
GOOGLE_VOCAB_SIZE = 30_522  # of the uncased English models
# "gelu" is the tanh approximation, which Google's and NVIDIA's code computes under that name;
# "gelu_exact" is the erf form, which Hugging Face calls "gelu".
ACTIVATIONS = ("gelu", "gelu_exact")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
OPTIMIZERS = ("lamb", "adamw", "lars")
XLA_SCOPES = ("step", "blocks", "off")
COMPRESSIONS = ("none", "fp16")
AUTO = "auto"  # --train_batch_size: the largest micro-batch that fits
# Far beyond what anyone trains with, so that a typing error does not start a run that never ends.
MAX_RANKS, MAX_GLOBAL_BATCH = 16384, 1 << 20
MAX_LEARNING_RATE, MAX_EPOCHS, MAX_HOURS = 100.0, 10_000.0, 100_000.0
# Limits of a model: ten times the largest published BERT, and more layers, positions and so on than any model has.
MAX_PARAMETERS, MAX_SIZE = 40_000_000_000, 1 << 24
MAX_LAYERS = 1 << 10
MAX_SEED = (1 << 64) - 1  # NumPy's random generators and ours take 64 bits


def check_counts(config: Any, *names: str) -> None:
    """Raises `UserError` if one of these fields is less than 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise UserError(f"{name}={getattr(config, name)}: must be at least 1")


def check_at_most(config: Any, **limits: int) -> None:
    """Raises `UserError` if a field or property exceeds its limit."""
    for name, limit in limits.items():
        if getattr(config, name) > limit:
            raise UserError(f"{name}={getattr(config, name)}: must be at most {limit}")


def check_choices(config: Any, **allowed: tuple[str, ...]) -> None:
    """Raises `UserError` if the value of a field is not among the allowed ones."""
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
            most = MAX_LAYERS if field.name == "num_hidden_layers" else MAX_SIZE
            if field.type == "int" and not (type(value) is int and least <= value <= most):
                raise UserError(
                    f"{field.name}={value!r:.40} in the model's configuration: must be a whole number >= {least}, at "
                    f"most {most}"
                )
            if field.type == "float" and type(value) not in (int, float):
                raise UserError(f"{field.name}={value!r:.40} in the model's configuration: must be a number")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}: all heads must have the same size"
            )
        if self.num_encoder_weights > MAX_PARAMETERS:
            raise UserError(
                f"the model's configuration has {self.num_encoder_weights:.1e} weights, more than "
                f"{MAX_PARAMETERS:.0e}: make vocab_size, hidden_size, num_hidden_layers, intermediate_size or "
                "max_position_embeddings smaller"
            )
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            rate = getattr(self, name)
            if not 0 <= rate < 1:
                raise UserError(f"{name}={rate!r}: a dropout rate must lie in [0, 1)")
        if not 0 < self.initializer_range <= 1:
            raise UserError(
                f"initializer_range={self.initializer_range}: the weights' standard deviation must lie in (0, 1]"
            )
        check_choices(self, hidden_act=ACTIVATIONS)

    @property
    def num_encoder_weights(self) -> int:
        """The number of weights in the embeddings and in the layers' matrices."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        in_layer = 4 * self.hidden_size + 2 * self.intermediate_size
        return self.hidden_size * (rows + self.num_hidden_layers * in_layer)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word-embedding table in the model: a multiple of 8, which tensor cores need."""
        return -(-self.vocab_size // 8) * 8

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def preset(cls, name: str, vocab_size: int) -> BertConfig:
        """One of Google's published sizes, with a vocabulary of `vocab_size` tokens."""
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
        """Requires exactly the fields of Google's files, and ignores those that do not affect the model."""
        if not isinstance(values, Mapping):  # from a file that anyone may have written
            raise UserError(f"{source}: must be a JSON object with the model's sizes, not {str(values)[:40]!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        # Some of Google's files have these fields; they have no effect on BERT.
        ignored = [key for key in values if key.startswith("pooler_") or key == "directionality"]
        unknown = sorted(set(values) - known - set(ignored))
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
    """How the global batch is split (micro-batch x gradient accumulation x ranks), and which rank this is."""

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
        """The same rows in micro-batches of `size`, which must divide their number."""
        return self._replace(micro_batch_size=size, num_accumulation_steps=self.rows_per_rank // size)


_Config = TypeVar("_Config", bound="TrainingConfig")


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Settings shared by pre-training and fine-tuning. Batch size and learning rate are per rank, like the flags."""

    learning_rate: float
    train_batch_size: int  # micro-batch of one rank
    num_accumulation_steps: int
    num_ranks: int
    precision: str = "fp32"
    xla_scope: str = "off"
    recompute: bool = False  # activation checkpointing: the backward pass recomputes each layer
    may_split_more: bool = False  # whether the first updates may halve a micro-batch that does not fit into memory
    adam_bias_correction: bool = False
    seed: int = 12345
    save_checkpoint_steps: int = 100
    display_loss_steps: int = 10
    keep_checkpoints: int = 3
    max_hours: float | None = None  # stop this long after the start of the program; None: only at the end

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
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:  # refuses NaN, too
            raise UserError(f"learning_rate={self.learning_rate}: must be positive and at most {MAX_LEARNING_RATE:g}")
        if self.max_hours is not None and not 0 < self.max_hours <= MAX_HOURS:
            raise UserError(f"max_hours={self.max_hours}: must be positive and at most {MAX_HOURS:g}")
        if self.seed < 0:
            raise UserError(f"seed={self.seed}: must not be negative")
        check_choices(self, precision=PRECISIONS, xla_scope=XLA_SCOPES)

    @classmethod
    def from_flags(cls: type[_Config], flags: Mapping[str, Any], split: BatchSplit, **computed: Any) -> _Config:
        """The settings that a program's flags give by name, and those that are `computed` from them."""
        settings = {field.name: flags[field.name] for field in dataclasses.fields(cls) if field.name in flags}
        settings.update(
            train_batch_size=split.micro_batch_size,
            num_accumulation_steps=split.num_accumulation_steps,
            num_ranks=split.num_ranks,
            may_split_more=flags["train_batch_size"] == AUTO,
            **computed,
        )
        return cls(**settings)

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

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class PretrainingConfig(TrainingConfig):
    """One pre-training phase."""

    # These three must be given: 0 is refused. (After a base class with defaults, dataclasses require defaults.)
    num_train_steps: int = 0  # updates in the whole phase
    max_seq_length: int = 0
    max_predictions_per_seq: int = 0
    eval_batch_size: int = 8
    optimizer_type: str = "lamb"
    lamb_adapt_excluded: bool = True  # biases and LayerNorm parameters also have a trust ratio
    # Whether the learning rate is continuous at the end of the warm-up; None: what is usual with the optimizer.
    continuous_join: bool | None = None
    packing: bool = False  # several short instances share a row
    allreduce_compression: str = "none"  # type in which gradients are all-reduced; "none" is float32
    warmup_steps: int = 0
    max_eval_steps: int = 0  # 0: the whole test split

    def __post_init__(self) -> None:
        check_counts(self, "num_train_steps", "max_seq_length", "max_predictions_per_seq", "eval_batch_size")
        super().__post_init__()
        check_at_most(self, eval_batch_size=MAX_GLOBAL_BATCH)
        for name in ("warmup_steps", "max_eval_steps"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}: must not be negative")
        if self.warmup_steps > self.num_train_steps:
            raise UserError(
                f"warmup_steps={self.warmup_steps} is more than num_train_steps={self.num_train_steps}: "
                "the learning rate would never decay; warm up for fewer updates or train for more"
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
    def optimizer_options(self) -> dict[str, Any]:
        """Arguments of the optimizer's class, besides its schedule."""
        return {
            "lamb": {"adapt_excluded": self.lamb_adapt_excluded},
            "adamw": {"bias_correction": self.adam_bias_correction},
        }.get(self.optimizer_type, {})

    def identity(self) -> dict[str, Any]:
        """The settings that must not change when a run is resumed.

        The split of the global batch, compilation, logging and saving may change: updates do not
        depend on them.
        """
        # Packing is among them, because dropout masks depend on the row's number.
        names = (
            "num_train_steps warmup_steps effective_learning_rate global_batch_size max_seq_length "
            "max_predictions_per_seq optimizer_type lamb_adapt_excluded adam_bias_correction precision "
            "allreduce_compression packing seed"
        )
        settings = {name: getattr(self, name) for name in names.split()}
        joins = joins_continuously(self.optimizer_type) if self.continuous_join is None else self.continuous_join
        return {**settings, "continuous_join": joins}


def joins_continuously(optimizer_type: str) -> bool:
    """Whether this optimizer's learning rate is usually continuous at the end of the warm-up.

    Adam's is, in NVIDIA's code. LAMB's drops there, in the published recipe; LARS follows LAMB, for comparison.
    """
    return optimizer_type == "adamw"


def compute_dtype(precision: str) -> str:
    """The type of the matmuls, or of the all-reduced gradients; everything else stays float32."""
    return {"none": "float32", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}[precision]


@dataclasses.dataclass(frozen=True)
class FinetuningConfig(TrainingConfig):
    """Fine-tuning on a task, with BERT's Adam."""

    num_train_epochs: float = 0.0  # must be given: 0 is refused
    warmup_proportion: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.num_train_epochs <= MAX_EPOCHS:
            raise UserError(f"num_train_epochs={self.num_train_epochs}: must be positive and at most {MAX_EPOCHS:g}")
        if not 0 <= self.warmup_proportion < 1:
            raise UserError(f"warmup_proportion={self.warmup_proportion}: must lie in [0, 1)")

    def num_updates(self, num_rows: int) -> int:
        """The number of updates in all epochs. Raises `UserError` if the rows do not fill a single update."""
        # Thanks to the 1e-9, 100 rows x 0.29 epochs are 29 rows, not 28.999... as in floating point.
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
        """The settings that must not change when a run is resumed."""
        return {
            "num_train_epochs": self.num_train_epochs,
            "warmup_proportion": self.warmup_proportion,
            "effective_learning_rate": self.effective_learning_rate,
            "global_batch_size": self.global_batch_size,
            "continuous_join": joins_continuously("adamw"),
            # None, because that is what runs have that began before there was a choice.
            "adam_bias_correction": self.adam_bias_correction or None,
            "precision": self.precision,
            "seed": self.seed,
        }
