"""Checks that sharded text is sentences: not headings, titles or search queries, and not whole paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_tf.prepare.corpora.text_files import decoded

# Enough to measure shares of a thousandth.
_SAMPLE_BYTES = 16 << 20
# A stop, perhaps followed by closing quotation marks and brackets.
_ENDS_WITH_STOP = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f\uff61\u061f\u06d4\u0964\u0965\u1362]\W{0,3}$")
# A sentence has some 100 characters, in Chinese 30.
_SHORT_SENTENCE, _MANY_WITHOUT_STOP = 40, 0.5
# Of novels and encyclopedias a twelfth to a quarter of the text is in longer sentences than this.
_LONG_SENTENCE, _MUCH_IN_LONG = 300, 0.5


def sample_sentences(paths: Sequence[Path]) -> list[str]:
    """The sentences at the beginning of each sharded text file: a fair sample, because documents are shuffled.

    Raises: UserError where a file is not UTF-8.
    """
    sentences: list[str] = []
    for path in paths:
        with open(path, "rb") as file:
            block = file.read(_SAMPLE_BYTES // len(paths)) + file.readline(_SAMPLE_BYTES)
        sentences += filter(None, decoded(block, path, 0).split("\n"))
    return sentences


def judge_ends(sentences: Sequence[str]) -> Iterator[str]:
    """A warning if most of the text is in what cannot be single sentences."""
    in_long = sum(len(sentence) for sentence in sentences if len(sentence) > _LONG_SENTENCE)
    share = in_long / max(sum(map(len, sentences)), 1)
    if share > _MUCH_IN_LONG:
        yield (
            f"{share:.0%} of the text is in sentences of more than {_LONG_SENTENCE} characters, so hardly any sentence "
            "ends were found (text without stops, or a script that has none): format it again from files with a "
            "sentence on each line and blank lines between documents, --dataset=custom --input_format=sentences"
        )


def inspect_sentences(paths: Sequence[Path]) -> Iterator[str]:
    """Prints measurements of a sample of sharded text; yields warnings if it looks wrong."""
    sentences = sample_sentences(paths)
    num = max(len(sentences), 1)
    mean_characters = sum(map(len, sentences)) / num
    without_stop = sum(not _ENDS_WITH_STOP.search(sentence) for sentence in sentences) / num
    shares = f"{mean_characters:.0f} characters on average, {without_stop:.1%} without a stop"
    print(f"\nSentences\n  {len(sentences):,} looked at: {shares}", flush=True)
    yield from judge_ends(sentences)
    if without_stop > _MANY_WITHOUT_STOP and mean_characters < _SHORT_SENTENCE:
        yield (
            f"sentences have {shares}: these are headings, titles or lists, from which a model learns no sentences "
            "(unless the script has no stops); is it the right column or field of the source (--text_column)?"
        )
