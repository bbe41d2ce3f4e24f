"""Time and memory that one rank needs to open and read data of the recipe's size: records or token files.

Records: 10^9 in 1,500 shards. Token files: 4 x 10^9 tokens (English Wikipedia and books) in 1,472 shards, with five
passes of pairs of length 128. Only one shard is made; the others are hard links to it, so the set takes the disk space
of one (0.6 GB, in --folder). A separate process does what a rank does before its first update: find the shards, open
the files beside them, draw the order of the first epoch; then it reads. With --launch, the token files are also read by
`scripts/run_pretraining_lamb.sh` (tiny, one rank), timed until its first updates are done.

    python -m benchmarks large_data_set [--launch]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np

from benchmarks.frame import CHECKOUT, Bench, Variant
from bert_tf.base.machine import memory_peak_mib
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.open import open_instances
from bert_tf.batches.record_set import RecordSet
from bert_tf.records.index import index_path
from bert_tf.records.manifest import MANIFEST_NAME, FileEntry, Manifest, VocabEntry
from bert_tf.records.pair_file import make_pairs, pairs_path
from bert_tf.records.pairs import PairSettings
from bert_tf.records.schema import InstanceArrays
from bert_tf.records.token_file import SPLITS, Shard, TokenizedText, write_tokens
from bert_tf.records.writer import RecordWriter

NEEDS = "0.6 GB of disk"
CORES = 0
SEQUENCE, PREDICTIONS, VOCAB_SIZE = 128, 20, 30522
NUM_TOKENS, NUM_TOKEN_SHARDS = 4 * 10**9, 1472
MOST_SENTENCE_TOKENS, DOCUMENT_SENTENCES = 50, 40
AT_ONCE = 4096
READ_RECORDS, GLOBAL_BATCH = 1 << 18, 8192


def made_up_instances(count: int, rng: np.random.Generator) -> InstanceArrays:
    lengths = rng.integers(SEQUENCE // 2, SEQUENCE + 1, [count, 1])
    mask = np.arange(SEQUENCE) < lengths
    return InstanceArrays(
        input_ids=rng.integers(0, VOCAB_SIZE, [count, SEQUENCE]) * mask,
        input_mask=mask.astype(np.uint8),
        segment_ids=(np.arange(SEQUENCE) > lengths // 2) & mask,
        masked_lm_positions=np.sort(rng.integers(1, SEQUENCE // 2, [count, PREDICTIONS]), axis=1),
        masked_lm_ids=rng.integers(0, VOCAB_SIZE, [count, PREDICTIONS]),
        masked_lm_weights=np.ones([count, PREDICTIONS], np.float32),
        next_sentence_labels=rng.integers(0, 2, [count]),
    )


def link_all(first: Path, paths: list[Path]) -> None:
    for path in paths:
        os.link(first, path)


def make_records(folder: Path, num_shards: int, num_records: int) -> None:
    rng = np.random.default_rng(0)
    paths = [folder / f"x_training_{number}.tfrecord" for number in range(num_shards)]
    block = made_up_instances(AT_ONCE, rng)
    with RecordWriter(paths[0]) as writer:
        for done in range(0, num_records, AT_ONCE):
            writer.write(block.rows(slice(0, num_records - done)))
    link_all(paths[0], paths[1:])
    link_all(index_path(paths[0]), list(map(index_path, paths[1:])))


def make_tokens(folder: Path, num_shards: int, num_tokens: int) -> None:
    """`folder`/{training,test} with manifest and vocabulary, as bertPrep.py leaves them."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, MOST_SENTENCE_TOKENS, 2 * num_tokens // MOST_SENTENCE_TOKENS)
    starts = np.cumsum([0, *sizes])
    documents = np.unique([*range(0, len(sizes), DOCUMENT_SENTENCES), len(sizes)])
    text = TokenizedText(rng.integers(5, VOCAB_SIZE, starts[-1]), starts, documents)
    for split, num in (("training", num_shards), ("test", 1)):
        (folder / split).mkdir(parents=True)
        paths = [folder / split / f"x_{split}_{number}.tokens" for number in range(num)]
        write_tokens(paths[0], text, Shard(SPLITS.index(split), 0), VOCAB_SIZE)
        make_pairs(paths[0], PairSettings(SEQUENCE))
        link_all(paths[0], paths[1:])
        link_all(pairs_path(paths[0], SEQUENCE), [pairs_path(path, SEQUENCE) for path in paths[1:]])
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{number}" for number in range(VOCAB_SIZE - 5)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    shards = {"training": [FileEntry("training/x_training_0.tokens", 0, "made up", {"num_tokens": 0})], "test": []}
    arguments = {"do_lower_case": True, "num_training_shards": num_shards, "fraction_test_set": 0}
    vocab = VocabEntry(VOCAB_SIZE, "made up")
    manifest = Manifest("create_token_files", "x", 2, arguments, (), vocab, {"num_tokens": 0}, shards)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest.to_json()))


