"""Segments A and B of pre-training instances, drawn from tokenised text by the algorithm of Google's BERT.

A document is read in chunks of sentences that fill the target length. Each chunk is split into A and
B at a random sentence end. Half of the time, and always if the chunk is a single sentence, B is instead a
passage from another document of the shard, and the next chunk begins with the sentences that it
replaced (Devlin et al. 2018, section 3.1 and appendix A.2; the label is 1 for random).

Without next sentence an instance is a single segment: A is as many consecutive sentences of one document as fit, and B
is empty (DOC-SENTENCES of RoBERTa, Liu et al. 2019, section 4.2).

A and B are ranges of the shard's tokens: chunks are found by bisection, and truncation works on hundreds of pairs at
once. This also spares the garbage collector millions of small lists, which would take longer than the pairing itself.

Shape letters: N instances, S sequence.
"""

from __future__ import annotations

import array
import bisect
import itertools
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.records.schema import LONGEST_SEQUENCE, NUM_MARKERS
from bert_tf.records.token_file import TokenizedText
from bert_tf.settings.training import SEED

SUFFIXES = (".pairs", ".segments")  # of the files with pairs, with single segments
SHORTEST_TARGET = 2
SHORTEST_SEQUENCE = NUM_MARKERS + SHORTEST_TARGET
# Tokens truncated and assembled at once, to fit the CPU cache. Changing this changes truncation's random choices.
BLOCK_TOKENS = 1 << 17


class PairSettings(NamedTuple):
    """What pairs depend on, besides the text; `for_length` gives the usual settings."""

    max_seq_length: int
    dupe_factor: int = 5  # passes over the text, each with its own pairs
    random_seed: int = SEED
    short_seq_prob: float = 0.1
    single_segments: bool = False  # instead of pairs

    @classmethod
    def for_length(cls, max_seq_length: int, single_segments: bool, **changes: int) -> PairSettings:
        """The usual settings: as the defaults, but single segments are never made shorter at random."""
        settings = cls(max_seq_length, **changes, single_segments=single_segments)
        return settings._replace(short_seq_prob=0.0) if single_segments else settings

    @property
    def suffix(self) -> str:
        """The end of the name of the file with the pairs; a token file has one for each length and kind."""
        return f".{self.max_seq_length}{SUFFIXES[self.single_segments]}"

    @property
    def kind(self) -> str:
        """What is drawn, in words."""
        return f"{'single segments' if self.single_segments else 'pairs'} of length {self.max_seq_length}"

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())

    @property
    def token_budget(self) -> int:
        """The maximum number of tokens of A and B together."""
        return self.max_seq_length - NUM_MARKERS + self.single_segments

    def check(self, num_predictions: int = 0) -> None:
        """Raises: UserError for a length out of range, or one with too many predictions for it."""
        if not SHORTEST_SEQUENCE <= self.max_seq_length <= LONGEST_SEQUENCE:
            raise UserError(
                f"--max_seq_length={self.max_seq_length}: must be from {SHORTEST_SEQUENCE} to {LONGEST_SEQUENCE}"
            )
        if num_predictions > self.token_budget:
            raise UserError(
                f"--max_predictions_per_seq={num_predictions} with --max_seq_length={self.max_seq_length}: at most "
                f"{self.token_budget} tokens can be masked"
            )


class Pairs(NamedTuple):
    """Segments A and B of N instances as ranges of the shard's tokens, integers [N]; B may be empty."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    is_random_next: np.ndarray  # 0 or 1

    def rows(self, selection: slice | np.ndarray) -> Pairs:
        return Pairs(*(column[selection] for column in self))

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each instance, including [CLS] and [SEP]."""
        b_size = self.b_end - self.b_start
        return self.a_end - self.a_start + b_size + NUM_MARKERS - (b_size == 0)


