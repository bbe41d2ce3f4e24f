"""The form in which all kinds of stored weights are read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.config import BertConfig
from bert_tf.run.checkpoint import StoredWeights
from bert_tf.text.tokenizer import StoredTokenizer

# NumPy's names, then those of safetensors.
_FLOATS = "float64 float32 float16 bfloat16 F64 F32 F16 BF16".split()


@dataclasses.dataclass(frozen=True)
class Weights(StoredWeights):
    """A model's stored weights, with the files beside them.

    Names and layouts are our model's, which are those of Google's TF1 checkpoints: kernels [in, out], heads
    ``cls/predictions/...``, ``cls/seq_relationship/...``, ``cls/squad/...``, and ``output_weights`` and ``output_bias``
    for a classifier.
    """

    folder: Path
    config: BertConfig | None  # None: there is no configuration beside the weights
    config_file: Path  # where it is, or should be
    tokenizer: StoredTokenizer
    warnings: tuple[str, ...] = ()  # damage; how the model that they were trained in differs from ours


def check_floats(dtype: str, source: str, name: str) -> None:
    """Raises `UserError` if the variable `name` is not of floats: the scale of quantised numbers would be missing."""
    if dtype not in _FLOATS:
        raise UserError(
            f"{source}: {name} holds {dtype}, but weights are floats of 16 to 64 bits; name the model as it was before "
            "it was quantised"
        )
