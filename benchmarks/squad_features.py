"""SQuAD's JSON to the model's inputs, beside tf-models-official's run_squad code.

Both read the same file and make windows of 384 tokens with stride 128, for training (answer positions) and for
prediction, into lists or arrays in memory. Every turn is a new process, so that no cache is warm; imports do not count.

    python -m benchmarks squad_features --file dev-v2.0.json --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.frame import Bench, Variant, existing_path

NEEDS = "peer tf_models; --file with questions, --vocab_file"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--file", type=existing_path, required=True, help="in SQuAD's format")
    parser.add_argument("--vocab_file", type=existing_path, required=True)


def with_one_answer(file: Path, copy: Path) -> None:
    """Leaves each question its first answer: tf-models-official takes no more for training."""
    content = json.loads(file.read_text(encoding="utf-8"))
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                del question["answers"][1:]
    copy.write_text(json.dumps(content), encoding="utf-8")


def run(bench: Bench) -> None:
    file = bench.folder / "questions.json"
    with_one_answer(bench.options.file, file)
    for use in ("training", "prediction"):
        settings = {"file": str(file), "vocab_file": bench.options.vocab_file, "is_training": use == "training"}
        variants = {
            "tf-models-official": Variant(
                "benchmarks.variants.tf_models:squad_features", settings, "tf_models", is_restarted=True
            ),
            "this project": Variant("benchmarks.variants.this_project:squad_features", settings, is_restarted=True),
        }
        bench.compare(f"For {use}", variants, amount="windows", unit="windows")
