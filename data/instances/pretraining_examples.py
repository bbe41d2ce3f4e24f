"""Pre-training instances from a shard of text, by the algorithm of Google's BERT.

A document is walked through in chunks of sentences that fill the target length. Each chunk is cut
into A and B at a random sentence; half of the time, and always where the chunk is one sentence, B
is a passage from another document of the shard instead, and the sentences it replaced are put back
for the next chunk (Devlin et al. 2018, section 3.1 and appendix A.2; the label is 1 for random).

The shard's tokens are one flat array, so that A and B are ranges of it until the very end: chunks
are found by bisection, and truncating, joining and masking work on hundreds of instances at once.
It also leaves the garbage collector nothing to visit; millions of small lists would cost it more
than the pairing itself.

Every choice comes from (seed, split, shard): the same text gives the same bytes, whichever process
makes a shard, and no two shards share their choices.

A shard is worked on whole as long as that takes less than `SECTION_BYTES`, some 500 MB of English. A
larger one, or a larger document, is worked on in sections of that size, each as if it were a shard.

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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.records.schema import LONGEST_SEQUENCE, InstanceArrays
from bert_tf.records.writer import RecordWriter
from bert_tf.text.tokenizer import Tokenizer, open_tokenizer

SPLITS = ("training", "test")
# Masks are drawn when the records are made, or each time they are read.
MASKINGS = ("static", "dynamic")
# [CLS] A [SEP] B [SEP]
_NUM_MARKERS = 3
_SHORTEST_TARGET = 2
# Read at once. Larger blocks take no less time, and the processor's cache should hold their words.
_BLOCK_BYTES = 1 << 17
# Assembled at once, so that it fits a processor's cache. The choices of truncation depend on it.
_BLOCK_TOKENS = 1 << 17
# What the tokens and pairs of a section may take; a process takes some 250 MB besides.
SECTION_BYTES = 1 << 29
# Five numbers of 32 bits, and a place in the shuffled order.
_PAIR_BYTES = 28


@dataclasses.dataclass(frozen=True)
class ExampleSettings:
    """What the instances of a data set have in common.

    Raises: UserError for a value out of range.
    """

    vocab_file: str
    do_lower_case: bool = True
    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    dupe_factor: int = 5
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    random_seed: int = 12345
    masking: str = "static"
    whole_word_masking: bool = False
    max_ngram_size: int = 1

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
                limit = f"from {low} on" if high is None else f"from {low} to {high}"
                raise UserError(f"--{name}={value} is out of range; give a value {limit}")
        self.masking_rules  # noqa: B018 - has rules of its own
        if self.masking == "dynamic" and self.dupe_factor != 1:
            raise UserError(
                f"--dupe_factor={self.dupe_factor} with --masking=dynamic: copies differ by their masks, and "
                "dynamic masks are new in every epoch anyway; leave --dupe_factor out"
            )

    @property
    def masking_rules(self) -> MaskingRules:
        return MaskingRules(
            self.masked_lm_prob, self.max_predictions_per_seq, self.whole_word_masking, self.max_ngram_size
        )

    @property
    def token_budget(self) -> int:
        """Most tokens of A and B together."""
        return self.max_seq_length - _NUM_MARKERS


class TokenizedText(NamedTuple):
    """Documents of sentences of tokens, flat; no sentence and no document is empty."""

    token_ids: np.ndarray  # uint16 or int32 [T]
    sentence_starts: np.ndarray  # int64 [sentences + 1] first token; last: T
    document_starts: np.ndarray  # int64 [documents + 1] first sentence; last: number of sentences
    is_continued: bool = False  # the first document began in the section before

    @property
    def num_documents(self) -> int:
        return len(self.document_starts) - 1

    @property
    def num_sentences(self) -> int:
        return len(self.sentence_starts) - 1


class _Lines(NamedTuple):
    """The tokens of some lines of a sharded text file."""

    token_ids: np.ndarray
    sizes: np.ndarray  # tokens of each line
    blanks: np.ndarray  # the lines that part documents

    @property
    def num_sentences(self) -> int:
        return int(np.count_nonzero(self.sizes))


class _Section:
    """A `TokenizedText` that grows."""

    def __init__(self, id_type: np.dtype, is_continued: bool = False):
        # Grown in place: parts that are joined at the end would take twice the memory.
        self._tokens = array.array(id_type.char)
        self._sentences, self._documents = array.array("q", [0]), array.array("q", [0])
        self._is_continued = is_continued

    @property
    def num_sentences(self) -> int:
        return len(self._sentences) - 1

    @property
    def is_inside_document(self) -> bool:
        return self.num_sentences > self._documents[-1]

    def add(self, lines: _Lines) -> None:
        """Sentences and documents without a token are left out."""
        sentences = np.flatnonzero(lines.sizes)
        document_ends = self.num_sentences + np.searchsorted(sentences, lines.blanks)
        # The section before it ended with a document.
        self._is_continued &= 0 not in document_ends
        self._sentences.frombytes((len(self._tokens) + np.cumsum(lines.sizes[sentences])).tobytes())
        self._tokens.frombytes(lines.token_ids.tobytes())
        self._end_documents(document_ends)

    def _end_documents(self, ends: np.ndarray) -> None:
        """Where a document is empty, two ends are the same."""
        self._documents.frombytes(np.unique(ends[ends > self._documents[-1]]).tobytes())

    def num_bytes(self, settings: ExampleSettings) -> int:
        """What making instances of it takes, for text of any kind: a chunk that is replaced by a
        random next is walked through twice, and each document has a last chunk."""
        num_tokens, num_documents = len(self._tokens), len(self._documents)
        num_pairs = settings.dupe_factor * (num_documents + 2 * num_tokens // settings.max_seq_length)
        return (
            num_tokens * self._tokens.itemsize
            + (self.num_sentences + num_documents) * self._sentences.itemsize
            + num_pairs * _PAIR_BYTES
        )

    def text(self) -> TokenizedText:
        """All of it, which ends the last document."""
        self._end_documents(np.array([self.num_sentences]))
        # The arrays themselves, not copies of them.
        tokens, sentences, documents = map(np.asarray, (self._tokens, self._sentences, self._documents))
        return TokenizedText(tokens, sentences, documents, self._is_continued)


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
    """The file in blocks of whole lines; the last line gets an end where it has none."""
    while block := file.read(_BLOCK_BYTES):
        # Only "\n" ends a line: the text may hold other characters that Python counts as line ends.
        block += file.readline()
        block.decode()
        yield block if block.endswith(b"\n") else block + b"\n"


def _tokenized_lines(path: str | Path, tokenizer: Tokenizer, id_type: np.dtype) -> Iterator[_Lines]:
    """Raises: UserError where the file cannot be read or is not UTF-8."""
    try:
        with open(path, "rb") as file:
            for block in _blocks_of_lines(file):
                ids, sizes = tokenizer.tokenize_lines(block)
                lines = block.split(b"\n")
                empty = np.flatnonzero(sizes == 0)
                is_blank = [not lines[number].decode().strip() for number in empty.tolist()]
                yield _Lines(ids.astype(id_type), sizes, empty[np.array(is_blank, bool)])
    except OSError as error:
        raise UserError(
            f"sharded text {path} cannot be read ({error.strerror}); run bertPrep.py --action sharding first"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"sharded text {path} is not UTF-8 ({error.reason}); delete it and run bertPrep.py --action sharding again"
        ) from error


def read_sections(path: str | Path, tokenizer: Tokenizer, settings: ExampleSettings) -> Iterator[TokenizedText]:
    """Tokenises a sharded text file: a sentence a line, a blank line between documents.

    Sentences without a token are left out. Nearly always there is one section. Where there are
    several, none is too short for a pair.

    Raises: UserError where the file cannot be read or is not UTF-8.
    """
    id_type = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)
    section = _Section(id_type)
    # Lines that begin a section if two sentences are among them.
    waiting: list[_Lines] = []
    for lines in _tokenized_lines(path, tokenizer, id_type):
        waiting.append(lines)
        if section.num_sentences > 1 and section.num_bytes(settings) >= SECTION_BYTES:
            if sum(block.num_sentences for block in waiting) < 2:
                continue
            is_continued = section.is_inside_document
            yield section.text()
            section = _Section(id_type, is_continued)
        while waiting:
            section.add(waiting.pop(0))
    for lines in waiting:
        section.add(lines)
    yield section.text()


def with_two_documents(text: TokenizedText) -> TokenizedText:
    """The text itself, or a single document cut into two at its middle sentence.

    A random next sentence must come from another document than A. Where there is none (a shard that
    is one novel), the other half of the only one serves: far more often than not it is not A's
    continuation, and the shard is not lost.

    Raises: UserError where there is nothing, or a single sentence.
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
    """Google's walk through all documents, `dupe_factor` times; not shuffled, not truncated.

    `text` has at least two documents.
    """
    draw = random.Random(seed).random
    # Lists of Python's integers would take five times the memory.
    starts, documents = text.sentence_starts.data, text.document_starts.data
    budget, num_documents = settings.token_budget, text.num_documents
    found = array.array("i")
    walks = itertools.repeat(range(num_documents), settings.dupe_factor)
    for document in itertools.chain.from_iterable(walks):
        place, document_end = documents[document : document + 2]
        # Once a document, not once a chunk.
        target = budget
        if draw() < settings.short_seq_prob:
            target = _SHORTEST_TARGET + int(draw() * (budget - _SHORTEST_TARGET + 1))
        while place < document_end:
            chunk_start = starts[place]
            # The first sentence end that reaches the target, or the document's.
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

    Google takes tokens one by one from the longer segment (from B where they are equally long),
    each from the front or the back by a fair coin. The sizes that are left follow from the sizes
    before; how many of the k lost tokens were at the front is binomial (k, 1/2).
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
    """Joins truncated pairs to ``[CLS] A [SEP] B [SEP]`` and pads them; without masks."""

    def __init__(self, text: TokenizedText, max_seq_length: int, ids: VocabularyIds):
        self._ids = ids
        # Every run of S tokens as a row. A and B are copied as a whole with what is beside them, which
        # is overwritten: far faster than gathering tokens.
        tokens = text.token_ids
        self._tokens = tokens if len(tokens) >= max_seq_length else np.resize(tokens, max_seq_length)
        self._runs = np.lib.stride_tricks.sliding_window_view(self._tokens, max_seq_length)

    def _copy_runs(self, starts: np.ndarray) -> np.ndarray:
        """The runs that begin at these tokens; what is past the text's two ends may be anything."""
        num_runs, length = self._runs.shape
        found = self._runs[np.clip(starts, 0, num_runs - 1)]
        past = np.flatnonzero((starts < 0) | (starts >= num_runs))
        found[past] = self._tokens.take(starts[past, np.newaxis] + np.arange(length), mode="clip")
        return found

    def assemble(self, pairs: Pairs) -> InstanceArrays:
        num, length = len(pairs.a_start), self._runs.shape[1]
        a_size = pairs.a_end - pairs.a_start
        lengths = a_size + pairs.b_end - pairs.b_start + _NUM_MARKERS
        rows, places = np.arange(num), np.arange(length, dtype=np.int32)
        is_real = places < lengths.astype(np.int32)[:, np.newaxis]
        is_past_a = places > a_size.astype(np.int32)[:, np.newaxis]
        # So that A begins at place 1, and B behind the [SEP] that follows A.
        input_ids = self._copy_runs(pairs.a_start - 1)
        np.copyto(input_ids, self._copy_runs(pairs.b_start - a_size - 2), where=is_past_a)
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
    """All instances of a shard, shuffled, in blocks; `text` has at least two documents.

    `seed`: integers from 0 on, which all choices follow from.
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
            run = np.array([[0, first, instances.num_instances]])
            masked = masker.mask(instances.input_ids, instances.input_mask, mask_key, run)
            instances = instances._replace(**masked._asdict())
        yield instances


@functools.lru_cache(maxsize=1)
def _tokenizer(vocab_file: str, written_ns: int, do_lower_case: bool) -> Tokenizer:
    """A worker makes many shards: the words it remembers serve all of them.

    A Dask worker may outlive a vocabulary, and see another one under the same name.
    """
    return open_tokenizer(vocab_file, do_lower_case)


def make_shard(
    text_path: str | Path, output_path: str | Path, settings: ExampleSettings, split: str, shard: int
) -> dict[str, int]:
    """Turns a sharded text file into a record file and its index.

    Args:
      split: "training" or "test"; shard: its number in the split. With `settings.random_seed` they
        are the seed.
    Returns: counts, as `total_counts` adds them up.
    Raises: UserError where the text cannot be read or holds too little, or nothing can be written.
    """
    tokenizer = _tokenizer(settings.vocab_file, os.stat(settings.vocab_file).st_mtime_ns, settings.do_lower_case)
    ids = VocabularyIds.of(tokenizer.vocab)
    counts: dict[str, int] = {}
    with RecordWriter(output_path) as writer:

        def write(number: int, text: TokenizedText) -> dict[str, int]:
            seed = (settings.random_seed, SPLITS.index(split), shard, *([number] if number else []))
            try:
                paired = with_two_documents(text)
            except UserError as error:
                raise UserError(f"sharded text {text_path} {error}") from None
            return _write_section(writer, paired, text.num_documents, settings, ids, seed)

        # Not a loop over the sections, whose variable would hold one while the next is read.
        for of_section in map(write, itertools.count(), read_sections(text_path, tokenizer, settings)):
            for name, count in of_section.items():
                counts[name] = counts.get(name, 0) + count
    return counts


def _write_section(
    writer: RecordWriter,
    text: TokenizedText,
    num_documents: int,
    settings: ExampleSettings,
    ids: VocabularyIds,
    seed: Iterable[int],
) -> dict[str, int]:
    """`num_documents`: before one was cut in two."""
    counts = {
        "num_documents": num_documents - text.is_continued,
        "num_documents_cut_in_two": text.num_documents - num_documents + text.is_continued,
        "num_sentences": text.num_sentences,
        "num_tokens": len(text.token_ids),
        "num_unknown_tokens": int(np.count_nonzero(text.token_ids == ids.unknown)),
        "num_instances": 0,
        "num_random_next": 0,
        "num_masked_tokens": 0,
        "num_instance_tokens": 0,
        "num_padding_tokens": 0,
    }
    for block in create_instances(text, settings, ids, seed):
        writer.write(block)
        num_real = int(np.count_nonzero(block.input_mask))
        counts["num_instances"] += block.num_instances
        counts["num_random_next"] += int(block.next_sentence_labels.sum())
        counts["num_masked_tokens"] += int(np.count_nonzero(block.masked_lm_weights))
        counts["num_instance_tokens"] += num_real
        counts["num_padding_tokens"] += block.input_mask.size - num_real
    return counts


def total_counts(shards: Iterable[Mapping[str, int]]) -> dict[str, float]:
    """The sums of `make_shard`'s counts, and the shares that follow from them."""
    total: dict[str, float] = {}
    for counts in shards:
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    if total:
        positions = total["num_instance_tokens"] + total["num_padding_tokens"]
        total["random_next_share"] = total["num_random_next"] / total["num_instances"]
        total["padding_share"] = total["num_padding_tokens"] / positions
        total["unknown_share"] = total["num_unknown_tokens"] / total["num_tokens"]
    return total
