"""Answers a second, from text to text, beside Hugging Face's BERT on PyTorch: same questions, same weights, one core.

Questions whose text fits into one window of 384 tokens, from a file in SQuAD's format, answered by an encoder in
Hugging Face's format with a random question answering head. Each variant is a process with one thread; they take
turns, and each pass over all questions is measured, by processor time, which other programs disturb least.

    python benchmarks/squad_answers.py --file dev-v2.0.json --model FOLDER --pytorch_python peers/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training_step import Variant, Worker

from bert_tf.run.run_folder import provenance
from bert_tf.tasks.squad.examples import read_examples
from bert_tf.tasks.squad.features import FeatureSettings, make_features
from bert_tf.text.wordpiece import FullTokenizer


def choose_questions(args: argparse.Namespace) -> tuple[list[tuple[str, str]], float]:
    """(question, text) of as many as wanted, in random order, and the mean number of their tokens."""
    examples = read_examples(args.file, version_2_with_negative=True)
    random.Random(0).shuffle(examples)
    features = make_features(
        examples, FullTokenizer(Path(args.model) / "vocab.txt"), FeatureSettings(), is_training=False
    )
    windows: dict[int, list[int]] = {}
    for index, num_tokens in zip(features.example_index, features.num_tokens):
        windows.setdefault(int(index), []).append(int(num_tokens))
    chosen = [index for index, sizes in windows.items() if len(sizes) == 1][: args.num_questions]
    questions = [(examples[index].question, examples[index].paragraph.context) for index in chosen]
    return questions, statistics.mean(windows[index][0] for index in chosen)


def variants(args: argparse.Namespace) -> list[Variant]:
    return [
        *(
            Variant(
                f"Hugging Face on PyTorch, {precision}, padded within the batch",
                args.pytorch_python,
                "answers_hugging_face.py",
                {"precision": precision},
            )
            for precision in ("fp32", "bf16")
        ),
        *(
            Variant(
                f"this project, {precision}, scope blocks",
                sys.executable,
                "answers_this_project.py",
                {"precision": precision, "scope": "blocks"},
            )
            for precision in ("fp32", "bf16")
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", required=True, help="in SQuAD's format")
    parser.add_argument("--model", required=True, help="folder in Hugging Face's format")
    parser.add_argument("--pytorch_python", required=True, help="interpreter with torch and transformers")
    parser.add_argument("--num_questions", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    args = parser.parse_args()
    questions, mean_tokens = choose_questions(args)
    workers: list[Worker] = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "questions.json"
        file.write_text(json.dumps(questions), encoding="utf-8")
        settings = {
            "questions": str(file),
            "model": args.model,
            "batch_size": args.batch_size,
            "max_seq_length": 384,
            "max_answer_length": 30,
            "clock": "processor",
        }
        try:
            workers += [Worker(variant, settings, [args.core]) for variant in variants(args)]
            secs: dict[str, list[float]] = {worker.name: [] for worker in workers}
            for _ in range(args.rounds):
                for worker in workers:
                    secs[worker.name].append(worker.update())
            versions = {name: version for worker in workers for name, version in worker.versions.items()}
        finally:
            for worker in workers:
                worker.end()
    print(
        f"{len(questions)} questions of {mean_tokens:.0f} tokens on average, batches of {args.batch_size}, "
        f"{args.rounds} interleaved rounds on one core, processor time; {provenance()['processor']}; "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}.\n"
    )
    print("| variant | answers/s, median | answers/s, fastest | times the first one's rate, median of rounds |")
    print("|---|---|---|---|")
    first = next(iter(secs.values()))
    for name, values in secs.items():
        ratio = statistics.median(theirs / ours for theirs, ours in zip(first, values))
        median, fastest = len(questions) / statistics.median(values), len(questions) / min(values)
        print(f"| {name} | {median:.2f} | {fastest:.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
