"""Masks against a literal statement of the rules, and that nothing but (seed, epoch, number) decides."""

import random

import numpy as np
import pytest

from bert_tf.batches.masking import Masker, MaskingRules
from bert_tf.text.vocabulary import SPECIAL_TOKENS, continues_word, ids_by_piece
from tests.pretraining_data import vocabulary_ids
from tests.refusals import refused

PAD, UNKNOWN, CLS, SEP, MASK = range(5)
WORDS = [f"w{number}" for number in range(40)]
VOCABULARY = [*SPECIAL_TOKENS, "[unused0]", *WORDS, *(f"##{word}" for word in WORDS)]
IDS = vocabulary_ids(VOCABULARY)
FIRST_WORD, FIRST_PIECE = VOCABULARY.index("w0"), VOCABULARY.index("##w0")
ALL_RULES = [MaskingRules(0.15, 20), MaskingRules(0.15, 20, True), MaskingRules(0.3, 5, True)]
named = pytest.mark.parametrize("rules", ALL_RULES, ids=["tokens", "words", "words, few"])


def instance(sizes_a, sizes_b, length: int) -> np.ndarray:
    """A row of words of so many pieces each."""
    tokens, next_word = [CLS], iter(range(1000))
    for sizes in (sizes_a, sizes_b):
        for size in sizes:
            word = next(next_word) % len(WORDS)
            tokens += [FIRST_WORD + word] + [FIRST_PIECE + word] * (size - 1)
        tokens.append(SEP)
    return np.array(tokens + [PAD] * (length - len(tokens)))


def random_rows(count: int, length: int = 64, seed: int = 0) -> np.ndarray:
    rng = random.Random(seed)
    rows = []
    while len(rows) < count:
        sizes = [[rng.choice([1, 1, 1, 2, 3, 5]) for _ in range(rng.randint(1, 16))] for _ in range(2)]
        if sum(map(sum, sizes)) + 3 <= length:
            rows.append(instance(*sizes, length))
    return np.stack(rows)


def draw(rows: np.ndarray, rules: MaskingRules, ranges=None, seed: int = 5):
    ranges = [(0, 0, len(rows))] if ranges is None else ranges
    return Masker(rules, IDS).mask(rows, rows != PAD, seed, np.array(ranges))


def words_of(row: np.ndarray) -> list[list[int]]:
    """Positions of each word, as Google's script collects them; the first piece after [SEP] begins one."""
    words: list[list[int]] = []
    may_go_on = False
    for position, token in enumerate(row.tolist()):
        if token in (PAD, CLS, SEP):
            may_go_on = False
        elif token >= FIRST_PIECE and may_go_on:
            words[-1].append(position)
        else:
            words.append([position])
            may_go_on = True
    return words


def units_of(row: np.ndarray, rules: MaskingRules) -> list[list[int]]:
    singles = [[position] for position, token in enumerate(row.tolist()) if token not in (PAD, CLS, SEP)]
    return words_of(row) if rules.whole_word_masking else singles


def num_wanted(length: int, rules: MaskingRules) -> int:
    return min(rules.max_predictions_per_seq, max(1, round(length * rules.masked_lm_prob)))


# The reference: one instance, one draw at a time.


def reference_masks(row: np.ndarray, rules: MaskingRules, rng: random.Random) -> tuple[list[int], list[str]]:
    """Positions that are predicted, and what becomes of each."""
    length = int((row != PAD).sum())
    wanted, words = num_wanted(length, rules), units_of(row, rules)
    rng.shuffle(words)
    fates: dict[int, str] = {}
    for word in words:
        if len(fates) + len(word) <= wanted:
            chance = rng.random()
            fates.update(dict.fromkeys(word, "masked" if chance < 0.8 else "kept" if chance < 0.9 else "replaced"))
    positions = sorted(fates)
    return positions, [fates[position] for position in positions]


@named
def test_masks_have_the_distribution_of_the_literal_rules(rules):
    row = instance([1, 2, 1, 1, 3, 1, 1, 4, 1], [1, 1, 2, 1, 6, 1, 1, 1, 2, 1], 40)
    rng = random.Random(3)
    num = 4000
    theirs = np.zeros([num, len(row)])
    masked_theirs = np.zeros([num, len(row)])
    for number in range(num):
        positions, fates = reference_masks(row, rules, rng)
        theirs[number, positions] = 1
        masked_theirs[number, [p for p, fate in zip(positions, fates) if fate == "masked"]] = 1
    rows = np.tile(row, [4 * num, 1])
    drawn = draw(rows, rules)
    ours = np.zeros(rows.shape)
    np.put_along_axis(ours, drawn.masked_lm_positions, drawn.masked_lm_weights, axis=1)
    ours[:, 0] = 0  # where the fillers point to
    masked_ours = (drawn.input_ids == MASK).astype(float)
    for what, one, two in (("chosen", ours, theirs), ("masked", masked_ours, masked_theirs)):
        # Each position, and how often two of them go together.
        for of, ours_mean, theirs_mean in (
            ("one", one.mean(axis=0), two.mean(axis=0)),
            ("two", one.T @ one / len(one), two.T @ two / len(two)),
        ):
            error = np.sqrt(theirs_mean * (1 - theirs_mean) * (1 / num + 1 / len(one))) + 2 / num
            difference = np.abs(ours_mean - theirs_mean) / error
            assert difference.max() < 5, (what, of, difference.argmax(), difference.max())


