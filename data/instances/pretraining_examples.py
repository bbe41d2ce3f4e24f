"""Pre-training instances from a shard of text, by the algorithm of Google's BERT.

A document is read in chunks of sentences that fill the target length. Each chunk is split into A and
B at a random sentence end. Half of the time, and always if the chunk is one sentence, B is instead a
passage from another document of the shard, and the next chunk begins with the sentences that it
replaced (Devlin et al. 2018, section 3.1 and appendix A.2; the label is 1 for random).

The shard's tokens are one flat array, and A and B are ranges of it until the very end: chunks are
found by bisection, and truncating, joining and masking work on hundreds of instances at once. Nor
does the garbage collector have to visit millions of small lists, which would take longer than the
pairing itself.

Every choice is a function of (seed, split, shard): the same text gives the same bytes, whichever
process makes a shard, and every shard has its own random stream.

A shard is processed in memory as a whole. One that would take more than `MOST_WORKING_BYTES` (some
500 MB of English) is refused.

Shape letters: N instances, S sequence, P masked positions, T tokens of the shard.
"""

from __future__ import annotations

import array
import bisect
import dataclasses
import functools
import itertools
import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.records.schema import LONGEST_SEQUENCE, InstanceArrays
from bert_tf.records.writer import RecordWriter
from bert_tf.text.tokenizer import Tokenizer, open_tokenizer
from data.corpora.text_files import decoded

SPLITS = ("training", "test")
# Masks are drawn when the records are made (static), or each time they are read (dynamic).
MASKINGS = ("static", "dynamic")
# [CLS] A [SEP] B [SEP]
_NUM_MARKERS = 3
_SHORTEST_TARGET = 2
# Text read at once: larger blocks are not faster, and their words should fit the CPU cache.
_BLOCK_BYTES = 1 << 17
# Tokens assembled at once, so that they fit the CPU cache. Changing it changes the random choices of truncation.
_BLOCK_TOKENS = 1 << 17
# Limit for the tokens and pairs of a shard, so that a process, which takes some 250 MB besides, stays below 1 GiB.
MOST_WORKING_BYTES = 3 << 28
# In the densest usual text, Chinese, a token is an ideograph of three bytes. English has four bytes or more per token.
_TEXT_BYTES_PER_TOKEN = 3
# Five 32-bit numbers, and a place in the shuffled order.
_PAIR_BYTES = 28


@dataclasses.dataclass(frozen=True)
class ExampleSettings:
    """Settings of `create_tfrecord_files`.

    Raises: UserError for a value out of range.
    """

    vocab_file: str
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    do_lower_case: bool = True
    masked_lm_prob: float = 0.15
    dupe_factor: int = 5
    random_seed: int = 12345
    masking: str = "static"
    whole_word_masking: bool = False
    max_ngram_size: int = 1
    short_seq_prob: float = 0.1

    def __post_init__(self) -> None:
        shortest = _NUM_MARKERS + _SHORTEST_TARGET
        rules = (
            ("max_seq_length", shortest, LONGEST_SEQUENCE),
            ("dupe_factor", 1, None),
            ("max_predictions_per_seq", 1, self.max_seq_length - _NUM_MARKERS),
            ("short_seq_prob", 0, 1),
            ("random_seed", 0, None),
        )
        for name, low, high in rules:
            value = getattr(self, name)
            if value < low or (high is not None and value > high):
                limit = f">= {low}" if high is None else f"from {low} to {high}"
                raise UserError(f"--{name}={value} is out of range; give a value {limit}")
        self.masking_rules  # noqa: B018 - MaskingRules checks the other values
        if self.masking == "dynamic" and self.dupe_factor != 1:
            raise UserError(
                f"--dupe_factor={self.dupe_factor} with --masking=dynamic: copies are for different masks, but "
                "dynamic masks differ in every epoch anyway; leave --dupe_factor out"
            )

    @property
    def masking_rules(self) -> MaskingRules:
        return MaskingRules(
            self.masked_lm_prob, self.max_predictions_per_seq, self.whole_word_masking, self.max_ngram_size
        )

    @property
    def token_budget(self) -> int:
        """The maximum number of tokens of A and B together."""
        return self.max_seq_length - _NUM_MARKERS


class TokenizedText(NamedTuple):
    """The tokens of documents and sentences in one flat array; no sentence and no document is empty."""

    token_ids: np.ndarray  # uint16 or int32 [T]
    sentence_starts: np.ndarray  # int64 [sentences + 1] first token of each; then T
    document_starts: np.ndarray  # int64 [documents + 1] first sentence of each; then the number of sentences

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1


