"""Sharded text to ids, in Python and with the compiled look-up of chunks.

Both tokenise the same text in blocks, as data preparation does: first with empty caches (cold), then once more (warm).
The code is compiled for the run. The ids are compared.

    python -m benchmarks tokenizing --text data/sharded/*/*.txt --vocab_file vocab.txt
"""

from __future__ import annotations

import argparse
import functools

from benchmarks.frame import Bench, existing
from bert_tf.base.compiled import compile_code
from bert_tf.text import chunk_ids, wordpiece
from bert_tf.text.vocabulary import TokenizedLines

NEEDS = "--text with a sentence a line, --vocab_file"
BLOCK_LINES = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=existing, nargs="+", required=True, help="files with a sentence a line")
    parser.add_argument("--vocab_file", type=existing, required=True)
    parser.add_argument("--do_lower_case", type=int, default=1)


def run(bench: Bench) -> None:
    options = bench.options
    lines = [line + b"\n" for path in options.text for line in path.read_bytes().split(b"\n")]
    blocks = [b"".join(lines[start : start + BLOCK_LINES]) for start in range(0, len(lines), BLOCK_LINES)]
    megabytes = sum(map(len, blocks)) / 1e6
    compiled = bench.folder / "chunk_ids.so"
    compile_code(chunk_ids.SOURCE, compiled)
    files = {"Python": bench.folder / "none", "compiled": compiled}
    fresh = {
        name: [wordpiece.FullTokenizer(options.vocab_file, bool(options.do_lower_case)) for _ in range(options.rounds)]
        for name in files
    }
    used: dict[str, wordpiece.FullTokenizer] = {}

    def tokenise(name: str) -> list[TokenizedLines]:
        wordpiece.compiled_file = lambda _: files[name]
        return list(map(used[name].tokenize_lines, blocks))

    def tokenise_first(name: str) -> list[TokenizedLines]:
        used[name] = fresh[name].pop()
        return tokenise(name)

    for state, how in (("cold", tokenise_first), ("warm", tokenise)):
        turns = {name: functools.partial(how, name) for name in files}
        bench.compare(f"Caches {state}, {megabytes:.1f} MB", turns, amount=megabytes, unit="MB")
    for one, other in zip(*map(tokenise, files)):
        assert (one.ids == other.ids).all() and (one.sizes == other.sizes).all()
