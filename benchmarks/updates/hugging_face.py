"""Hugging Face's BERT on PyTorch, with its fused AdamW; settings: precision, fp32 or bf16 by autocast.

The vocabulary's logits are computed at the masked positions only, as everybody's here.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable

import torch
import transformers
from protocol import LEARNING_RATE, random_batch, serve


def make_update(settings: dict[str, Any]) -> Callable[[], float]:
    torch.set_num_threads(settings["num_threads"])
    config = dict(settings["bert_config"], hidden_act="gelu_pytorch_tanh")
    model = transformers.BertForPreTraining(transformers.BertConfig(**config)).train()
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01, fused=True)
    batch = {name: torch.from_numpy(values) for name, values in random_batch(settings).items()}
    cross_entropy = torch.nn.functional.cross_entropy
    num_micro_batches = len(batch["input_ids"])

    def loss_of(part: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = model.bert(
            input_ids=part["input_ids"], attention_mask=part["input_mask"], token_type_ids=part["segment_ids"]
        )
        hidden, places = outputs.last_hidden_state, part["masked_lm_positions"].long()
        masked = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        logits, nsp_logits = model.cls(masked, outputs.pooler_output)
        return cross_entropy(logits.flatten(0, 1).float(), part["masked_lm_ids"].flatten().long()) + cross_entropy(
            nsp_logits.float(), part["next_sentence_labels"][:, 0].long()
        )

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        for number in range(num_micro_batches):
            half = settings["precision"] == "bf16"
            with torch.autocast("cpu", torch.bfloat16) if half else contextlib.nullcontext():
                loss = loss_of({name: values[number] for name, values in batch.items()}) / num_micro_batches
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss)

    return update


if __name__ == "__main__":
    serve(make_update, lambda: {"torch": torch.__version__, "transformers": transformers.__version__})
