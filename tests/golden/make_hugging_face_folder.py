"""Makes tests/golden/hugging_face/ and hugging_face_one_type/: tiny models as `transformers` writes them.

    /path/to/environment/bin/python tests/golden/make_hugging_face_folder.py    # torch, transformers, safetensors

config.json, model.safetensors of a BertForPreTraining; outputs.npz: input_ids, input_mask, segment_ids,
hidden_states [L + 1, B, S, H], pooled, mlm_logits [B, S, V], nsp_logits
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

FOLDER = Path(__file__).resolve().parent
SIZES = dict(
    vocab_size=23,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=16,
    initializer_range=0.3,
)
# The second is far enough from BERT's 1e-12 to show.
MODELS = {"hugging_face": {}, "hugging_face_one_type": {"type_vocab_size": 1, "layer_norm_eps": 1e-2}}


def make_folder(folder: Path, config: BertConfig) -> None:
    torch.manual_seed(5)
    model = BertForPreTraining(config).eval()
    for parameter in model.parameters():  # also biases and LayerNorm's, which start as 0 and 1; half keeps its value
        parameter.data = (parameter.data + 0.1 * torch.randn_like(parameter)).half().float()
    model.tie_weights()
    rng = np.random.default_rng(6)
    mask = (np.arange(10) < np.array([[10], [6], [3]])).astype(np.int64)
    inputs = {
        "input_ids": rng.integers(1, config.vocab_size, mask.shape) * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(10) > 3) * mask,
    }
    with torch.no_grad():
        outputs = model(
            input_ids=torch.tensor(inputs["input_ids"]),
            attention_mask=torch.tensor(mask),
            token_type_ids=torch.tensor(inputs["segment_ids"] % config.type_vocab_size),
            output_hidden_states=True,
        )
        pooled = model.bert.pooler(outputs.hidden_states[-1])
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    np.savez_compressed(
        folder / "outputs.npz",
        **{name: array.astype(np.int32) for name, array in inputs.items()},
        hidden_states=torch.stack(outputs.hidden_states).numpy(),
        pooled=pooled.numpy(),
        mlm_logits=outputs.prediction_logits.numpy(),
        nsp_logits=outputs.seq_relationship_logits.numpy(),
    )


if __name__ == "__main__":
    for name, changes in MODELS.items():
        make_folder(FOLDER / name, BertConfig(**SIZES, **changes))
