"""Turns shards of text into token files, and their tokens into pre-training instances: masked pairs of segments.

A shard is tokenised in memory as a whole. One that would take more than `MOST_WORKING_BYTES` (about 500 MB of English)
is refused. All random choices follow from (seed, split, shard): the same text gives the same bytes, whichever process
makes a shard, and every shard has a random stream of its own.
"""

from __future__ import annotations

import array
import functools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import naming_unreadable, open_file
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.prepare.corpora.text_files import decoded
from bert_tf.records.manifest import FileEntry
from bert_tf.records.pairs import Draws, PairSettings, shuffled_pairs, with_two_documents
from bert_tf.records.schema import Features
from bert_tf.records.shard import write_records
from bert_tf.records.token_file import TOKENS_SUFFIX, Shard, TokenFile, TokenizedText, choose_id_type, write_tokens
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.tokenizer import open_tokenizer
from bert_tf.text.vocabulary import UNKNOWN_TOKEN, Tokenizer

# Text read at once: larger blocks are not faster, and their words should fit the CPU cache.
_BLOCK_BYTES = 1 << 17
# Limit for the tokens and pairs of a shard, so that a process, which needs about 250 MB besides, stays below 1 GiB.
MOST_WORKING_BYTES = 3 << 28
# Five 32-bit numbers, and an index in the shuffled order.
_PAIR_BYTES = 28
# Two arrays (of documents as well as sentences), and the list of Python integers from which pairs are drawn.
_SENTENCE_BYTES = 44


def _blocks_of_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines; the last line gets a line end if it has none."""
    while block := file.read(_BLOCK_BYTES):
        # Only "\n" ends a line: the text may hold other characters that Python treats as line ends.
        block += file.readline()
        yield block if block.endswith(b"\n") else block + b"\n"


def read_text(path: Path, tokenizer: Tokenizer, pairs: PairSettings | None = None) -> TokenizedText:
    """Tokenises a sharded text file: one sentence per line, a blank line between documents.

    Sentences and documents without a token are left out. `pairs`: settings of the pairs that will be drawn from the
    text in memory, which count towards the limit.

    Raises: UserError where the file cannot be read, is not UTF-8, or is too large.
    """
    id_type = choose_id_type(tokenizer.vocab_size)
    # Grown in place: joining parts at the end would take twice the memory.
    tokens = array.array(id_type.char)
    sentence_starts, document_starts = array.array("q", [0]), array.array("q", [0])
    offset = 0

    def end_documents(ends: np.ndarray) -> None:
        # np.unique removes empty documents, which end where the previous one does.
        document_starts.frombytes(np.unique(ends[ends > document_starts[-1]]).tobytes())

    with naming_unreadable(f"sharded text {path}", "run bertPrep.py --action sharding first"), open_file(path) as file:
        for block in _blocks_of_lines(file):
            lines = decoded(block, path, offset).split("\n")[:-1]
            ids, sizes = tokenizer.tokenize_lines(block)
            is_sentence = sizes > 0
            is_blank = ~is_sentence & np.array([not line.strip() for line in lines])
            document_ends = len(sentence_starts) - 1 + np.cumsum(is_sentence)[is_blank]
            sentence_starts.frombytes((len(tokens) + np.cumsum(sizes[is_sentence])).tobytes())
            tokens.frombytes(ids.astype(id_type).tobytes())
            end_documents(document_ends)
            num_bytes = id_type.itemsize * len(tokens) + _SENTENCE_BYTES * len(sentence_starts)
            if pairs:
                # An upper bound. Sentences replaced by a random B are used again; a document ends with a short chunk.
                num_pairs = len(document_starts) + 2 * len(tokens) // pairs.max_seq_length
                num_bytes += _PAIR_BYTES * pairs.dupe_factor * num_pairs
            if num_bytes > MOST_WORKING_BYTES:
                raise UserError(
                    f"sharded text {path} ({path.stat().st_size:,} bytes): its first {offset + len(block):,} bytes "
                    f"take {num_bytes:,} bytes of memory, and {MOST_WORKING_BYTES:,} are allowed: make more shards, by "
                    "--n_training_shards and --n_test_shards of --action sharding"
                )
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


def shard_entry(output: Path, sha256: str, counts: dict[str, int], **details: int) -> FileEntry:
    """The entry of a shard's file in its manifest, which is in the folder above that of the split."""
    name = f"{output.parent.name}/{output.name}"
    return FileEntry(name, output.stat().st_size, sha256, {**details, "counts": counts})


