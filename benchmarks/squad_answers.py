"""Answers per second, from text to text, beside Hugging Face's BERT on PyTorch: same questions, same weights.

Questions whose text fits into one window of 384 tokens, from a file in SQuAD's format, answered by an encoder in
Hugging Face's format with a random question answering head. A turn is a pass over all questions, measured by processor
time, which other programs disturb least.

    python -m benchmarks squad_answers --file dev-v2.0.json --model FOLDER
"""

from __future__ import annotations

import argparse
import json
import random
import statistics

from benchmarks.frame import Bench, Variant, existing
from bert_tf.tasks.squad.examples import read_examples
from bert_tf.tasks.squad.features import FeatureSettings, make_windows
from bert_tf.text.wordpiece import FullTokenizer

NEEDS = "peer pytorch; --file with questions, --model in Hugging Face's format"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=existing, required=True, help="in SQuAD's format")
    parser.add_argument("--model", type=existing, required=True, help="folder in Hugging Face's format")
    parser.add_argument("--num_questions", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)


def choose_questions(options: argparse.Namespace) -> tuple[list[tuple[str, str]], float]:
    """(question, text) of the requested number of questions, in random order, and their mean number of tokens."""
    examples = read_examples(options.file, version_2_with_negative=True)
    random.Random(0).shuffle(examples)
    tokenizer = FullTokenizer(options.model / "vocab.txt")
    features = make_windows(examples, tokenizer, FeatureSettings(), is_training=False)
    windows: dict[int, list[int]] = {}
    for index, num_tokens in zip(features.example_index, features.num_tokens):
        windows.setdefault(int(index), []).append(int(num_tokens))
    chosen = [index for index, sizes in windows.items() if len(sizes) == 1][: options.num_questions]
    questions = [(examples[index].question, examples[index].paragraph.context) for index in chosen]
    return questions, statistics.mean(windows[index][0] for index in chosen)


def run(bench: Bench) -> None:
    questions, mean_tokens = choose_questions(bench.options)
    file = bench.folder / "questions.json"
    file.write_text(json.dumps(questions), encoding="utf-8")
    settings = {
        "questions": str(file),
        "model": bench.options.model,
        "batch_size": bench.options.batch_size,
        "max_seq_length": 384,
        "max_answer_length": 30,
        "scope": "blocks",
    }
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
