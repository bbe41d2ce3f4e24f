"""Tokenises shards of text: token files, from which training makes its instances, and records are made.

A shard is tokenised in memory as a whole. One that would take more than `MOST_WORKING_BYTES` (about 500 MB of English)
is refused.
"""

from __future__ import annotations

import array
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import naming_unreadable
from bert_tf.prepare.corpora.text_files import decoded
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pairs import PairSettings
from bert_tf.records.token_file import Shard, TokenizedText, choose_id_type, write_tokens
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import UNKNOWN_TOKEN, Tokenizer

# Text read at once: larger blocks are not faster, and their words should fit the CPU cache.
_BLOCK_BYTES = 1 << 17
# Limit for the tokens and pairs of a shard, so that a process, which needs about 250 MB besides, stays below 1 GiB.
MOST_WORKING_BYTES = 3 << 28
# In the densest usual text, Chinese, a token is an ideograph of three bytes. English has four bytes or more per token.
_TEXT_BYTES_PER_TOKEN = 3
# Five 32-bit numbers, and a place in the shuffled order.
_PAIR_BYTES = 28
# Two arrays, and the list of Python integers from which pairs are drawn.
_SENTENCE_BYTES = 36


def _blocks_of_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines; the last line gets a line end if it has none."""
    while block := file.read(_BLOCK_BYTES):
        # Only "\n" ends a line: the text may hold other characters that Python treats as line ends.
        block += file.readline()
        yield block if block.endswith(b"\n") else block + b"\n"


def _refuse_too_large(
    path: str | Path, pairs: PairSettings | None, text_bytes: int, num_tokens: int, num_documents: int
) -> None:
    """Raises `UserError` where a shard takes too much memory; `text_bytes`: the size of its `TokenizedText`."""
    working_bytes, with_settings = text_bytes, ""
    if pairs:
        # At most: sentences replaced by a random B are used again, and each document ends with a short chunk.
        num_pairs = pairs.dupe_factor * (num_documents + 2 * num_tokens // pairs.max_seq_length)
        working_bytes += num_pairs * _PAIR_BYTES
        with_settings = f" with --max_seq_length={pairs.max_seq_length} and --dupe_factor={pairs.dupe_factor}"
    if working_bytes > MOST_WORKING_BYTES:
        raise UserError(
            f"sharded text {path} ({os.path.getsize(path):,} bytes) takes some {working_bytes:,} bytes of memory"
            f"{with_settings}, but only {MOST_WORKING_BYTES:,} are allowed: make more shards, by --n_training_shards "
            "and --n_test_shards of --action sharding"
        )


def read_text(path: str | Path, tokenizer: Tokenizer, pairs: PairSettings | None = None) -> TokenizedText:
    """Tokenises a sharded text file: one sentence per line, a blank line between documents.

    Sentences and documents without a token are left out. `pairs`: the pairs that will later be drawn from it in memory.

    Raises: UserError where the file cannot be read, is not UTF-8, or is too large.
    """
    kind = choose_id_type(tokenizer.vocab_size)
    # Grown in place: joining parts at the end would take twice the memory.
    tokens = array.array(kind.char)
    sentence_starts, document_starts = array.array("q", [0]), array.array("q", [0])
    offset = 0

    def end_documents(ends: np.ndarray) -> None:
        # np.unique removes empty documents, which end where the previous one does.
        document_starts.frombytes(np.unique(ends[ends > document_starts[-1]]).tobytes())

    with naming_unreadable(f"sharded text {path}", "run bertPrep.py --action sharding first"):
        num_tokens = os.path.getsize(path) // _TEXT_BYTES_PER_TOKEN
        _refuse_too_large(path, pairs, num_tokens * kind.itemsize, num_tokens, 0)
        with open(path, "rb") as file:
            for block in _blocks_of_lines(file):
                decoded(block, path, offset)
                ids, sizes = tokenizer.tokenize_lines(block)
                lines, empty = block.split(b"\n"), np.flatnonzero(sizes == 0)
                is_blank = [not lines[number].decode().strip() for number in empty.tolist()]
                blanks = empty[np.array(is_blank, bool)]
                sentences = np.flatnonzero(sizes)
                document_ends = len(sentence_starts) - 1 + np.searchsorted(sentences, blanks)
                sentence_starts.frombytes((len(tokens) + np.cumsum(sizes[sentences])).tobytes())
                tokens.frombytes(ids.astype(kind).tobytes())
                end_documents(document_ends)
                # Checked again, because unusual text can have more tokens than were estimated from its size.
                num_bytes = sum(len(part) * part.itemsize for part in (tokens, sentence_starts, document_starts))
                num_bytes += _SENTENCE_BYTES * len(sentence_starts)
                _refuse_too_large(path, pairs, num_bytes, len(tokens), len(document_starts))
                offset += len(block)
    end_documents(np.array([len(sentence_starts) - 1]))
    # np.asarray does not copy.
    return TokenizedText(*map(np.asarray, (tokens, sentence_starts, document_starts)))


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab_file: str, written_ns: int, casing: Casing) -> Tokenizer:
    """Cached, so that a worker reuses the tokenizer's own cache for all its shards.

    `written_ns` is part of the key because the file of a long-lived Dask worker may change.
    """
    return open_tokenizer(vocab_file, *casing)


class TokenSettings(NamedTuple):
    vocab_file: str
    casing: Casing

    @property
    def tokenizer(self) -> Tokenizer:
        return _tokenizer(self.vocab_file, os.stat(self.vocab_file).st_mtime_ns, self.casing)


def count_text(text: TokenizedText, unknown_id: int) -> dict[str, int]:
    return {
        "num_documents": text.num_documents,
        "num_sentences": text.num_sentences,
        "num_tokens": len(text.token_ids),
        "num_unknown_tokens": int(np.count_nonzero(text.token_ids == unknown_id)),
    }


def entry_of(output: Path, sha256: str, counts: dict[str, int], **details: int) -> FileEntry:
    """The entry of a shard's file in its manifest, which is in the folder above that of the split."""
    name = f"{output.parent.name}/{output.name}"
    return FileEntry(name, output.stat().st_size, sha256, {**details, "counts": counts})


def make_token_file(text_path: Path, output: Path, settings: TokenSettings, shard: Shard) -> FileEntry:
    """Turns a sharded text file into a token file.

    Raises: UserError where the text cannot be read or is too large, or the disk cannot be written.
    """
    tokenizer = settings.tokenizer
    text = read_text(text_path, tokenizer)
    sha256 = write_tokens(output, text, shard, tokenizer.vocab_size)
    return entry_of(output, sha256, count_text(text, tokenizer.vocab[UNKNOWN_TOKEN]))
