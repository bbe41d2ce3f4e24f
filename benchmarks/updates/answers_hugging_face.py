"""Answers to a file's questions by Hugging Face's BERT on PyTorch; settings: precision.

Its fast tokenizer, its default attention, weights in the precision's type, batches as they come, padded to their
longest row; of the logits the best admissible span and its text, by offsets: less than our decoding does, which lists
the n best.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import torch
import transformers
from protocol import read_questions, serve, span_head


def make_answers(settings: dict[str, Any]) -> Callable[[], list[str]]:
    torch.set_num_threads(settings["num_threads"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    model = transformers.BertForQuestionAnswering.from_pretrained(settings["model"]).eval()
    model.qa_outputs.weight.data = torch.from_numpy(span_head(model.config.hidden_size))
    model.qa_outputs.bias.data.zero_()
    model.to({"fp32": torch.float32, "bf16": torch.bfloat16}[settings["precision"]])
    questions, batch_size = read_questions(settings), settings["batch_size"]

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


if __name__ == "__main__":
    serve(make_answers, lambda: {"torch": torch.__version__, "transformers": transformers.__version__})