class Draws(NamedTuple):
    """Independent sources of one shard's random choices."""

    pair_seed: int
    generator: np.random.Generator  # for the order and the truncation
    mask_key: int

    @classmethod
    def from_seed(cls, seed: Iterable[int]) -> Draws:
        """`seed`: non-negative integers that determine all choices."""
        pair_seed, other_seed, mask_seed = np.random.SeedSequence(list(seed)).spawn(3)
        keys = (int(seed.generate_state(1, np.uint64)[0]) for seed in (pair_seed, mask_seed))
        return cls(next(keys), np.random.default_rng(other_seed), next(keys))


def with_two_documents(text: TokenizedText, source: Path) -> TokenizedText:
    """The text itself, but a single document is split into two at its middle sentence.

    A random B must come from another document than A. If a shard contains only one document (a novel),
    its other half serves as another: a passage from that half is rarely A's continuation.

    Raises: UserError, which names the `source`, if there are fewer than two sentences.
    """
    if text.num_sentences < 2:
        raise UserError(
            f"{source} has {text.num_sentences} sentence(s) with a token; a pair needs two: use fewer shards "
            "(--n_training_shards, --n_test_shards) or more text"
        )
    if text.num_documents > 1:
        return text
    return text._replace(document_starts=np.array([0, text.num_sentences // 2, text.num_sentences]))


def draw_pairs(text: TokenizedText, settings: PairSettings, seed: int) -> Pairs:
    """The pairs of all documents, `dupe_factor` times, by Google's algorithm; neither shuffled nor truncated.

    `text` must have at least two documents.
    """
    draw, find = random.Random(seed).random, bisect.bisect_left
    # As lists, because their items are read faster than those of arrays.
    starts, documents = text.sentence_starts.tolist(), text.document_starts.tolist()
    budget, num_documents = settings.token_budget, text.num_documents
    drawn = array.array("i")  # the sentences at which A begins and ends, and B begins and ends; then the label
    passes = itertools.repeat(range(num_documents), settings.dupe_factor)
    for document in itertools.chain.from_iterable(passes):
        sentence, document_end = documents[document], documents[document + 1]
        # The target is drawn once per document, not once per chunk.
        target = budget
        if draw() < settings.short_seq_prob:
            target = SHORTEST_TARGET + int(draw() * (budget - SHORTEST_TARGET + 1))
        while sentence < document_end:
            chunk_start = starts[sentence]
            # The first sentence end that reaches the target, or the document's end.
            end = find(starts, chunk_start + target, sentence + 1, document_end)
            num_sentences = end - sentence
            split = sentence + 1 + int(draw() * (num_sentences - 1))
            if num_sentences > 1 and draw() < 0.5:
                drawn.extend((sentence, split, split, end, 0))
                sentence = end
                continue
            donor = int(draw() * (num_documents - 1))
            donor += donor >= document
            donor_start, donor_end = documents[donor], documents[donor + 1]
            b_start = donor_start + int(draw() * (donor_end - donor_start))
            goal = starts[b_start] + target - (starts[split] - chunk_start)
            b_end = find(starts, goal, b_start + 1, donor_end)
            drawn.extend((sentence, split, b_start, b_end, 1))
            # The sentences after the split were not used: the next chunk starts with them.
            sentence = split
    columns = np.asarray(drawn).reshape(-1, len(Pairs._fields)).T
    for column in columns[:-1]:
        column[:] = text.sentence_starts[column]
    return Pairs(*columns)


def draw_segments(text: TokenizedText, settings: PairSettings, seed: int) -> Pairs:
    """All text as single segments, `dupe_factor` times, not shuffled.

    A segment is as many whole sentences as fit; only a sentence that is longer than a segment is cut. So that the cuts
    fall elsewhere in each pass, a document's first segment is shorter by a random part of what the last one lacks.
    """
    draw = random.Random(seed).random
    starts, documents = text.sentence_starts.tolist(), text.document_starts.tolist()
    budget = settings.token_budget
    drawn = array.array("q")  # the tokens at which each segment begins and ends
    passes = itertools.repeat(range(text.num_documents), settings.dupe_factor)
    for document in itertools.chain.from_iterable(passes):
        sentence, last_sentence = documents[document], documents[document + 1]
        token, document_end = starts[sentence], starts[last_sentence]
        target = budget - int(draw() * (-(document_end - token) % budget + 1))
        while token < document_end:
            sentence = bisect.bisect_right(starts, token + target, sentence, last_sentence + 1) - 1
            end = starts[sentence]
            if end <= token:  # not even one sentence fits
                end = min(starts[sentence + 1], token + budget)
            drawn.extend((token, end))
            token, target = end, budget
    begins, ends = np.asarray(drawn).reshape(-1, 2).T
    return Pairs(begins, ends, ends, ends, np.zeros_like(ends))


def truncate(pairs: Pairs, budget: int, generator: np.random.Generator) -> Pairs:
    """Shortens A and B to `budget` tokens in total.

    Google removes tokens one by one from the longer segment (from B if they are equally long), from
    its front or back with equal probability. So the final sizes follow from the original ones, and of
    k removed tokens a binomial (k, 1/2) number comes from the front.
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


def shuffled_pairs(text: TokenizedText, settings: PairSettings, draws: Draws) -> Iterator[Pairs]:
    """All instances of a shard, shuffled and truncated, in blocks; for pairs, `text` must have two documents."""
    draw = draw_segments if settings.single_segments else draw_pairs
    pairs = draw(text, settings, draws.pair_seed)
    order = draws.generator.permutation(len(pairs.a_start))
    block_size = max(1, BLOCK_TOKENS // settings.max_seq_length)
    for first in range(0, len(order) or 1, block_size):
        block = pairs.rows(order[first : first + block_size])
        yield truncate(block, settings.token_budget, draws.generator)


def assemble(
    tokens: np.ndarray, pairs: Pairs, max_seq_length: int, *, pad: int, cls: int, sep: int
) -> dict[str, np.ndarray]:
    """Joins truncated pairs of the `tokens` [T] into rows and pads them; does not mask.

    Args:
      pad, cls, sep: ids of the special tokens.
    Returns: input_ids, input_mask (1 for real tokens, then 0) and segment_ids, integers [N, S].
    """
    rows, positions = np.arange(len(pairs.a_start)), np.arange(max_seq_length, dtype=np.int32)
    a_size, lengths = pairs.a_end - pairs.a_start, pairs.lengths
    is_real = positions < lengths.astype(np.int32)[:, np.newaxis]
    is_past_a = positions > a_size.astype(np.int32)[:, np.newaxis]
    # Windows are shifted so that A begins at position 1, and B after the [SEP] that follows A.
    input_ids = _windows(tokens, pairs.a_start - 1, max_seq_length)
    np.copyto(input_ids, _windows(tokens, pairs.b_start - a_size - 2, max_seq_length), where=is_past_a)
    np.copyto(input_ids, pad, where=~is_real)
    input_ids[:, 0] = cls
    input_ids[rows, a_size + 1] = input_ids[rows, lengths - 1] = sep
    segment_ids = (is_real & is_past_a).view(np.uint8)
    segment_ids[rows, a_size + 1] = 0
    return {"input_ids": input_ids, "input_mask": is_real.view(np.uint8), "segment_ids": segment_ids}


def _windows(tokens: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """`length` tokens from each of `starts` on; arbitrary tokens before the text begins and after it ends.

    A and B are copied with the tokens around them, which are overwritten later: far faster than token by token.
    """
    if len(tokens) < length:
        tokens = np.resize(tokens, length)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length)
    rows = windows[np.clip(starts, 0, len(windows) - 1)]
    outside = np.flatnonzero((starts < 0) | (starts >= len(windows)))
    rows[outside] = tokens.take(starts[outside, np.newaxis] + np.arange(length), mode="clip")
    return rows
