"""The form in which all kinds of stored weights are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.bert_config import BertConfig
from bert_tf.run.variables import StoredWeights
from bert_tf.text.tokenizer import StoredTokenizer

# NumPy's names, then those of safetensors.
_FLOATS = "float64 float32 float16 bfloat16 F64 F32 F16 BF16".split()


@dataclasses.dataclass(frozen=True)
class Weights(StoredWeights):
    """A model's stored weights, with the files beside them.

    Names and layouts are our model's, which are those of Google's TF1 checkpoints: kernels [in, out], heads
    ``cls/predictions/...``, ``cls/seq_relationship/...``, and those of `heads`.
    """

    folder: Path
    config: BertConfig | None  # None: there is no configuration beside the weights
    config_file: Path  # where it is, or should be
    tokenizer: StoredTokenizer
    warnings: tuple[str, ...] = ()  # damage; how the model that they were trained in differs from ours
    architectures: tuple[str, ...] = ()  # the classes of transformers that a Hugging Face folder says it is of


def read_float32(read: Callable[[], np.ndarray], dtype: str, source: str, name: str) -> np.ndarray:
    """The values of the variable `name` of `source` as float32; `dtype`: what they are stored as.

    Raises:
      UserError: they are no floats, such as quantised numbers, whose scale would be missing; or one is not finite.
    """
    if dtype not in _FLOATS:
        rule = "weights are floats of 16 to 64 bits; name the model as it was before it was quantised"
        raise UserError(f"{source}: {name} holds {dtype}, but {rule}")
    with np.errstate(over="ignore"):  # of float64
        values = read().astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        remedy = "name an earlier checkpoint, or fetch the weights again"
        raise UserError(f"{source}: {name} holds numbers that are not finite (NaN or infinite); {remedy}")
    return values
