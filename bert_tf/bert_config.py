"""The shape of a BERT model: Google's ``bert_config.json``, checked, and the sizes that were published."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

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
GOOGLE_VOCAB_SIZE, GOOGLE_CASED_VOCAB_SIZE = 30_522, 28_996  # of the English models
TENSOR_CORE_UNIT = 8  # of which tensor cores want a matmul's dimensions to be multiples
# "gelu" is the tanh approximation, which Google's and NVIDIA's code computes under that name;
# "gelu_exact" is the erf form, which Hugging Face calls "gelu".
ACTIVATIONS = ("gelu", "gelu_exact")
_EPSILON = "layer_norm_eps"
# What a field must be: as the end of "it must be ...", and as a condition.
_Rule = tuple[str, Callable[[Any], bool]]


def _count(most: int) -> _Rule:
    return f"a whole number >= 1, at most {most}", lambda value: type(value) is int and 1 <= value <= most


_COUNT = _count(1 << 24)
# Dropout (`model.randomness`) rounds rates to multiples of 2^-16, and 1 would keep nothing.
_RATE: _Rule = ("a number in [0, 0.999]", lambda value: type(value) in (int, float) and 0 <= value <= 0.999)
_POSITIVE: _Rule = ("a number in (0, 1]", lambda value: type(value) in (int, float) and 0 < value <= 1)
# The rules of fields; those that are missing here are counts, by `_COUNT`.
_RULES: dict[str, _Rule] = {
    "num_hidden_layers": _count(1 << 10),  # millions would be built for hours before any weights are found missing
    "hidden_act": (f"one of {', '.join(ACTIVATIONS)}", lambda value: value in ACTIVATIONS),
    "hidden_dropout_prob": _RATE,
    "attention_probs_dropout_prob": _RATE,
    **dict.fromkeys(("initializer_range", _EPSILON), _POSITIVE),
}


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Shape of a BERT encoder, with the field names of Google's ``bert_config.json``.

    layer_norm_eps is a field of Hugging Face's files: Google's code has the constant 1e-12. A model with one token
    type (type_vocab_size=1) uses it for both texts of a pair.
    """

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
    layer_norm_eps: float = 1e-12

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            rule, allows = _RULES.get(name, _COUNT)
            if not allows(value):
                raise UserError(f"{name}={value!r:.40} in the model's configuration: must be {rule}")
        if self.hidden_size % self.num_attention_heads:
            raise UserError(
                f"hidden_size={self.hidden_size} is not a multiple of "
                f"num_attention_heads={self.num_attention_heads}: all heads must have the same size"
            )

    def with_dropout(self, rate: float) -> BertConfig:
        """The same model with `rate` as both dropout rates."""
        return dataclasses.replace(self, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)

    def check_length(self, max_seq_length: int) -> None:
        """Raises `UserError` if the model has fewer positions than `max_seq_length`."""
        if max_seq_length > self.max_position_embeddings:
            raise UserError(
                f"--max_seq_length={max_seq_length} is more than the model's max_position_embeddings="
                f"{self.max_position_embeddings}"
            )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word-embedding table in the model."""
        return -(-self.vocab_size // TENSOR_CORE_UNIT) * TENSOR_CORE_UNIT

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def preset(cls, name: str, vocab_size: int) -> BertConfig:
        """One of Google's published sizes, with a vocabulary of `vocab_size` tokens."""
        num_layers, hidden_size = PRESETS[name]
        return cls(
            vocab_size=vocab_size,
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=hidden_size // 64,
            intermediate_size=4 * hidden_size,
        )

    @classmethod
    def from_dict(cls, values: Any, source: str = "bert_config") -> BertConfig:
        """Requires the fields of Google's files, and ignores those that do not affect the model.

        Raises: UserError, which begins with the `source` of the values.
        """
        if not isinstance(values, Mapping):  # from a file that anyone may have written
            raise UserError(f"{source}: must be a JSON object with the model's sizes, not {str(values)[:40]!r}")
        # Some of Google's files have further fields, which have no effect on BERT.
        sizes = {name: values[name] for name in values if not name.startswith("pooler_") and name != "directionality"}
        field_names = {field.name for field in dataclasses.fields(cls)}
        unknown, missing = sorted(set(sizes) - field_names), sorted(field_names - set(sizes) - {_EPSILON})
        if unknown or missing:
            fault = f"unknown field(s) {', '.join(unknown)}" if unknown else f"{', '.join(missing)} missing"
            raise UserError(f"{source}: {fault}; a bert_config.json holds {', '.join(sorted(field_names))}")
        try:
            return cls(**sizes)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None

    @classmethod
    def from_json_file(cls, path: str | Path) -> BertConfig:
        """Reads Google's ``bert_config.json``; raises `UserError` naming the file."""
        return cls.from_dict(read_json_object(Path(path), "name a model's bert_config.json"), str(path))

    def to_dict(self) -> dict[str, Any]:
        """The fields of Google's files; layer_norm_eps only where it differs from Google's."""
        values = dataclasses.asdict(self)
        return {name: value for name, value in values.items() if (name, value) != (_EPSILON, type(self).layer_norm_eps)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"
