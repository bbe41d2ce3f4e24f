"""Masking: which tokens are predicted, and what replaces them; static (stored in records) or dynamic (when read).

Of an instance of length L (with [CLS] and [SEP]), min(P, max(1, round(masked_lm_prob * L))) tokens
are predicted, never [CLS] or [SEP]. Of them 80 % become [MASK], 10 % stay and 10 % become a random
token, never a special or an unused one (Devlin et al. 2018, section 3.1).

The unit is a token, a whole word, or an n-gram of up to n neighbouring words; all tokens of a unit are
masked, kept or replaced together. Words are tried in random order, and a word with more tokens than
are still wanted is skipped. For n-grams the size is drawn first, size n with weight 1/n (as in
tf-models-official).

Every choice is a function of (seed, epoch, instance number): the counter of the Philox generator is
set from the instance number, so the result does not depend on other instances, batches or processes.

Shape letters: N instances, S sequence, P masked positions, W words, C candidates.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.records.assembly import assemble
from bert_tf.records.pairs import Pairs
from bert_tf.records.schema import NUM_MARKERS
from bert_tf.text.vocabulary import SPECIAL_TOKENS, UNKNOWN_TOKEN, Tokenizer, continues_word

_UNUSED_TOKEN = re.compile(r"\[unused\d+\]")
# 32 random bits decide: below the first number the token becomes [MASK], else below the second it stays.
MASK_BELOW, KEEP_BELOW = round(0.8 * 2**32), round(0.9 * 2**32)
# In the highest word of Philox's counter, so that masks share no random bits with other uses of the same key.
_STREAM = 1
_PER_COUNT = 8  # 32-bit numbers per count: Philox 4x64 gives 32 bytes
# The low bits of a sort key hold its place in the row.
_PLACE_BITS, _PLACE = np.uint64(16), np.uint64((1 << 16) - 1)


@dataclasses.dataclass(frozen=True)
class MaskingRules:
    """How many tokens are predicted, and in units of which size.

    Raises: UserError for a value out of range.
    """

    masked_lm_prob: float = 0.15
    max_predictions_per_seq: int = 20
    whole_word_masking: bool = False
    max_ngram_size: int = 1  # words that may be masked together

    def __post_init__(self) -> None:
        if not 0 <= self.masked_lm_prob <= 1:
            raise UserError(f"--masked_lm_prob={self.masked_lm_prob} is out of range; give a value from 0 to 1")
        if self.max_predictions_per_seq < 1:
            raise UserError(
                f"--max_predictions_per_seq={self.max_predictions_per_seq} is out of range; give a value >= 1"
            )
        # More words together are never masked, because each has a token.
        if not 1 <= self.max_ngram_size <= self.max_predictions_per_seq:
            raise UserError(
                f"--max_ngram_size={self.max_ngram_size} is out of range; give a value from 1 to "
                f"{self.max_predictions_per_seq} (--max_predictions_per_seq)"
            )
        if self.max_ngram_size > 1 and not self.whole_word_masking:
            raise UserError(
                f"--max_ngram_size={self.max_ngram_size} masks up to so many whole words together; add "
                "--whole_word_masking"
            )


class VocabularyIds(NamedTuple):
    """What masking and instance creation need from a vocabulary."""

    pad: int
    cls: int
    sep: int
    mask: int
    unknown: int
    replacements: np.ndarray  # int32, the ids that may replace a token at random
    continues: np.ndarray | None  # bool by id: whether the token continues the previous token's word; None: not known

    @classmethod
    def of_tokenizer(cls, tokenizer: Tokenizer) -> VocabularyIds:
        """Raises: UserError as `of` does."""
        ids = cls.of(tokenizer.vocab, tokenizer.markers)
        return ids._replace(continues=tokenizer.continues_word())

    @classmethod
    def of(cls, vocab: Mapping[str, int], markers: Collection[str] = SPECIAL_TOKENS) -> VocabularyIds:
        """Raises: UserError if all tokens are special or unused."""
        replacements = [
            token_id for token, token_id in vocab.items() if token not in markers and not _UNUSED_TOKEN.fullmatch(token)
        ]
        if not replacements:
            raise UserError(
                f"the vocabulary's {len(vocab)} tokens are all special or unused; masking needs "
                "some that occur in text: give a vocabulary made from text with --vocab_file"
            )
        return cls(
            vocab["[PAD]"],
            vocab["[CLS]"],
            vocab["[SEP]"],
            vocab["[MASK]"],
            vocab[UNKNOWN_TOKEN],
            np.array(replacements, np.int32),
            continues_word(vocab),
        )


class Masked(NamedTuple):
    """Masked instances, under the names of the records' features."""

    input_ids: np.ndarray  # int32 [N, S] with the replacements
    masked_lm_positions: np.ndarray  # int32 [N, P] ascending, then 0
    masked_lm_ids: np.ndarray  # int32 [N, P] the original tokens there, then 0
    masked_lm_weights: np.ndarray  # float32 [N, P] 1 for a prediction, then 0


