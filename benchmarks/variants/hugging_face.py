"""Hugging Face's BERT on PyTorch; settings: precision."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable

import numpy as np
import torch
import transformers

from benchmarks.variants.shared import LEARNING_RATE, random_batch, span_head


def update(settings: dict[str, Any]) -> Callable[[], float]:
    """An update on the CPU."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    run = make_update(settings, "cpu", dict(settings["bert_config"], hidden_act="gelu_pytorch_tanh"))
    return lambda: float(run())


def make_update(
    settings: dict[str, Any], device: str, bert_config: dict[str, Any], compiled: bool = False
) -> Callable[[], torch.Tensor]:
    """A function that makes an update with the fused AdamW and returns the last loss; bf16 and fp16 by autocast.

    The vocabulary's logits are computed at the masked positions only, as in all variants. `compiled`: the embeddings,
    each layer and the heads by torch.compile, which takes seconds, because layers share their code.
    """
    model = transformers.BertForPreTraining(transformers.BertConfig(**bert_config)).to(device).train()
    if compiled:
        for module in (model.bert.embeddings, *model.bert.encoder.layer, model.cls):
            module.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler(device, enabled=settings["precision"] == "fp16")
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings["precision"])
    batch = {name: torch.from_numpy(values).to(device) for name, values in random_batch(settings).items()}
    cross_entropy = torch.nn.functional.cross_entropy
    num_micro_batches = len(batch["input_ids"])

    def loss_of(part: dict[str, torch.Tensor]) -> torch.Tensor:
        outputs = model.bert(
            input_ids=part["input_ids"], attention_mask=part["input_mask"], token_type_ids=part["segment_ids"]
        )
        hidden, positions = outputs.last_hidden_state, part["masked_lm_positions"].long()
        masked = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
        logits, nsp_logits = model.cls(masked, outputs.pooler_output)
        return cross_entropy(logits.flatten(0, 1).float(), part["masked_lm_ids"].flatten().long()) + cross_entropy(
            nsp_logits.float(), part["next_sentence_labels"][:, 0].long()
        )

    def run() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        for number in range(num_micro_batches):
            with torch.autocast(device, half) if half else contextlib.nullcontext():
                loss = loss_of({name: values[number] for name, values in batch.items()}) / num_micro_batches
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return run


def answers(settings: dict[str, Any]) -> Callable[[], list[str]]:
    """Answers to a file's questions.

    Uses its fast tokenizer, its default attention, weights in the precision's type, and batches in the given order,
    padded to their longest row. Takes the best admissible span of the logits and its text, by offsets; our decoding
    does more, because it lists the n best.
    """
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    model = transformers.BertForQuestionAnswering.from_pretrained(settings["model"]).eval()
    model.qa_outputs.weight.data = torch.from_numpy(span_head(model.config.hidden_size))
    model.qa_outputs.bias.data.zero_()
    model.to({"fp32": torch.float32, "bf16": torch.bfloat16}[settings["precision"]])
    questions, batch_size = settings["questions"], settings["batch_size"]

    @torch.inference_mode()
    def answer() -> list[str]:
        texts = []
        for start in range(0, len(questions), batch_size):
            batch = questions[start : start + batch_size]
            encoded = tokenizer(
                [question for question, _ in batch],
                [context for _, context in batch],
                truncation="only_second",
                max_length=settings["max_seq_length"],
                padding="longest",
                return_offsets_mapping=True,
                return_tensors="pt",
            )
            offsets = encoded.pop("offset_mapping").numpy()
            outputs = model(**encoded)
            logits = zip(outputs.start_logits.float().numpy(), outputs.end_logits.float().numpy())
            for row, (starts, ends) in enumerate(logits):
                in_context = np.array([part == 1 for part in encoded.sequence_ids(row)])
                scores = np.where(in_context, starts, -1e9)[:, None] + np.where(in_context, ends, -1e9)
                scores = np.tril(np.triu(scores + 1e10), settings["max_answer_length"] - 1)
                first, last = np.unravel_index(scores.argmax(), scores.shape)
                texts.append(batch[row][1][offsets[row, first, 0] : offsets[row, last, 1]])
        return texts

    return answer
