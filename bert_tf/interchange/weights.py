"""What every kind of stored weights is read as."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.config import BertConfig
from bert_tf.run.checkpoint import StoredWeights

# As NumPy calls them, and as safetensors does.
_FLOATS = "float64 float32 float16 bfloat16 F64 F32 F16 BF16".split()


@dataclasses.dataclass(frozen=True)
class Weights(StoredWeights):
    """Stored weights of a model, with what lies beside them.

    Names and layouts are our model's, which are those of Google's TF1 checkpoints: kernels [in, out], heads
    ``cls/predictions/...``, ``cls/seq_relationship/...``, ``cls/squad/...``, and ``output_weights`` and ``output_bias``
    for a classifier.
    """

    folder: Path
    config: BertConfig | None  # None: no configuration lies beside the weights
    config_file: Path  # where it lies, or would
    vocab_file: Path | None
    do_lower_case: bool | None  # None: not known
    warnings: tuple[str, ...] = ()  # damage beside them; in what the model they were trained in differs from ours


def check_floats(dtype: str, source: str, name: str) -> None:
    """Raises `UserError` where the variable `name` holds no floats: of quantised numbers the scale would be missing."""
    if dtype not in _FLOATS:
        raise UserError(
            f"{source}: {name} holds {dtype}, but weights are floats of 16 to 64 bits; name the model as it was before "
            "it was quantised"
        )
