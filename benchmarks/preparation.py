"""Text to what both phases train from, on one core, beside tf-models-official and NVIDIA's TF2 code; and sharding.

Making instances, from sharded text to TFRecords, is compared with create_pretraining_data.py on the same text, in a new
process each time, so that no cache is warm; imports do not count. Making token files with five passes of pairs of both
lengths is compared with its two runs for both lengths: in a new process, and in one that has already tokenised other
text of that size, which is how most shards of a corpus are made. Sharding runs in one process, and in two on two cores.
--text is the output of text_formatting, one document per line. It is repeated or cut to the sizes of the options.

    python -m benchmarks preparation --text data/formatted_one_article_per_line/*.txt --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path
from typing import Any

from benchmarks.frame import Bench, Measurable, Sample, Variant, existing_path
from benchmarks.variants.nvidia_tf2 import checkout_folder, describe
from bert_tf.base.errors import UserError
from bert_tf.prepare.sharding.sentences import split_by_rules

NEEDS = "peer tf_models, nvidia_tf2 with --checkout; --text with a document a line, --vocab_file"
ROUNDS = 3
DUPE_FACTOR = 5
LENGTHS = ((128, 20), (512, 80))
PEER = "tf-models-official"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=existing_path, nargs="+", required=True, help="files with a document a line")
    parser.add_argument("--vocab_file", type=existing_path, required=True)
    parser.add_argument("--checkout", type=checkout_folder, help="of NVIDIA/DeepLearningExamples, to compare with")
    parser.add_argument("--megabytes", type=float, default=12, help="of text to make instances of; %(default)s")
    parser.add_argument("--stage_megabytes", type=float, default=96, help="of text for sharding; %(default)s")


def write_text(texts: list[Path], num_bytes: float, path: Path, *, is_split: bool, skip_bytes: float = 0) -> None:
    """Writes whole documents until there are enough bytes, repeating them if they do not suffice.

    One document per line; with `is_split` one sentence per line and a blank line after each document. Leaves out the
    documents that a call with `num_bytes` equal to `skip_bytes` would have written.
    """

    def documents():
        for text in texts:
            with open(text, encoding="utf-8", newline="\n") as file:
                yield from (line.rstrip("\n") for line in file if not line.isspace())

    if next(documents(), None) is None:
        raise UserError(f"--text: no document in {', '.join(map(str, texts))}")
    with open(path, "wb") as file:
        for document in itertools.chain.from_iterable(documents() for _ in itertools.count()):
            lines = [*split_by_rules(document), ""] if is_split else [document]
            content = "".join(line + "\n" for line in lines).encode()
            if skip_bytes > 0:
                skip_bytes -= len(content)
                continue
            file.write(content)
            if file.tell() >= num_bytes:
                return


def record_settings(bench: Bench, text: Path, length: int = 0, predictions: int = 0) -> dict[str, Any]:
    """The settings of the variants that make records."""
    settings = {**vars(bench.options), "text": str(text), "output": str(bench.folder / "x.tfrecord")}
    settings.update(dupe_factor=DUPE_FACTOR, max_seq_length=length, max_predictions_per_seq=predictions)
    return settings


def compare_instances(bench: Bench) -> None:
    options = bench.options
    if options.checkout:
        bench.note(describe(options.checkout))
    text, other_text = bench.folder / "sentences.txt", bench.folder / "other_sentences.txt"
    num_bytes = options.megabytes * 1e6
    write_text(options.text, num_bytes, text, is_split=True)
    write_text(options.text, num_bytes, other_text, is_split=True, skip_bytes=num_bytes)
    megabytes = text.stat().st_size / 1e6
    theirs: list[list[Sample]] = []
    for length, predictions in LENGTHS:
        settings = record_settings(bench, text, length, predictions)
        variants: dict[str, Measurable] = {}
        variants[PEER] = Variant("benchmarks.variants.tf_models:instances", settings, "tf_models", is_restarted=True)
        if options.checkout:
            program = Variant("benchmarks.variants.nvidia_tf2:instances", settings, "nvidia_tf2", is_restarted=True)
            variants["NVIDIA's create_pretraining_data.py"] = program
        for name, changes in {"this project": {}, "whole words": {"whole_word_masking": True}}.items():
            ours = {**settings, **changes}
            variants[name] = Variant("benchmarks.variants.this_project:instances", ours, is_restarted=True)
        title = f"Records, {length} / {predictions}, {megabytes:.1f} MB of sentences"
        theirs.append(bench.compare(title, variants, amount=megabytes, unit="MB").get(PEER, []))
    both_runs = (
        {"wall_secs": one.wall_secs + two.wall_secs, "cpu_secs": one.cpu_secs + two.cpu_secs}
        for one, two in zip(*theirs)
    )
    variants = {f"{PEER}, both runs": lambda: next(both_runs)} if theirs[0] else {}
    settings = record_settings(bench, text)
    settings.update({"output": str(bench.folder / "x.tokens"), "lengths": [length for length, _ in LENGTHS]})
    for name, before in {"token files": [], "token files, second shard": [str(other_text)]}.items():
        ours = {**settings, "texts_before": before}
        variants[name] = Variant("benchmarks.variants.this_project:tokens", ours, is_restarted=True)
    bench.compare("Both lengths", variants, amount=megabytes, unit="MB")


def compare_sharding(bench: Bench) -> None:
    """Sharding in one process and in two, on as many cores."""
    text, name = bench.folder / "documents.txt", "formatted_one_article_per_line/custom_one_document_per_line.txt"
    write_text(bench.options.text, bench.options.stage_megabytes * 1e6, text, is_split=False)
    shards = "--n_training_shards=8 --n_test_shards=0 --fraction_test_set=0"
    shard = functools.partial(bench.stage, f"--action=sharding --dataset=custom {shards}", name, text)
    megabytes = text.stat().st_size / 1e6
    variants = {"one process": lambda: shard(1), "two processes": lambda: shard(2)}
    title = f"Sharding {megabytes:.0f} MB, whole commands"
    bench.compare(title, variants, amount=megabytes, unit="MB", clock="wall")


def run(bench: Bench) -> None:
    compare_instances(bench)
    compare_sharding(bench)
