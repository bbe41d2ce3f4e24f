"""The common form in which weights of all formats are read."""

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

    Names and layouts are our model's, which are those of Google's TF1 checkpoints: kernels [in, out], pre-training
    heads ``cls/predictions/...`` and ``cls/seq_relationship/...``, and the heads of `interchange.heads`.
    """

    folder: Path
    config: BertConfig | None  # None: there is no configuration beside the weights
    config_file: Path  # where the configuration is, or should be
    tokenizer: StoredTokenizer
    warnings: tuple[str, ...] = ()  # damage; how our model differs from the one that the weights were trained in
    architectures: tuple[str, ...] = ()  # the classes of transformers that a Hugging Face folder names as its own


def read_float32(read: Callable[[], np.ndarray], dtype: str, source: str, name: str) -> np.ndarray:
    """The values of the variable `name` of `source` as float32; `dtype`: the type in which they are stored.

    Raises:
      UserError: they are not floats (such as quantised numbers, whose scale would be missing), or one is not finite.
    """
    if dtype not in _FLOATS:
        raise UserError(
            f"{source}: {name} holds {dtype}, but weights are floats of 16 to 64 bits; name the model as it was before "
            "it was quantised"
        )
    with np.errstate(over="ignore"):  # float64 beyond float32's range, which becomes infinite and is refused
        values = read().astype(np.float32, copy=False)
    if not np.isfinite(values).all():
        raise UserError(
            f"{source}: {name} holds numbers that are not finite (NaN or infinite); name an earlier checkpoint, or "
            "fetch the weights again"
        )
    return values