def open_and_read(settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """What a rank does, in a separate process."""

    def run() -> dict[str, float]:
        before, started = memory_peak_mib(), time.perf_counter()
        data = open_instances(settings["folder"], "input_files", SEQUENCE, MaskingRules())
        opened = time.perf_counter()
        order = GlobalOrder(data.copies, seed=1)
        order.ranges(0, GLOBAL_BATCH)
        figures = {
            "instances": data.num_instances,
            "shards": len(data.files),
            "opening them, s": opened - started,
            "order of the epoch, s": time.perf_counter() - opened,
            "peak MiB then": memory_peak_mib(),
            "of that since the start": memory_peak_mib() - before,
        }
        if isinstance(data, RecordSet):
            takes = {"records read a second": lambda ranges: len(data.read(ranges))}
        else:
            features = lambda ranges: len(data.features(ranges, 1)["input_ids"])  # noqa: E731
            takes = {"read and masked a second, each shard for the first time": features, "again": features}
        takes["lengths read a second, as packing does"] = lambda ranges: len(data.lengths(ranges))
        for name, take in takes.items():
            started = time.perf_counter()
            count = sum(take(order.ranges(start, GLOBAL_BATCH)) for start in range(0, READ_RECORDS, GLOBAL_BATCH))
            figures[name] = count / (time.perf_counter() - started)
        return {**figures, "peak MiB at the end": memory_peak_mib()}

    return run


def launch(working_dir: Path) -> list[tuple[str, float]]:
    """Seconds from the launcher's start to the lines of the first updates of a training on the token files."""
    command = "bash scripts/run_pretraining_lamb_phase1.sh 32 8 8 1e-4 1e-4 fp32 true 1 1 1 2 100 2 2 tiny"
    environment = {**os.environ, "DATA_DIR": str(working_dir), "RESULTS_DIR": str(working_dir / "results")}
    lines, started = [], time.perf_counter()
    with subprocess.Popen(
        command.split(), cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(("phase_1:", "update ")):
                lines.append((line.rstrip().replace(str(working_dir), "FOLDER"), time.perf_counter() - started))
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num_shards", type=int, default=1500, help="of records")
    parser.add_argument("--num_records", type=int, default=666_667, help="of each shard")
    parser.add_argument("--num_tokens", type=int, default=NUM_TOKENS, help="in all")
    parser.add_argument("--launch", action="store_true", help="start a training on the token files, too")


def run(bench: Bench) -> None:
    def show(title: str, folder: Path) -> None:
        found = bench.once(Variant("benchmarks.large_data_set:open_and_read", {"folder": str(folder)}))
        bench.table(title, ["", ""], list(found.figures.items()))

    options = bench.options
    tokens, records = bench.folder / "tokens/made_up/x", bench.folder / "records"
    make_tokens(tokens, NUM_TOKEN_SHARDS, options.num_tokens // NUM_TOKEN_SHARDS)
    show("Token files", tokens / "training")
    if options.launch:
        bench.table("From the launcher's start", ["line", "seconds"], launch(bench.folder))
    records.mkdir()
    make_records(records, options.num_shards, options.num_records)
    show("Records", records)