class _Choice(NamedTuple):
    """The tokens to predict, ordered by position."""

    positions: np.ndarray  # int32 [N, P], 0 past the chosen ones
    is_chosen: np.ndarray  # bool [N, P], the chosen ones first
    # int64 [N, P] below P; tokens with the same number are masked, kept or replaced together. None: each by itself.
    units: np.ndarray | None


class _Words(NamedTuple):
    """The words of each row as ranges of tokens. Past a row's last word the columns are 0."""

    num_words: np.ndarray  # int64 [N]
    begin: np.ndarray  # int64 [N, W] position of the first token
    end: np.ndarray  # int64 [N, W] position after the last token
    segment: np.ndarray  # int64 [N, W] equal for words without a [SEP] between them


class _Candidates(NamedTuple):
    """The words or n-grams of each instance (a column), in the order in which they are tried (down the rows)."""

    num_candidates: np.ndarray  # int64 [N]
    first_word: np.ndarray  # int64 [C, N]
    num_words: np.ndarray  # int64 [C, N]


class Masker:
    """Masks instances ``[CLS] A [SEP] B [SEP]`` by `rules`, with the ids of a vocabulary."""

    def __init__(self, rules: MaskingRules, ids: VocabularyIds):
        """Raises: UserError if whole words are to be masked, but the tokens do not show which of them continue one."""
        if rules.whole_word_masking and ids.continues is None:
            raise UserError(
                "--whole_word_masking: the tokens of this tokenizer.json do not show whether they continue a word, as "
                "## in WordPiece and \u2581 of SentencePiece do; leave it out, or use such a vocabulary"
            )
        self.rules, self.ids = rules, ids

    def instances(
        self, tokens: np.ndarray, pairs: Pairs, max_seq_length: int, *, seed: int, ranges: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The features [N, ...] of masked instances, by the records' names.

        Args:
          tokens: integers [T].
          pairs: ranges of `tokens`, truncated.
          seed, ranges: see `mask`.
        """
        ids = self.ids
        rows = assemble(tokens, pairs, max_seq_length, pad=ids.pad, cls=ids.cls, sep=ids.sep)
        masked = self.mask(rows["input_ids"], rows["input_mask"], seed, ranges)
        return {**rows, **masked._asdict(), "next_sentence_labels": pairs.is_random_next[:, np.newaxis]}

    def mask(self, input_ids: np.ndarray, input_mask: np.ndarray, seed: int, ranges: np.ndarray) -> Masked:
        """Masks unmasked instances; does not change its arguments.

        Fastest with about 2^17 tokens per call, whose arrays stay in the CPU's cache.

        Args:
          input_ids: integers [N, S].
          input_mask: [N, S], 1 for real tokens, then 0.
          ranges: int64 [R, 3] of (epoch, number of the first instance, number of instances); the rows
            are these instances in order.
        """
        rules, ids = self.rules, self.ids
        num_predictions = rules.max_predictions_per_seq
        bits = _random_bits(seed, ranges, self._num_order_bits(input_ids.shape[1]) + 2 * num_predictions)
        orders, fates, draws = np.split(bits, [-2 * num_predictions, -num_predictions], axis=1)
        lengths = np.count_nonzero(input_mask, axis=1)
        num_candidates = lengths - NUM_MARKERS
        a_size = np.argmax(input_ids == ids.sep, axis=1) - 1
        wanted = np.rint(lengths * rules.masked_lm_prob).astype(np.int64)
        wanted = np.minimum(np.clip(wanted, 1, num_predictions), num_candidates)
        if rules.whole_word_masking:
            choice = self._choose_words(input_ids, a_size, num_candidates, wanted, orders)
        else:
            choice = _choose_tokens(a_size, num_candidates, wanted, orders)

        if choice.units is not None:
            fates = np.take_along_axis(fates, choice.units, axis=1)
        # Past the chosen positions this is the place of [CLS], which is replaced by itself.
        places = choice.positions + np.arange(0, input_ids.size, input_ids.shape[1])[:, np.newaxis]
        originals = input_ids.take(places).astype(np.int32)
        replaced = np.where(fates < KEEP_BELOW, originals, ids.replacements.take(_below(len(ids.replacements), draws)))
        replaced[fates < MASK_BELOW] = ids.mask
        masked = input_ids.astype(np.int32)
        masked.put(places, np.where(choice.is_chosen, replaced, originals))
        return Masked(
            masked, choice.positions, np.where(choice.is_chosen, originals, 0), choice.is_chosen.astype(np.float32)
        )

    def _num_order_bits(self, length: int) -> int:
        """How many random numbers per instance decide which tokens are predicted."""
        if not self.rules.whole_word_masking:
            return self.rules.max_predictions_per_seq
        # One per place where a word may begin; with n-grams, two per place and size (`_order_candidates`).
        return length if self.rules.max_ngram_size == 1 else 2 * self.rules.max_ngram_size * length

    def _choose_words(
        self,
        input_ids: np.ndarray,
        a_size: np.ndarray,
        num_candidates: np.ndarray,
        wanted: np.ndarray,
        orders: np.ndarray,
    ) -> _Choice:
        """Chooses words or n-grams until `wanted` tokens are chosen or no candidate fits."""
        max_size, num_predictions = self.rules.max_ngram_size, self.rules.max_predictions_per_seq
        places = np.arange(input_ids.shape[1])
        is_candidate = (places > 0) & (places < num_candidates[:, np.newaxis] + 2)
        is_candidate[np.arange(len(a_size)), a_size + 1] = False
        assert self.ids.continues is not None
        words = _find_words(is_candidate, self.ids.continues.take(input_ids))
        candidates = _order_candidates(words, max_size, orders)
        left = wanted.copy()
        # With a margin on the right, so that n-grams can be looked up past a row's last word.
        is_covered = np.zeros([len(left), words.begin.shape[1] + max_size], bool)
        unit_sizes = np.zeros([len(candidates.first_word), len(left)], np.int64)
        rows = np.arange(len(left))
        for step, (first_words, sizes) in enumerate(zip(candidates.first_word, candidates.num_words)):
            rows = rows[(left[rows] > 0) & (candidates.num_candidates[rows] > step)]
            if not len(rows):
                break
            first, size = first_words[rows], sizes[rows]
            num_tokens = words.end[rows, first + size - 1] - words.begin[rows, first]
            fits = num_tokens <= left[rows]
            for other in range(max_size):
                fits &= (other >= size) | ~is_covered[rows, first + other]
            num_tokens *= fits
            left[rows] -= num_tokens
            unit_sizes[step, rows] = num_tokens
            for other in range(max_size):
                is_covered[rows, first + other] |= fits & (other < size)
        unit, row = np.nonzero(unit_sizes)
        unit_of = np.full(input_ids.shape, -1)
        size = unit_sizes[unit, row]
        unit_of[np.repeat(row, size), _count_on(words.begin[row, candidates.first_word[unit, row]], size)] = np.repeat(
            unit, size
        )
        return _as_choice(unit_of, num_predictions)


def _random_bits(seed: int, ranges: np.ndarray, num_columns: int) -> np.ndarray:
    """uint32 [N, num_columns]; a row is a function of (seed, its epoch, its instance number)."""
    num_counts = -(-num_columns // _PER_COUNT)
    generator = np.random.Philox(key=[seed, 0])
    state = generator.state  # modified for each range: a new generator would take ten times as long
    parts = []
    for epoch, first, count in ranges.tolist():
        state["state"]["key"][1] = epoch
        state["state"]["counter"][:] = [first * num_counts, 0, 0, _STREAM]
        generator.state = state
        # Of each raw 64-bit number the low half comes first, whatever the machine's byte order.
        raw = generator.random_raw(count * num_counts * _PER_COUNT // 2).astype("<u8", copy=False)
        parts.append(raw.view("<u4").reshape(count, -1))
    return np.concatenate(parts)[:, :num_columns].astype(np.uint32, copy=False)


def _below(limit: int | np.ndarray, bits: np.ndarray) -> np.ndarray:
    """int64, uniform in [0, limit): the upper half of the product with 32 random bits."""
    return (bits.astype(np.int64) * limit) >> 32


def _choose_tokens(a_size: np.ndarray, num_candidates: np.ndarray, wanted: np.ndarray, bits: np.ndarray) -> _Choice:
    """Chooses single tokens, each its own unit, by the first steps of a Fisher-Yates shuffle, for all rows at once."""
    num, num_predictions = bits.shape
    rows, most = np.arange(num), int(num_candidates.max())
    order = np.repeat(np.arange(most, dtype=np.int32), num)
    steps = np.arange(wanted.max())[:, np.newaxis]
    # A row that already has all its tokens swaps a place with itself.
    left = np.where(steps < wanted, num_candidates - steps, 0)
    others = (_below(left, bits.T[: len(steps)]) + steps) * num + rows
    for here, other in zip(order.reshape(most, num), others):
        drawn = order.take(other, mode="clip")
        order[other] = here
        here[:] = drawn
    is_chosen = np.arange(num_predictions) < wanted[:, np.newaxis]
    chosen = np.full([num, num_predictions], most, np.int32)
    np.copyto(chosen[:, :most], order.reshape(most, num)[:num_predictions].T, where=is_chosen[:, :most])
    chosen.sort(axis=1)
    # [CLS] precedes A, and the first [SEP] stands between A and B.
    chosen += 1 + (chosen >= a_size.astype(np.int32)[:, np.newaxis])
    return _Choice(np.where(is_chosen, chosen, 0), is_chosen, units=None)


def _find_words(is_candidate: np.ndarray, continues: np.ndarray) -> _Words:
    """The words formed by the candidate tokens; after [CLS] or [SEP] any token begins a word."""
    before, after = np.zeros_like(is_candidate), np.zeros_like(is_candidate)
    before[:, 1:] = is_candidate[:, :-1]
    is_first = is_candidate & ~(continues & before)
    after[:, :-1] = (is_candidate & ~is_first)[:, 1:]
    rows, begin = np.nonzero(is_first)
    end = np.nonzero(is_candidate & ~after)[1] + 1
    count = is_first.sum(axis=1)
    number = _count_on(np.zeros_like(count), count)
    begin_NxW, end_NxW, gaps_NxW = np.zeros([3, len(count), int(count.max(initial=0))], np.int64)
    begin_NxW[rows, number], end_NxW[rows, number] = begin, end
    gaps_NxW[:, 1:] = begin_NxW[:, 1:] != end_NxW[:, :-1]
    return _Words(count, begin_NxW, end_NxW, gaps_NxW.cumsum(axis=1))


def _order_candidates(words: _Words, max_size: int, orders: np.ndarray) -> _Candidates:
    """All n-grams of up to `max_size` words without a [SEP] inside, in the order in which they are tried.

    The rule: draw a size n with weight 1/n, take the next n-gram of that size in random order, repeat.
    All draws are made at once: the n-grams of size n are the events of a Poisson process of rate 1/n,
    with exponentially distributed intervals of mean n, and all n-grams are sorted by time.
    """
    num, most = words.begin.shape
    length = orders.shape[1] // (2 * max_size if max_size > 1 else 1)
    numbers = np.arange(most)
    count = np.zeros(num, np.int64)
    firsts, clocks = np.zeros([2, num, max_size, most], np.int64)
    for size in range(1, max_size + 1):
        is_ngram = numbers + size <= words.num_words[:, np.newaxis]
        is_ngram[:, : max(most - size + 1, 0)] &= (
            words.segment[:, size - 1 :] == words.segment[:, : max(most - size + 1, 0)]
        )
        start = (size - 1) * length
        keys = orders[:, start : start + most].astype(np.uint64) << _PLACE_BITS
        keys[~is_ngram] = ~_PLACE
        first = _sorted_places(keys)
        if max_size == 1:
            return _Candidates(words.num_words, np.ascontiguousarray(first.T), np.ones_like(first.T))
        start += max_size * length
        # In (0, 1]: never 0, whose logarithm is infinite.
        uniform = (orders[:, start : start + most] + 1.0) * 2.0**-32
        times = np.cumsum(-size * np.log(uniform), axis=1)
        times[numbers >= is_ngram.sum(axis=1, keepdims=True)] = np.inf
        firsts[:, size - 1], clocks[:, size - 1] = first, times.view(np.int64)
        count += is_ngram.sum(axis=1)
    # Positive floats sort like their bit patterns; the lowest bits are replaced by the place.
    order = _sorted_places(clocks.reshape(num, -1).view(np.uint64) & ~_PLACE)
    first = np.take_along_axis(firsts.reshape(num, -1), order, axis=1)
    return _Candidates(count, np.ascontiguousarray(first.T), np.ascontiguousarray(order.T) // most + 1)


def _sorted_places(keys: np.ndarray) -> np.ndarray:
    """argsort along rows, but faster; the keys are uint64 [N, K] whose 16 low bits are 0."""
    places = keys | np.arange(keys.shape[1], dtype=np.uint64)
    places.sort(axis=1)
    return (places & _PLACE).astype(np.int64)


def _as_choice(unit_of: np.ndarray, num_predictions: int) -> _Choice:
    """The choice that `unit_of` [N, S] describes: each token's unit or -1; adjacent units have different numbers."""
    rows, position = np.nonzero(unit_of >= 0)
    count = np.bincount(rows, minlength=len(unit_of))
    slot = _count_on(np.zeros_like(count), count)
    positions, units = np.zeros([2, len(unit_of), num_predictions], np.int64)
    positions[rows, slot] = position
    units[rows, slot] = unit_of[rows, position]
    # A unit's tokens are adjacent. Numbered from 0 in order, units stay below the number of predictions.
    units[:, 1:] = np.cumsum(units[:, 1:] != units[:, :-1], axis=1)
    units[:, 0] = 0
    return _Choice(positions.astype(np.int32), np.arange(num_predictions) < count[:, np.newaxis], units)


def _count_on(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """`count[0]` consecutive numbers from `first[0]` on, then `count[1]` from `first[1]` on, and so on."""
    ends = np.cumsum(count)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + count, count)