@named
def test_every_instance_keeps_the_rules(rules):
    rows = random_rows(500)
    drawn = draw(rows, rules)
    for number, row in enumerate(rows):
        length = int((row != PAD).sum())
        num = int(drawn.masked_lm_weights[number].sum())
        chosen, fillers = drawn.masked_lm_positions[number, :num], drawn.masked_lm_positions[number, num:]
        assert drawn.masked_lm_weights[number].tolist() == [1] * num + [0] * (rules.max_predictions_per_seq - num)
        assert not fillers.any() and not drawn.masked_lm_ids[number, num:].any()
        assert (np.diff(chosen) > 0).all() and not set(row[chosen]) & {PAD, CLS, SEP}
        np.testing.assert_array_equal(drawn.masked_lm_ids[number, :num], row[chosen])
        others = np.setdiff1d(np.arange(len(row)), chosen)
        np.testing.assert_array_equal(drawn.input_ids[number, others], row[others])
        wanted = num_wanted(length, rules)
        for unit in units_of(row, rules):
            inside = set(unit) & set(chosen.tolist())
            assert inside in (set(), set(unit)), "a word is masked whole or not at all"
            assert inside or len(unit) > wanted - num, "what would still fit is not left out"
            is_mask = drawn.input_ids[number, unit] == MASK
            assert is_mask.all() or not is_mask.any(), "one draw decides for the whole word"
        assert num <= wanted


@named
def test_80_10_10_and_replacements_are_uniform(rules):
    rows = random_rows(400)
    tokens, labels = [], []
    for epoch in range(20):
        drawn = draw(rows, rules, [(epoch, 0, len(rows))])
        chosen = drawn.masked_lm_weights > 0
        tokens.append(np.take_along_axis(drawn.input_ids, drawn.masked_lm_positions, axis=1)[chosen])
        labels.append(drawn.masked_lm_ids[chosen])
    tokens, labels = np.concatenate(tokens), np.concatenate(labels)
    is_mask, is_kept = tokens == MASK, tokens == labels
    # Tokens of one word share their fate, so there are fewer draws than tokens.
    assert abs(is_mask.mean() - 0.8) < 0.015
    assert abs(is_kept.mean() - 0.1 - 0.1 / 80) < 0.012
    drawn = np.bincount(tokens[~is_mask & ~is_kept], minlength=len(VOCABULARY))
    assert not drawn[:FIRST_WORD].any(), "special and unused tokens are never drawn"
    expected = drawn.sum() / 80
    assert np.abs(drawn[FIRST_WORD:] - expected).max() < 5 * expected**0.5


@named
def test_masks_depend_on_seed_epoch_and_number_alone(rules):
    rows = random_rows(60)
    whole = draw(rows, rules, [(2, 100, 60)])
    pieces = [(2, 100, 1), (2, 101, 40), (2, 141, 19)]
    order = np.concatenate([np.arange(41, 60), [0], np.arange(1, 41)])
    again = draw(rows[order], rules, [pieces[2], pieces[0], pieces[1]])
    for ours, theirs in zip(whole, again):
        np.testing.assert_array_equal(ours[order], theirs)
    for epoch, number, seed in ((3, 100, 5), (2, 101, 5), (2, 100, 6)):
        other = draw(rows, rules, [(epoch, number, 60)], seed)
        assert (other.masked_lm_positions == whole.masked_lm_positions).all(axis=1).mean() < 0.5


@pytest.mark.parametrize(
    "how, positions, input_ids",
    [
        ((), [2, 4, 5, 10, 13, 0], [CLS, 6, 4, 47, 4, 4, 10, 50, 50, SEP, 74, 12, 13, 4, 14, SEP]),
        ((True,), [10, 11, 12, 13, 14, 0], [CLS, 6, 7, 47, 8, 9, 10, 50, 50, SEP, 4, 4, 4, 4, 4, SEP]),
    ],
)
def test_masks_are_these_for_good(how, positions, input_ids):
    """A run that goes on under newer code must get the masks that it began with: never change these."""
    row = instance([1, 2, 1, 1, 3], [1, 1, 2, 1], 20)
    drawn = draw(row[np.newaxis], MaskingRules(0.3, 6, *how), [(1, 7, 1)], seed=12345)
    assert drawn.masked_lm_positions[0].tolist() == positions
    assert drawn.input_ids[0].tolist() == input_ids + [PAD] * 4


def test_a_vocabulary_without_text_is_refused():
    refused("special or unused", vocabulary_ids, [*SPECIAL_TOKENS, "[unused7]"])
    assert vocabulary_ids([*SPECIAL_TOKENS, "[", "[x]"]).replacements.tolist() == [5, 6]


def test_words_are_told_by_either_kind_of_mark():
    def going_on(prefix, *tokens):
        return [token for token, goes_on in zip(tokens, continues_word(ids_by_piece(tokens), prefix)) if goes_on]

    assert going_on("##", "play", "##ing", "##", "#", "▁") == ["##ing", "##"]
    assert going_on("", "▁play", "ing", ".", "▁", "s", "中", "中国", "9", "’", "▁“") == ["ing", "s", "9"]
    signs = ["\u093e", "\u0940\u0902", "\u094d\u091a", "\u0301s"]  # vowel signs of Hindi, an accent
    assert going_on("", "▁न", *signs, "।") == signs
