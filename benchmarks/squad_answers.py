"""Answers per second, from text to text, beside Hugging Face's BERT on PyTorch: same questions, same weights.

Questions whose text fits into one window of 384 tokens, from a file in SQuAD's format, answered by an encoder in
Hugging Face's format with a random question answering head. A turn is a pass over all questions, measured by processor
time, which other programs disturb least.

    python -m benchmarks squad_answers --file dev-v2.0.json --model FOLDER
"""

from __future__ import annotations

import argparse
import random

import numpy as np

from benchmarks.frame import Bench, Variant, existing_path
from bert_tf.tasks.squad.examples import read_examples
from bert_tf.tasks.squad.features import FeatureSettings, make_windows
from bert_tf.text.wordpiece import FullTokenizer

NEEDS = "peer pytorch; --file with questions, --model in Hugging Face's format"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=existing_path, required=True, help="in SQuAD's format")
    parser.add_argument("--model", type=existing_path, required=True, help="folder in Hugging Face's format")
    parser.add_argument("--num_questions", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)


def choose_questions(options: argparse.Namespace) -> tuple[list[tuple[str, str]], float]:
    """(question, text) of the requested number of questions, in random order, and their mean number of tokens."""
    examples = read_examples(options.file, version_2_with_negative=True)
    random.Random(0).shuffle(examples)
    tokenizer = FullTokenizer(options.model / "vocab.txt")
    features = make_windows(examples, tokenizer, FeatureSettings(), is_training=False)
    is_alone = np.bincount(features.example_index)[features.example_index] == 1
    windows = np.flatnonzero(is_alone)[: options.num_questions]
    chosen = [examples[index] for index in features.example_index[windows]]
    questions = [(example.question, example.context) for example in chosen]
    return questions, float(features.num_tokens[windows].mean())


def run(bench: Bench) -> None:
    questions, mean_tokens = choose_questions(bench.options)
    settings = {**vars(bench.options), "questions": questions, "max_seq_length": 384, "max_answer_length": 30}
    sides = {
        "Hugging Face on PyTorch, {}, padded within the batch": ("hugging_face", "pytorch"),
        "this project, {}, scope blocks": ("this_project", ""),
    }
    variants = {
        name.format(precision): Variant(
            f"benchmarks.variants.{module}:answers", {**settings, "precision": precision}, peer, warm_up=2
        )
        for name, (module, peer) in sides.items()
        for precision in ("fp32", "bf16")
    }
    title = f"{len(questions)} questions of {mean_tokens:.0f} tokens on average"
    bench.compare(title, variants, amount=len(questions), unit="answers")
