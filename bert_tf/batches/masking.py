"""Masking: which tokens are predicted, and what replaces them; static (stored in records) or dynamic (when read).

Of an instance of length L (with [CLS] and [SEP]), min(P, max(1, round(masked_lm_prob * L))) tokens
are predicted, never [CLS] or [SEP]. Of them 80 % become [MASK], 10 % stay and 10 % become a random
token, never a special or an unused one (Devlin et al. 2018, section 3.1).

The unit is a token or a whole word, whose tokens are masked, kept or replaced together. Words are tried
in random order, and a word with more tokens than are still wanted is skipped.

Every choice is a function of (seed, epoch, instance number): the counter of the Philox generator is
set from the instance number, so the result does not depend on other instances, batches or processes.

Shape letters: N instances, S sequence, P masked positions, W words.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.records.schema import NUM_MARKERS
from bert_tf.text.vocabulary import SPECIAL_TOKENS, UNKNOWN_TOKEN, Tokenizer, continues_word

_UNUSED_TOKEN = re.compile(r"\[unused\d+\]")
# 32 random bits decide: below the first number the token becomes [MASK], else below the second it stays.
MASK_BELOW, KEEP_BELOW = round(0.8 * 2**32), round(0.9 * 2**32)
# In the highest word of Philox's counter, so that masks share no random bits with other uses of the same key.
_STREAM = 1
_PER_COUNT = 8  # 32-bit numbers per count: Philox 4x64 gives 32 bytes
# What records and runs of earlier versions name besides, with the only value that is read.
WITHOUT_NGRAMS = {"max_ngram_size": 1}
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

    def __post_init__(self) -> None:
        if not 0 <= self.masked_lm_prob <= 1:
            raise UserError(f"--masked_lm_prob={self.masked_lm_prob} is out of range; give a value from 0 to 1")
        if self.max_predictions_per_seq < 1:
            raise UserError(
                f"--max_predictions_per_seq={self.max_predictions_per_seq} is out of range; give a value >= 1"
            )

    def to_json(self) -> dict[str, Any]:
        """As in config.json and in the hash of a run's files, where earlier versions wrote the size of n-grams, too."""
        return {**dataclasses.asdict(self), **WITHOUT_NGRAMS}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> MaskingRules:
        """Raises: UserError for a value out of range, TypeError for an unknown one."""
        rules = {name: value for name, value in content.items() if WITHOUT_NGRAMS.get(name) != value}
        if WITHOUT_NGRAMS.keys() & rules.keys():
            raise UserError(f"max_ngram_size={rules['max_ngram_size']}: n-grams are not masked any more, only words")
        return cls(**rules)


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
        bits = self.random_bits(input_ids.shape[1], seed, ranges)
        orders, fates, draws = np.split(bits, [-2 * num_predictions, -num_predictions], axis=1)
        lengths = np.count_nonzero(input_mask, axis=1)
        num_candidates = lengths - NUM_MARKERS
        a_size = np.argmax(input_ids == ids.sep, axis=1) - 1
        wanted = self.num_masked(lengths)
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

    def num_masked(self, lengths: np.ndarray) -> np.ndarray:
        """int64 [N]: how many tokens are predicted in instances of these `lengths`, which include [CLS] and [SEP]."""
        wanted = np.rint(lengths * self.rules.masked_lm_prob).astype(np.int64)
        return np.minimum(np.clip(wanted, 1, self.rules.max_predictions_per_seq), lengths - NUM_MARKERS)

    def random_bits(self, length: int, seed: int, ranges: np.ndarray) -> np.ndarray:
        """uint32 [N, ... + 2 P] for instances with S = `length`: for their order, fates and replacements."""
        num_columns = self._num_order_bits(length) + 2 * self.rules.max_predictions_per_seq
        return _random_bits(seed, ranges, num_columns)

    def _num_order_bits(self, length: int) -> int:
        """How many random numbers per instance decide which tokens are predicted."""
        # Of words, one per place where one may begin.
        return length if self.rules.whole_word_masking else self.rules.max_predictions_per_seq

    def _choose_words(
        self,
        input_ids: np.ndarray,
        a_size: np.ndarray,
        num_candidates: np.ndarray,
        wanted: np.ndarray,
        orders: np.ndarray,
    ) -> _Choice:
        """Chooses words until `wanted` tokens are chosen or no word fits."""
        places = np.arange(input_ids.shape[1])
        is_candidate = (places > 0) & (places < num_candidates[:, np.newaxis] + 2)
        is_candidate[np.arange(len(a_size)), a_size + 1] = False
        assert self.ids.continues is not None
        words = _find_words(is_candidate, self.ids.continues.take(input_ids))
        order = _random_order(words, orders)
        sizes = np.take_along_axis(words.end - words.begin, order, axis=1).T.copy()
        left = wanted.copy()
        unit_sizes = np.zeros_like(sizes)
        rows = np.arange(len(left))
        for step, size in enumerate(sizes):
            rows = rows[(left[rows] > 0) & (words.num_words[rows] > step)]
            if not len(rows):
                break
            num_tokens = size[rows]
            num_tokens *= num_tokens <= left[rows]
            left[rows] -= num_tokens
            unit_sizes[step, rows] = num_tokens
        unit, row = np.nonzero(unit_sizes)
        unit_of = np.full(input_ids.shape, -1)
        size = unit_sizes[unit, row]
        columns = _count_on(words.begin[row, order[row, unit]], size)
        unit_of[np.repeat(row, size), columns] = np.repeat(unit, size)
        return _as_choice(unit_of, self.rules.max_predictions_per_seq)


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
    begin_NxW, end_NxW = np.zeros([2, len(count), int(count.max(initial=0))], np.int64)
    begin_NxW[rows, number], end_NxW[rows, number] = begin, end
    return _Words(count, begin_NxW, end_NxW)


def _random_order(words: _Words, orders: np.ndarray) -> np.ndarray:
    """The words of each row in the order in which they are tried, int64 [N, W]."""
    most = words.begin.shape[1]
    keys = orders[:, :most].astype(np.uint64) << _PLACE_BITS
    keys[np.arange(most) >= words.num_words[:, np.newaxis]] = ~_PLACE
    return _sorted_places(keys)


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