class Pairs(NamedTuple):
    """Segments A and B of N instances as ranges of the shard's tokens, int32 or int64 [N]."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    is_random_next: np.ndarray  # 0 or 1

    def rows(self, selection: slice | np.ndarray) -> Pairs:
        return Pairs(*(column[selection] for column in self))


def _blocks_of_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in blocks of whole lines; the last line gets a line end if it has none."""
    while block := file.read(_BLOCK_BYTES):
        # Only "\n" ends a line: the text may hold other characters that Python treats as line ends.
        block += file.readline()
        yield block if block.endswith(b"\n") else block + b"\n"


def _refuse_too_large(
    path: str | Path, settings: ExampleSettings, text_bytes: int, num_tokens: int, num_documents: int
) -> None:
    """Raises `UserError` where a shard takes too much memory; `text_bytes`: the size of its `TokenizedText`."""
    # At most: sentences replaced by a random B are used again, and each document ends with a short chunk.
    num_pairs = settings.dupe_factor * (num_documents + 2 * num_tokens // settings.max_seq_length)
    working_bytes = text_bytes + num_pairs * _PAIR_BYTES
    if working_bytes > MOST_WORKING_BYTES:
        raise UserError(
            f"sharded text {path} ({os.path.getsize(path):,} bytes) takes some {working_bytes:,} bytes of memory with "
            f"--max_seq_length={settings.max_seq_length} and --dupe_factor={settings.dupe_factor}, but only "
            f"{MOST_WORKING_BYTES:,} are allowed: make more shards, by --n_training_shards and --n_test_shards of "
            "--action sharding"
        )


def read_text(path: str | Path, tokenizer: Tokenizer, settings: ExampleSettings) -> TokenizedText:
    """Tokenises a sharded text file: one sentence per line, a blank line between documents.

    Sentences and documents without a token are left out.

    Raises: UserError where the file cannot be read, is not UTF-8, or is too large.
    """
    id_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    # Grown in place: joining parts at the end would take twice the memory.
    tokens = array.array(id_type.char)
    sentence_starts, document_starts = array.array("q", [0]), array.array("q", [0])
    place = 0

    def end_documents(ends: np.ndarray) -> None:
        # np.unique removes empty documents, which end where the one before them does.
        document_starts.frombytes(np.unique(ends[ends > document_starts[-1]]).tobytes())

    try:
        num_tokens = os.path.getsize(path) // _TEXT_BYTES_PER_TOKEN
        _refuse_too_large(path, settings, num_tokens * id_type.itemsize, num_tokens, 0)
        with open(path, "rb") as file:
            for block in _blocks_of_lines(file):
                decoded(block, path, place)
                ids, sizes = tokenizer.tokenize_lines(block)
                lines, empty = block.split(b"\n"), np.flatnonzero(sizes == 0)
                is_blank = [not lines[number].decode().strip() for number in empty.tolist()]
                blanks = empty[np.array(is_blank, bool)]
                sentences = np.flatnonzero(sizes)
                document_ends = len(sentence_starts) - 1 + np.searchsorted(sentences, blanks)
                sentence_starts.frombytes((len(tokens) + np.cumsum(sizes[sentences])).tobytes())
                tokens.frombytes(ids.astype(id_type).tobytes())
                end_documents(document_ends)
                # Checked again, because unusual text has more tokens than estimated from its size.
                num_bytes = sum(len(part) * part.itemsize for part in (tokens, sentence_starts, document_starts))
                _refuse_too_large(path, settings, num_bytes, len(tokens), len(document_starts))
                place += len(block)
    except OSError as error:
        raise UserError(
            f"sharded text {path} cannot be read ({error.strerror}); run bertPrep.py --action sharding first"
        ) from error
    end_documents(np.array([len(sentence_starts) - 1]))
    # np.asarray does not copy.
    return TokenizedText(*map(np.asarray, (tokens, sentence_starts, document_starts)))


def with_two_documents(text: TokenizedText) -> TokenizedText:
    """The text itself; a single document is split into two at its middle sentence.

    A random B must come from another document than A. If a shard holds only one (a novel), the other
    half of it serves as one: a passage from there is rarely A's continuation.

    Raises: UserError where there are fewer than two sentences.
    """
    if text.num_sentences < 2:
        raise UserError(
            f"has {text.num_sentences} sentence(s) with a token; a pair needs two: use fewer "
            "shards (--n_training_shards, --n_test_shards) or more text"
        )
    if text.num_documents > 1:
        return text
    return text._replace(document_starts=np.array([0, text.num_sentences // 2, text.num_sentences]))


def draw_pairs(text: TokenizedText, settings: ExampleSettings, seed: int) -> Pairs:
    """The pairs of all documents, `dupe_factor` times, by Google's algorithm; neither shuffled nor truncated.

    `text` must have at least two documents.
    """
    draw = random.Random(seed).random
    # Memoryviews, because lists of Python integers would take five times the memory.
    starts, documents = text.sentence_starts.data, text.document_starts.data
    budget, num_documents = settings.token_budget, text.num_documents
    found = array.array("i")
    passes = itertools.repeat(range(num_documents), settings.dupe_factor)
    for document in itertools.chain.from_iterable(passes):
        place, document_end = documents[document : document + 2]
        # The target is drawn once per document, not once per chunk.
        target = budget
        if draw() < settings.short_seq_prob:
            target = _SHORTEST_TARGET + int(draw() * (budget - _SHORTEST_TARGET + 1))
        while place < document_end:
            chunk_start = starts[place]
            # The first sentence end that reaches the target, or the document's end.
            end = bisect.bisect_left(starts, chunk_start + target, place + 1, document_end)
            num_sentences = end - place
            split = place + 1 + int(draw() * (num_sentences - 1))
            split_start = starts[split]
            if num_sentences > 1 and draw() < 0.5:
                found.extend((chunk_start, split_start, split_start, starts[end], 0))
                place = end
                continue
            other = int(draw() * (num_documents - 1))
            other += other >= document
            other_start, other_end = documents[other : other + 2]
            first = other_start + int(draw() * (other_end - other_start))
            wanted = starts[first] + target - (split_start - chunk_start)
            last = bisect.bisect_left(starts, wanted, first + 1, other_end)
            found.extend((chunk_start, split_start, starts[first], starts[last], 1))
            # The sentences after the split were not used: the next chunk starts with them.
            place = split
    return Pairs(*np.asarray(found).reshape(-1, len(Pairs._fields)).T)


def truncate(pairs: Pairs, budget: int, generator: np.random.Generator) -> Pairs:
    """Shortens A and B together to `budget` tokens.

    Google removes tokens one by one from the longer segment (from B if they are equally long), from
    its front or back with equal probability. So the final sizes follow from the original ones, and of
    k removed tokens a binomial (k, 1/2) number is from the front.
    """
    a_size, b_size = pairs.a_end - pairs.a_start, pairs.b_end - pairs.b_start
    a_lost = a_size - np.minimum(a_size, np.maximum(budget - b_size, (budget + 1) // 2))
    b_lost = b_size - np.minimum(b_size, np.maximum(budget - a_size, budget // 2))
    a_front, b_front = generator.binomial(a_lost, 0.5), generator.binomial(b_lost, 0.5)
    return Pairs(
        pairs.a_start + a_front,
        pairs.a_end - (a_lost - a_front),
        pairs.b_start + b_front,
        pairs.b_end - (b_lost - b_front),
        pairs.is_random_next,
    )


class Assembler:
    """Joins truncated pairs to ``[CLS] A [SEP] B [SEP]`` and pads them; does not mask."""

    def __init__(self, text: TokenizedText, max_seq_length: int, ids: VocabularyIds):
        self._ids = ids
        # Every S consecutive tokens as a row. A and B are copied with the tokens around them, which are
        # overwritten later: far faster than gathering single tokens.
        tokens = text.token_ids
        self._tokens = tokens if len(tokens) >= max_seq_length else np.resize(tokens, max_seq_length)
        self._windows = np.lib.stride_tricks.sliding_window_view(self._tokens, max_seq_length)

    def _copy_windows(self, starts: np.ndarray) -> np.ndarray:
        """S tokens from each of `starts` on; arbitrary ones where the text has not begun yet or has ended."""
        num_windows, length = self._windows.shape
        found = self._windows[np.clip(starts, 0, num_windows - 1)]
        past = np.flatnonzero((starts < 0) | (starts >= num_windows))
        found[past] = self._tokens.take(starts[past, np.newaxis] + np.arange(length), mode="clip")
        return found

    def assemble(self, pairs: Pairs) -> InstanceArrays:
        num, length = len(pairs.a_start), self._windows.shape[1]
        a_size = pairs.a_end - pairs.a_start
        lengths = a_size + pairs.b_end - pairs.b_start + _NUM_MARKERS
        rows, places = np.arange(num), np.arange(length, dtype=np.int32)
        is_real = places < lengths.astype(np.int32)[:, np.newaxis]
        is_past_a = places > a_size.astype(np.int32)[:, np.newaxis]
        # Shifted so that A begins at place 1, and B after the [SEP] that follows A.
        input_ids = self._copy_windows(pairs.a_start - 1)
        np.copyto(input_ids, self._copy_windows(pairs.b_start - a_size - 2), where=is_past_a)
        np.copyto(input_ids, self._ids.pad, where=~is_real)
        input_ids[:, 0] = self._ids.cls
        input_ids[rows, a_size + 1] = input_ids[rows, lengths - 1] = self._ids.sep
        segment_ids = (is_real & is_past_a).view(np.uint8)
        segment_ids[rows, a_size + 1] = 0
        no_masks = np.zeros([num, 0], np.int32)
        return InstanceArrays(
            input_ids=input_ids,
            input_mask=is_real.view(np.uint8),
            segment_ids=segment_ids,
            masked_lm_positions=no_masks,
            masked_lm_ids=no_masks,
            masked_lm_weights=no_masks.astype(np.float32),
            next_sentence_labels=pairs.is_random_next,
        )


def create_instances(
    text: TokenizedText, settings: ExampleSettings, ids: VocabularyIds, seed: Iterable[int]
) -> Iterator[InstanceArrays]:
    """All instances of a shard, shuffled, in blocks; `text` must have at least two documents.

    `seed`: non-negative integers, which determine all choices.
    """
    pair_seed, other_seed, mask_seed = np.random.SeedSequence(list(seed)).spawn(3)
    pairs = draw_pairs(text, settings, int(pair_seed.generate_state(1, np.uint64)[0]))
    mask_key = int(mask_seed.generate_state(1, np.uint64)[0])
    generator = np.random.default_rng(other_seed)
    order = generator.permutation(len(pairs.a_start))
    assembler = Assembler(text, settings.max_seq_length, ids)
    masker = Masker(settings.masking_rules, ids) if settings.masking == "static" else None
    block_size = max(1, _BLOCK_TOKENS // settings.max_seq_length)
    for first in range(0, len(pairs.a_start), block_size):
        block = pairs.rows(order[first : first + block_size])
        block = truncate(block, settings.token_budget, generator)
        instances = assembler.assemble(block)
        if masker:
            numbers = np.array([[0, first, instances.num_instances]])
            masked = masker.mask(instances.input_ids, instances.input_mask, mask_key, numbers)
            instances = instances._replace(**masked._asdict())
        yield instances


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab_file: str, written_ns: int, do_lower_case: bool) -> Tokenizer:
    """Cached, so that a worker reuses the tokenizer's own cache for all its shards.

    `written_ns` is part of the key because the file of a long-lived Dask worker may change.
    """
    return open_tokenizer(vocab_file, do_lower_case)


def make_shard(
    text_path: str | Path, output_path: str | Path, settings: ExampleSettings, split: str, shard: int
) -> dict[str, int]:
    """Turns a sharded text file into a record file and its index.

    Args:
      split: "training" or "test"; shard: its number in the split. They and `settings.random_seed` are
        the seed.
    Returns: counts for `total_counts`.
    Raises: UserError where the text cannot be read or holds too little, or the disk cannot be written.
    """
    tokenizer = _tokenizer(settings.vocab_file, os.stat(settings.vocab_file).st_mtime_ns, settings.do_lower_case)
    ids = VocabularyIds.of(tokenizer.vocab)
    text = read_text(text_path, tokenizer, settings)
    num_documents = text.num_documents
    try:
        text = with_two_documents(text)
    except UserError as error:
        raise UserError(f"sharded text {text_path} {error}") from None
    counts = Counter(
        num_documents=num_documents,
        num_documents_cut_in_two=text.num_documents - num_documents,
        num_sentences=text.num_sentences,
        num_tokens=len(text.token_ids),
        num_unknown_tokens=int(np.count_nonzero(text.token_ids == ids.unknown)),
    )
    seed = (settings.random_seed, SPLITS.index(split), shard)
    with RecordWriter(output_path) as writer:
        for block in create_instances(text, settings, ids, seed):
            writer.write(block)
            num_real = int(np.count_nonzero(block.input_mask))
            counts.update(
                num_instances=block.num_instances,
                num_random_next=int(block.next_sentence_labels.sum()),
                num_masked_tokens=int(np.count_nonzero(block.masked_lm_weights)),
                num_instance_tokens=num_real,
                num_padding_tokens=block.input_mask.size - num_real,
            )
    return dict(counts)


def total_counts(shards: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """The sums of `make_shard`'s counts, and the shares computed from them."""
    total: Counter[str] = Counter()
    for counts in shards:
        total.update(counts)
    if not total:
        return {}
    positions = total["num_instance_tokens"] + total["num_padding_tokens"]
    return {
        **total,
        "random_next_share": total["num_random_next"] / total["num_instances"],
        "padding_share": total["num_padding_tokens"] / positions,
        "unknown_share": total["num_unknown_tokens"] / total["num_tokens"],
    }
