"""Masking: which tokens are predicted, and what replaces them; static (stored in records) or dynamic (when read).

Of an instance of length L (with [CLS] and [SEP]), min(P, max(1, round(masked_lm_prob * L))) tokens
are predicted, never [CLS] or [SEP]. Of them 80 % become [MASK], 10 % stay and 10 % become a random
token, never a special or an unused one (Devlin et al. 2018, section 3.1).

The unit is a token or a whole word; all tokens of a unit are masked, kept or replaced together. Words are
tried in random order, and a word with more tokens than are still to be chosen is skipped.

Every choice is a function of (seed, epoch, instance number): the counter of the Philox generator is
set from the instance number, so the result does not depend on other instances, batches or processes.

Shape letters: N instances, S sequence, P masked positions, W words.
"""

from __future__ import annotations

import dataclasses
import re
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.records.pairs import Pairs, assemble
from bert_tf.records.schema import NUM_MARKERS
from bert_tf.settings.declaration import same_setting
from bert_tf.settings.preparation import PreparationOptions
from bert_tf.settings.programs import MaskingOptions
from bert_tf.text.vocabulary import SPECIAL_TOKENS, Tokenizer

_UNUSED_TOKEN = re.compile(r"\[unused\d+\]")
# 32 random bits decide: below the first number the token becomes [MASK], else below the second it stays.
MASK_BELOW, KEEP_BELOW = round(0.8 * 2**32), round(0.9 * 2**32)
# In the highest word of Philox's counter, so that masks share no random bits with other uses of the same key.
_STREAM = 1
_PER_COUNT = 8  # 32-bit numbers per count: Philox 4x64 gives 32 bytes
# The low bits of a sort key hold the number of its word in the row.
_NUMBER_BITS, _NUMBER_MASK = np.uint64(16), np.uint64((1 << 16) - 1)


@dataclasses.dataclass(frozen=True)
class MaskingRules:
    """How many tokens are predicted, and whether whole words are masked together."""

    masked_lm_prob: float = same_setting(MaskingOptions, "masked_lm_prob")
    max_predictions_per_seq: int = same_setting(PreparationOptions, "max_predictions_per_seq")
    whole_word_masking: bool = same_setting(MaskingOptions, "whole_word_masking")


class VocabularyIds(NamedTuple):
    """What masking and instance creation need from a vocabulary."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    replacements: np.ndarray  # int32, the ids that may replace a token at random
    # bool by id: whether the token continues the previous token's word; None: not known
    continues_word: np.ndarray | None

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer) -> VocabularyIds:
        """Raises: UserError if all tokens are special or unused."""
        vocab, markers = tokenizer.vocab, tokenizer.markers
        replacements = [
            token_id for token, token_id in vocab.items() if token not in markers and not _UNUSED_TOKEN.fullmatch(token)
        ]
        if not replacements:
            raise UserError(
                f"the vocabulary's {len(vocab)} tokens are all special or unused; masking needs "
                "some that occur in text: make the data with a vocabulary made from text"
            )
        pad, unknown, cls_id, sep, mask = (vocab[token] for token in SPECIAL_TOKENS)
        return cls(pad, unknown, cls_id, sep, mask, np.array(replacements, np.int32), tokenizer.continues_word())


class Masked(NamedTuple):
    """Masked instances, under the names of the records' features."""

    input_ids: np.ndarray  # int32 [N, S] with the replacements
    masked_lm_positions: np.ndarray  # int32 [N, P] ascending, then 0
    masked_lm_ids: np.ndarray  # int32 [N, P] the original tokens at these positions, then 0
    masked_lm_weights: np.ndarray  # float32 [N, P] 1 for a prediction, then 0


class _Choice(NamedTuple):
    """The tokens to predict, ordered by position."""

    positions: np.ndarray  # int32 [N, P], 0 past the chosen ones
    is_chosen: np.ndarray  # bool [N, P], the chosen ones first
    # int64 [N, P] below P; tokens with the same number are masked, kept or replaced together. None: each by itself.
    units: np.ndarray | None