def make_token_file(source: Path, output: Path, shard: Shard, *, settings: TokenSettings) -> FileEntry:
    """Turns a sharded text file into a token file.

    Raises: UserError where the text cannot be read or is too large, or the disk cannot be written.
    """
    tokenizer = settings.tokenizer
    text = read_text(source, tokenizer)
    sha256 = write_tokens(output, text, shard, tokenizer.vocab_size)
    return shard_entry(output, sha256, count_text(text, tokenizer.vocab[UNKNOWN_TOKEN]))


class RecordSettings(NamedTuple):
    """What the records of a shard depend on, besides its text."""

    tokens: TokenSettings
    pairs: PairSettings
    rules: MaskingRules


def create_instances(
    text: TokenizedText, settings: RecordSettings, ids: VocabularyIds, seed: Iterable[int]
) -> Iterator[Features]:
    """All instances of a shard, shuffled, in blocks; `text` must have at least two documents.

    `seed`: non-negative integers, which determine all choices.
    """
    draws = Draws.from_seed(seed)
    masker = Masker(settings.rules, ids)
    length, first = settings.pairs.max_seq_length, 0
    for pairs in shuffled_pairs(text, settings.pairs, draws):
        ranges = np.array([[0, first, len(pairs.a_start)]])
        yield masker.instances(text.token_ids, pairs, length, seed=draws.mask_key, ranges=ranges)
        first += len(pairs.a_start)


def make_shard(source: Path, output: Path, shard: Shard, *, settings: RecordSettings) -> FileEntry:
    """Turns a sharded text file, or the token file made from it, into a record file and its index.

    Args:
      shard: seeds the random choices, together with `settings.pairs.random_seed`.
    Returns: the record file's entry, with counts for `total_counts`.
    Raises: UserError where the source cannot be read or holds too little, or the disk cannot be written.
    """
    tokenizer = settings.tokens.tokenizer
    ids = VocabularyIds.from_tokenizer(tokenizer)
    is_tokenized = source.suffix == TOKENS_SUFFIX
    whole = TokenFile(source).text() if is_tokenized else read_text(source, tokenizer, settings.pairs)
    text = with_two_documents(whole, source)
    counts = Counter(count_text(whole, ids.unknown))
    counts["num_documents_cut_in_two"] = text.num_documents - whole.num_documents

    def counted_blocks() -> Iterator[Features]:
        for block in create_instances(text, settings, ids, (settings.pairs.random_seed, *shard)):
            num_real = int(np.count_nonzero(block["input_mask"]))
            counts.update(
                num_instances=len(block["input_ids"]),
                num_random_next=int(block["next_sentence_labels"].sum()),
                num_masked_tokens=int(np.count_nonzero(block["masked_lm_weights"])),
                num_instance_tokens=num_real,
                num_padding_tokens=block["input_mask"].size - num_real,
            )
            yield block

    sha256 = write_records(output, counted_blocks())
    return shard_entry(output, sha256, dict(counts), num_instances=counts["num_instances"])


def total_counts(shards: Mapping[str, Sequence[FileEntry]]) -> dict[str, float]:
    """The sums of the files' counts; also of instances (else tokens) by split, and ratios such as unknown_share."""
    total: Counter[str] = Counter()
    for entries in shards.values():
        for entry in entries:
            total.update(entry.details["counts"])
    unit = "num_instances" if "num_instances" in total else "num_tokens"
    for split, entries in shards.items():
        total[f"{unit}_{split}"] = sum(entry.counts[unit] for entry in entries)
    shares = {"unknown_share": total["num_unknown_tokens"] / max(total["num_tokens"], 1)}
    if "num_instances" in total:
        shares["random_next_share"] = total["num_random_next"] / total["num_instances"]
        num_positions = total["num_instance_tokens"] + total["num_padding_tokens"]
        shares["padding_share"] = total["num_padding_tokens"] / num_positions
    return {**total, **shares}
