"""Checks whether a vocabulary fits a text: language, script, case."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.prepare.corpora.text_files import decoded
from bert_tf.text.basic_tokenizer import tokenize_words
from bert_tf.text.vocabulary import SPECIAL_TOKENS, UNKNOWN_TOKEN, Tokenizer

# Enough to measure shares of a thousandth, in a second or two.
SAMPLE_BYTES = 16 << 20
_NUM_EXAMPLES = 8
# English text with an English vocabulary has 1.1 to 1.4 pieces per word, and hardly any [UNK].
_MANY_UNKNOWN = 0.02
_MANY_PIECES = 2.0
_SOME_CAPITALS = 0.02


class Fit(NamedTuple):
    """Counts over a sample of the text; words are the basic tokenizer's, if they have a letter."""

    sampled_bytes: int
    total_bytes: int
    num_words: int
    num_unknown: int
    num_pieces: int  # of the known words
    num_capitals: int  # words with a capital letter, before any lower-casing
    unknown: list[tuple[str, int]]  # the most frequent unknown words, with their counts
    unknown_script: str  # the script of most unknown words, as Unicode names it

    @property
    def unknown_share(self) -> float:
        return self.num_unknown / max(self.num_words, 1)

    @property
    def pieces_per_word(self) -> float:
        return self.num_pieces / max(self.num_words - self.num_unknown, 1)

    @property
    def capital_share(self) -> float:
        return self.num_capitals / max(self.num_words, 1)


def sample_text(paths: Sequence[Path]) -> Iterator[str]:
    """The beginning of each sharded text file, in whole lines: a fair sample, because documents are shuffled.

    Raises: UserError where a file is not UTF-8.
    """
    for path in paths:
        with open(path, "rb") as file:
            block = file.read(SAMPLE_BYTES // len(paths)) + file.readline(SAMPLE_BYTES)
        yield decoded(block, path, 0)


def _script(word: str) -> str:
    return unicodedata.name(word[0], "unnamed").split()[0]


def measure_fit(paths: Sequence[Path], tokenizer: Tokenizer) -> Fit:
    """Tokenises a sample of sharded text files, each distinct word once."""
    texts = list(sample_text(paths))
    counts = Counter(chunk for text in texts for chunk in text.split())
    unknown: Counter[str] = Counter()
    num_words = num_pieces = num_capitals = 0
    unknown_id = tokenizer.vocab[UNKNOWN_TOKEN]
    for chunk, count in counts.items():
        for word in tokenize_words(chunk, tokenizer.casing):
            if not any(map(str.isalpha, word)):
                continue
            num_words += count
            ids = tokenizer.tokenize_to_ids(word)
            if unknown_id in ids:
                unknown[word] += count
            else:
                num_pieces += count * len(ids)
        if chunk.lower() != chunk:
            num_capitals += count
    scripts: Counter[str] = Counter()
    for word, count in unknown.items():
        scripts[_script(word)] += count
    return Fit(
        sum(len(text.encode()) for text in texts),
        sum(path.stat().st_size for path in paths),
        num_words,
        sum(unknown.values()),
        num_pieces,
        num_capitals,
        unknown.most_common(_NUM_EXAMPLES),
        scripts.most_common(1)[0][0] if scripts else "",
    )


def share_with_capitals(tokenizer: Tokenizer) -> float:
    """The share of the vocabulary's pieces with a capital letter."""
    pieces = [piece for piece in tokenizer.vocab if piece not in SPECIAL_TOKENS and not piece.startswith("[unused")]
    return sum(piece.lower() != piece for piece in pieces) / max(len(pieces), 1)


def describe_fit(fit: Fit) -> str:
    """The measurements as text."""
    sampled = (
        "all training text"
        if fit.sampled_bytes == fit.total_bytes
        else f"{fit.sampled_bytes / 1e6:,.1f} of {fit.total_bytes / 1e6:,.1f} MB of training text, "
        "the beginning of each shard"
    )
    words = (
        f"{fit.num_words:,} words ({sampled}): {fit.pieces_per_word:.2f} pieces a word, {fit.unknown_share:.3%} [UNK]"
    )
    if fit.unknown:
        words += ", most often " + ", ".join(f"{word} ({count:,})" for word, count in fit.unknown)
    return words


def inspect_fit(paths: Sequence[Path], tokenizer: Tokenizer) -> Iterator[str]:
    """Prints the measurements; yields warnings."""
    fit = measure_fit(paths, tokenizer)
    case = "lower case" if tokenizer.do_lower_case else "case kept"
    print(f"\nText and vocabulary ({tokenizer.vocab_size:,} pieces, {case})\n  {describe_fit(fit)}", flush=True)
    yield from judge_fit(fit, tokenizer)


def judge_fit(fit: Fit, tokenizer: Tokenizer) -> Iterator[str]:
    """Warnings that say what looks wrong and what to do."""
    capitals = share_with_capitals(tokenizer)
    if tokenizer.do_lower_case and capitals > _SOME_CAPITALS:
        yield (
            f"{capitals:.0%} of the vocabulary's pieces have capital letters, but the text is "
            "lower-cased, so that they never occur: use --do_lower_case 0, or an uncased "
            "vocabulary"
        )
    if not tokenizer.do_lower_case and capitals == 0 and fit.capital_share > _SOME_CAPITALS:
        yield (
            f"case is kept (--do_lower_case 0), but no piece of the vocabulary has a capital "
            f"letter, and {fit.capital_share:.0%} of the words have: use --do_lower_case 1, or "
            "a cased vocabulary"
        )
    elif fit.unknown_share > _MANY_UNKNOWN:
        yield (
            f"{fit.unknown_share:.1%} of the words are [UNK] (mostly {fit.unknown_script} "
            "characters): the text is in another language or script than the vocabulary; use "
            "the vocabulary of its language, or make one from the text by --action create_vocab"
        )
    elif fit.pieces_per_word > _MANY_PIECES:
        yield (
            f"a word takes {fit.pieces_per_word:.1f} pieces, where 1.1 to 1.4 are usual: the "
            "text is in another language than the vocabulary, or the vocabulary is small; use "
            "the vocabulary of its language, or make one from the text by --action create_vocab"
        )
