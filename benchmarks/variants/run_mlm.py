"""Pre-trains a BERT of given size with Hugging Face's Trainer, as transformers' example run_mlm.py sets it up.

The lines of the texts are tokenized with [CLS] and [SEP], concatenated and cut into blocks of one length; 15 % of the
tokens are masked anew whenever a block is read; all else is the Trainer's default: AdamW at 5e-5 without warm-up,
falling to 0, batches of 8. A program of its own, for a Python with torch, transformers and accelerate; the peer of
`budget`.
"""

from __future__ import annotations

import argparse
import itertools
import os
from pathlib import Path

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, required=True, help="folder of .txt files")
    parser.add_argument("--vocab_file", required=True)
    parser.add_argument("--do_lower_case", type=int, required=True)
    parser.add_argument("--strip_accents", type=int, required=True)
    parser.add_argument("--config", required=True, help="bert_config.json")
    parser.add_argument("--max_seq_length", type=int, required=True)
    options, trainer_flags = parser.parse_known_args()
    (settings,) = transformers.HfArgumentParser(transformers.TrainingArguments).parse_args_into_dataclasses(
        trainer_flags
    )
    settings.save_strategy, settings.report_to = "no", []
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.set_seed(settings.seed)
    casing = {"do_lower_case": bool(options.do_lower_case), "strip_accents": bool(options.strip_accents)}
    tokenizer = transformers.BertTokenizerFast(options.vocab_file, **casing)
    trainer = transformers.Trainer(
        transformers.BertForMaskedLM(transformers.BertConfig.from_json_file(options.config)),
        settings,
        train_dataset=blocks(tokenizer, options.text, options.max_seq_length),
        data_collator=transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
    )
    trainer.train()
    trainer.save_model()
    tokenizer.save_pretrained(settings.output_dir)


def blocks(tokenizer: transformers.BertTokenizerFast, folder: Path, length: int) -> list[dict[str, list[int]]]:
    """The texts' tokens in blocks of `length`; what is left at the end is dropped."""
    lines = [line for file in sorted(folder.glob("*.txt")) for line in file.read_text(encoding="utf-8").splitlines()]
    ids = list(itertools.chain.from_iterable(tokenizer([line for line in lines if line.strip()])["input_ids"]))
    return [{"input_ids": ids[start : start + length]} for start in range(0, len(ids) - length + 1, length)]


if __name__ == "__main__":
    main()
