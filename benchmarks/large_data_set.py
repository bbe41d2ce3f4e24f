"""Time and memory that one rank needs to open and read data of the recipe's size: records or token files.

Records: 10^9 in 1,500 shards. Token files: 4 x 10^9 tokens (English Wikipedia and books) in 1,472 shards, with five
passes of pairs of length 128. Only one shard is made; the others are hard links to it, so the set takes the disk
space of one. A separate process does what a rank does before its first update: find the shards, open what lies beside
them, draw the order of the first epoch; then it reads. With --launch, both are followed by
`scripts/run_pretraining_lamb.sh` (tiny, one rank, token files), timed until its first update is done.

    python benchmarks/large_data_set.py [--folder FOLDER] [--launch]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT))

from bert_tf.batches.data_order import GlobalOrder  # noqa: E402
from bert_tf.batches.masking import MaskingRules  # noqa: E402
from bert_tf.batches.open import open_instances  # noqa: E402
from bert_tf.batches.record_set import RecordSet  # noqa: E402
from bert_tf.records.index import index_path  # noqa: E402
from bert_tf.records.pair_file import make_pairs, pairs_path  # noqa: E402
from bert_tf.records.pairs import PairSettings  # noqa: E402
from bert_tf.records.schema import InstanceArrays  # noqa: E402
from bert_tf.records.token_file import SPLITS, Shard, TokenizedText, write_tokens  # noqa: E402
from bert_tf.records.writer import RecordWriter  # noqa: E402

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
    facts = {"vocab": {"size": VOCAB_SIZE, "sha256": "made up"}, "arguments": {"do_lower_case": True}, "dataset": "x"}
    (folder / "manifest.json").write_text(json.dumps({**facts, "counts": {}}))


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def serve_as_rank(folder: Path) -> None:
    before, started = peak_mib(), time.perf_counter()
    data = open_instances(str(folder), "input_files", SEQUENCE, MaskingRules())
    opened = time.perf_counter()
    order = GlobalOrder(data.copies, seed=1)
    order.ranges(0, GLOBAL_BATCH)
    ready = time.perf_counter()
    print(
        f"{data.num_instances:,} instances in {len(data.files):,} shards: opened in {opened - started:.1f} s, order "
        f"{ready - opened:.1f} s; peak memory {peak_mib():.0f} MiB, {peak_mib() - before:.0f} MiB more than before",
        flush=True,
    )
    if isinstance(data, RecordSet):
        takes = {"records read": lambda ranges: len(data.read(ranges))}
    else:
        takes = {
            "instances read and masked, each shard for the first time": lambda ranges: len(
                data.features(ranges, 1)["input_ids"]
            )
        }
        takes["instances read and masked again"] = next(iter(takes.values()))
    takes["lengths read, as packing does"] = lambda ranges: len(data.lengths(ranges))
    for name, take in takes.items():
        started = time.perf_counter()
        count = sum(take(order.ranges(start, GLOBAL_BATCH)) for start in range(0, READ_RECORDS, GLOBAL_BATCH))
        print(f"{name}: {count / (time.perf_counter() - started):,.0f} a second; peak {peak_mib():.0f} MiB", flush=True)


def launch(working_dir: Path) -> None:
    """Prints the time from the launcher's start to the first update of a training on the token files."""
    command = "bash scripts/run_pretraining_lamb_phase1.sh 32 8 8 1e-4 1e-4 fp32 true 1 1 1 2 100 2 2 tiny"
    environment = {**os.environ, "DATA_DIR": str(working_dir), "RESULTS_DIR": str(working_dir / "results")}
    started = time.perf_counter()
    with subprocess.Popen(
        command.split(), cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith(("phase_1:", "update ")):
                print(f"{time.perf_counter() - started:.1f} s: {line}", end="", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where to make the set (0.6 GB); a temporary folder without it")
    parser.add_argument("--num_shards", type=int, default=1500, help="of records")
    parser.add_argument("--num_records", type=int, default=666_667, help="of each shard")
    parser.add_argument("--launch", action="store_true", help="start a training on the token files, too")
    parser.add_argument("--rank", help="measure this folder in this process")
    args = parser.parse_args()
    if args.rank:
        serve_as_rank(Path(args.rank))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        tokens = Path(folder) / "tokens/made_up/x"
        make_tokens(tokens, NUM_TOKEN_SHARDS, NUM_TOKENS // NUM_TOKEN_SHARDS)
        subprocess.run([sys.executable, __file__, "--rank", str(tokens / "training")], check=True)
        if args.launch:
            launch(Path(folder))
        records = Path(folder) / "records"
        records.mkdir()
        make_records(records, args.num_shards, args.num_records)
        subprocess.run([sys.executable, __file__, "--rank", str(records)], check=True)


if __name__ == "__main__":
    main()
