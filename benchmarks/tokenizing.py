"""Sharded text to ids on one core: in Python and with the compiled look-up of chunks, which take turns.

Both tokenise the same text by blocks, as the preparation of data does: first with empty caches (cold), then once
more (warm). The compiled code is made for the run. Processor time, medians; ids are compared.

    python benchmarks/tokenizing.py --text data/sharded/*/*.txt --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bert_tf.run.run_folder import provenance  # noqa: E402
from bert_tf.text import chunk_ids, wordpiece  # noqa: E402
from bert_tf.text.vocabulary import TokenizedLines  # noqa: E402

BLOCK_LINES = 1000
VARIANTS = ("Python", "compiled")


def timed(tokenizer: wordpiece.FullTokenizer, blocks: list[bytes]) -> tuple[float, list[TokenizedLines]]:
    started = time.process_time()
    found = [tokenizer.tokenize_lines(block) for block in blocks]
    return time.process_time() - started, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files with a sentence a line")
    parser.add_argument("--vocab_file", required=True)
    parser.add_argument("--do_lower_case", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    lines = [line + b"\n" for path in args.text for line in path.read_bytes().split(b"\n")]
    blocks = [b"".join(lines[start : start + BLOCK_LINES]) for start in range(0, len(lines), BLOCK_LINES)]
    megabytes = sum(map(len, blocks)) / 1e6
    secs: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "chunk_ids.so"
        chunk_ids.compile_code(compiled)
        files = {"Python": Path(folder) / "none", "compiled": compiled}
        for _ in range(args.rounds):
            results = []
            for name in VARIANTS:
                wordpiece.compiled_file = lambda file=files[name]: file
                tokenizer = wordpiece.FullTokenizer(args.vocab_file, bool(args.do_lower_case))
                for state in ("cold", "warm"):
                    passed, found = timed(tokenizer, blocks)
                    secs.setdefault((state, name), []).append(passed)
                    results.append(found)
            for found in results[1:]:
                for one, other in zip(results[0], found):
                    assert (one.ids == other.ids).all() and (one.sizes == other.sizes).all()
    facts = provenance()
    print(f"{megabytes:.1f} MB, {args.rounds} rounds; {facts['processor']}, Python {facts['versions']['python']}\n")
    print("| caches | | s | MB/s | times Python's |\n|---|---|---|---|---|")
    for state, name in sorted(secs):
        taken, theirs = (statistics.median(secs[state, variant]) for variant in (name, "Python"))
        print(f"| {state} | {name} | {taken:.3f} | {megabytes / taken:.1f} | {theirs / taken:.2f} |")


if __name__ == "__main__":
    main()