class Masker:
    """Masks instances ``[CLS] A [SEP] B [SEP]`` or ``[CLS] A [SEP]`` by `rules`, with the ids of a vocabulary."""

    def __init__(self, rules: MaskingRules, ids: VocabularyIds):
        """Raises: UserError if whole words are to be masked, but the tokens do not show what continues a word."""
        if rules.whole_word_masking and ids.continues_word is None:
            raise UserError(
                "--whole_word_masking: the tokens of this tokenizer.json do not show whether they continue a word, as "
                "## in WordPiece and \u2581 in SentencePiece do; leave the flag out, or use such a vocabulary"
            )
        self.rules, self.ids = rules, ids

    def instances(
        self, tokens: np.ndarray, pairs: Pairs, sequence_length: int, *, seed: int, ranges: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The features [N, ...] of masked instances, by the records' names.

        Args:
          tokens: integers [T].
          pairs: ranges of `tokens`, truncated.
          seed, ranges: see `mask`.
        """
        ids = self.ids
        rows = assemble(tokens, pairs, sequence_length, pad=ids.pad, cls=ids.cls, sep=ids.sep)
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
        # For whole words one random number for each position at which a word may begin.
        num_orders = input_ids.shape[1] if rules.whole_word_masking else num_predictions
        bits = _random_bits(seed, ranges, num_orders + 2 * num_predictions)
        order_bits, fate_bits, replacement_bits = np.split(bits, [-2 * num_predictions, -num_predictions], axis=1)
        lengths = np.count_nonzero(input_mask, axis=1)
        a_size = np.argmax(input_ids == ids.sep, axis=1) - 1
        num_candidates = lengths - NUM_MARKERS + (lengths == a_size + 2)
        num_masked = np.rint(lengths * rules.masked_lm_prob).astype(np.int64)
        num_masked = np.minimum(np.clip(num_masked, 1, num_predictions), num_candidates)
        if rules.whole_word_masking:
            is_candidate = (input_mask != 0) & (input_ids != ids.cls) & (input_ids != ids.sep)
            choice = self._choose_words(input_ids, is_candidate, num_masked, order_bits)
        else:
            choice = _choose_tokens(a_size, num_candidates, num_masked, order_bits)

        if choice.units is not None:
            fate_bits = np.take_along_axis(fate_bits, choice.units, axis=1)
        # Past the chosen positions this is the index of [CLS], which is replaced by itself.
        flat_indices = choice.positions + np.arange(0, input_ids.size, input_ids.shape[1])[:, np.newaxis]
        originals = input_ids.take(flat_indices).astype(np.int32)
        random_ids = ids.replacements.take(_below(len(ids.replacements), replacement_bits))
        replaced = np.where(fate_bits < KEEP_BELOW, originals, random_ids)
        replaced[fate_bits < MASK_BELOW] = ids.mask
        masked = input_ids.astype(np.int32)
        masked.put(flat_indices, np.where(choice.is_chosen, replaced, originals))
        return Masked(
            masked, choice.positions, np.where(choice.is_chosen, originals, 0), choice.is_chosen.astype(np.float32)
        )

    def _choose_words(
        self, input_ids: np.ndarray, is_candidate: np.ndarray, num_masked: np.ndarray, order_bits: np.ndarray
    ) -> _Choice:
        """Chooses words until `num_masked` tokens are chosen or no other word fits."""
        # After [CLS] or [SEP] any token begins a word.
        is_after_candidate = np.zeros_like(is_candidate)
        is_after_candidate[:, 1:] = is_candidate[:, :-1]
        assert self.ids.continues_word is not None
        is_first = is_candidate & ~(self.ids.continues_word.take(input_ids) & is_after_candidate)
        num_words = is_first.sum(axis=1)
        # Of all rows, in order: the candidates, and the words with their sizes and numbers in the row.
        row, position = np.nonzero(is_candidate)
        begins = np.flatnonzero(is_first[is_candidate])
        size_of_word = np.diff(begins, append=len(row))
        words = row[begins], _count_from_0(num_words)
        sizes = np.zeros([len(input_ids), int(num_words.max(initial=0))], np.int64)
        sizes[words] = size_of_word

        remaining = num_masked.copy()
        is_chosen = np.zeros(sizes.shape, bool)
        rows = np.arange(len(remaining))
        for step, word_numbers in enumerate(_random_order(num_words, sizes.shape[1], order_bits)):
            rows = rows[(remaining[rows] > 0) & (num_words[rows] > step)]
            if not len(rows):
                break
            word = rows, word_numbers[rows]
            size = sizes[word]
            is_chosen[word] = fits = size <= remaining[rows]
            remaining[rows] -= size * fits

        is_chosen_token = np.repeat(is_chosen[words], size_of_word)
        count = np.bincount(row[is_chosen_token], minlength=len(input_ids))
        slots = row[is_chosen_token], _count_from_0(count)
        positions_NxP, units_NxP = np.zeros([2, len(input_ids), self.rules.max_predictions_per_seq], np.int64)
        positions_NxP[slots] = position[is_chosen_token]
        units_NxP[slots] = np.repeat(_count_from_0(is_chosen.sum(axis=1)), size_of_word[is_chosen[words]])
        is_used = np.arange(positions_NxP.shape[1]) < count[:, np.newaxis]
        return _Choice(positions_NxP.astype(np.int32), is_used, units_NxP)


def _count_from_0(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... up to `counts[0]` numbers, then 0, 1, ... up to `counts[1]` numbers, and so on."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


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


def _choose_tokens(a_size: np.ndarray, num_candidates: np.ndarray, num_masked: np.ndarray, bits: np.ndarray) -> _Choice:
    """Chooses single tokens, each its own unit, by the first steps of a Fisher-Yates shuffle, for all rows at once."""
    num_rows, num_predictions = bits.shape
    rows, most_candidates = np.arange(num_rows), int(num_candidates.max())
    order = np.repeat(np.arange(most_candidates, dtype=np.int32), num_rows)
    steps = np.arange(num_masked.max())[:, np.newaxis]
    # A row that already has all its tokens swaps an element with itself.
    num_left = np.where(steps < num_masked, num_candidates - steps, 0)
    partners = (_below(num_left, bits.T[: len(steps)]) + steps) * num_rows + rows
    for current, partner in zip(order.reshape(most_candidates, num_rows), partners):
        drawn = order.take(partner, mode="clip")
        order[partner] = current
        current[:] = drawn
    is_chosen = np.arange(num_predictions) < num_masked[:, np.newaxis]
    chosen = np.full([num_rows, num_predictions], most_candidates, np.int32)
    drawn = order.reshape(most_candidates, num_rows)[:num_predictions].T
    np.copyto(chosen[:, :most_candidates], drawn, where=is_chosen[:, :most_candidates])
    chosen.sort(axis=1)
    # [CLS] precedes A, and the first [SEP] stands between A and B.
    chosen += 1 + (chosen >= a_size.astype(np.int32)[:, np.newaxis])
    return _Choice(np.where(is_chosen, chosen, 0), is_chosen, units=None)


def _random_order(num_words: np.ndarray, most_words: int, bits: np.ndarray) -> np.ndarray:
    """int64 [W, N], W = `most_words`: a column holds a row's word numbers in the order in which they are tried."""
    numbers = np.arange(most_words, dtype=np.uint64)
    keys = bits[:, :most_words].astype(np.uint64) << _NUMBER_BITS
    keys[numbers >= num_words[:, np.newaxis]] = ~_NUMBER_MASK
    keys |= numbers  # sorted along with the keys: like argsort, but faster
    keys.sort(axis=1)
    return np.ascontiguousarray((keys & _NUMBER_MASK).astype(np.int64).T)
