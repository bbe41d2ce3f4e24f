"""Text to what both phases train from, on one core, beside tf-models-official; sharding, and two cores.

Making instances, from sharded text to TFRecords, is compared with create_pretraining_data.py on the same text, in a new
process each time, so that no cache is warm; imports do not count. Making token files with five passes of pairs of both
lengths is compared with its two runs for both lengths: in a new process, and in one that has already tokenised other
text of that size, which is how most shards of a corpus are made. Sharding is compared with copying the same bytes, with
fsync. --text is the output of text_formatting, one document per line. It is repeated or cut to the wanted sizes.

    python -m benchmarks preparation --text data/formatted_one_article_per_line/*.txt --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
from pathlib import Path

from benchmarks.frame import Bench, Sample, Variant, bert_prep, existing
from bert_tf.base.errors import UserError
from bert_tf.prepare.sharding.sentences import split_by_rules

NEEDS = "peer tf_models; --text with a document a line, --vocab_file"
PEERS = ("tf_models",)
ROUNDS = 3
DUPE_FACTOR, NUM_SHARDS = 5, 8
LENGTHS = ((128, 20), (512, 80))
OTHER_SETTINGS = {"whole words": {"whole_word_masking": True}, "case kept": {"do_lower_case": False}}
PEER = "tf-models-official"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=existing, nargs="+", required=True, help="files with a document a line")
    parser.add_argument("--vocab_file", type=existing, required=True)
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


def compare_instances(bench: Bench) -> None:
    options, python = bench.options, bench.peer("tf_models")
    text, other_text = bench.folder / "sentences.txt", bench.folder / "other_sentences.txt"
    num_bytes = options.megabytes * 1e6
    write_text(options.text, num_bytes, text, is_split=True)
    write_text(options.text, num_bytes, other_text, is_split=True, skip_bytes=num_bytes)
    megabytes = text.stat().st_size / 1e6
    common = {"text": str(text), "vocab_file": options.vocab_file, "dupe_factor": DUPE_FACTOR}
    theirs: list[list[Sample]] = []
    for length, predictions in LENGTHS:
        settings = {
            **common,
            "output": str(bench.folder / "x.tfrecord"),
            "max_seq_length": length,
            "max_predictions_per_seq": predictions,
        }
        others = OTHER_SETTINGS if length == 128 else {}
        variants = {
            name: Variant("benchmarks.variants.this_project:instances", {**settings, **changes}, afresh=True)
            for name, changes in {"this project": {}, **others}.items()
        }
        if python:
            peer = Variant("benchmarks.variants.tf_models:instances", settings, python, afresh=True)
            variants = {PEER: peer, **variants}
        title = f"Records, {length} / {predictions}, {megabytes:.1f} MB of sentences"
        found = bench.compare(title, variants, amount=megabytes, unit="MB")
        theirs.append(found.get(PEER, []))
    settings = {**common, "output": str(bench.folder / "x.tokens"), "lengths": [length for length, _ in LENGTHS]}
    tokens = {
        name: Variant("benchmarks.variants.this_project:tokens", {**settings, "texts_before": before}, afresh=True)
        for name, before in (("token files", []), ("token files, second shard", [str(other_text)]))
    }
    both = [Sample(one.wall_secs + two.wall_secs, one.cpu_secs + two.cpu_secs) for one, two in zip(*theirs)]
    bench.compare(
        "Both lengths", tokens, amount=megabytes, unit="MB", before={f"{PEER}, both runs": both} if python else {}
    )


def afresh(folder: Path, links: dict[str, Path]) -> Path:
    """A new working directory with links into others."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, target in links.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(target)
    return folder


def copy(source: Path, target: Path) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def compare_stages(bench: Bench) -> None:
    """Sharding and create_tfrecord_files, in one process and in two, on as many cores."""
    name = "formatted_one_article_per_line/custom_one_document_per_line.txt"
    text, vocab_file = bench.folder / "documents.txt", bench.options.vocab_file
    write_text(bench.options.text, bench.options.stage_megabytes * 1e6, text, is_split=False)
    shards = f"--n_training_shards={NUM_SHARDS} --n_test_shards=0 --fraction_test_set=0".split()
    made = afresh(bench.folder / "made", {name: text})
    bert_prep(made, "--action=sharding", "--dataset=custom", *shards)

    def stage(action: str, number: int, links: dict[str, Path], *arguments: str) -> None:
        words = [f"--action={action}", "--dataset=custom", f"--n_processes={number}", *arguments]
        bert_prep(afresh(bench.folder / action, links), *words, cores=bench.available[:number])

    def sharding(number: int) -> None:
        stage("sharding", number, {name: text}, *shards)

    def records(number: int) -> None:
        sizes = "--max_seq_length=128 --max_predictions_per_seq=20".split()
        links = {name: text, "sharded": made / "sharded"}
        stage("create_tfrecord_files", number, links, f"--vocab_file={vocab_file}", *sizes)

    names = {1: "one process", 2: "two processes"}
    work = {"amount": text.stat().st_size / 1e6, "unit": "MB", "clock": "wall"}
    variants = {label: lambda number=number: sharding(number) for number, label in names.items()}
    variants["copy, fsync'd"] = lambda: copy(text, bench.folder / "copy")
    bench.compare(f"Sharding {work['amount']:.0f} MB, whole commands", variants, **work)
    variants = {label: lambda number=number: records(number) for number, label in names.items()}
    bench.compare(f"Records of length 128 from {NUM_SHARDS} shards, whole commands", variants, **work)


def run(bench: Bench) -> None:
    compare_instances(bench)
    compare_stages(bench)
