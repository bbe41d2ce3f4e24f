"""Checks that a text is prose: a model learns no sentences from headings, titles or search queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data.checking.vocabulary_fit import sample_text

# A stop, perhaps followed by closing quotation marks and brackets.
_ENDS_WITH_STOP = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f\uff61\u061f\u06d4\u0964\u0965\u1362]\W{0,3}$")
# A sentence has some 100 characters, in Chinese 30; in scripts without stops whole paragraphs count as sentences.
_SHORT_SENTENCE, _MANY_WITHOUT_STOP = 40, 0.5


class Sentences(NamedTuple):
    """Counts over a sample of the text."""

    num_sentences: int
    num_characters: int
    num_without_stop: int

    @property
    def mean_characters(self) -> float:
        return self.num_characters / max(self.num_sentences, 1)

    @property
    def without_stop(self) -> float:
        return self.num_without_stop / max(self.num_sentences, 1)


def measure_sentences(paths: Sequence[Path]) -> Sentences:
    """Measures a sample of sharded text files."""
    num_sentences = num_characters = num_without_stop = 0
    for text in sample_text(paths):
        for line in filter(None, text.split("\n")):
            num_sentences += 1
            num_characters += len(line)
            num_without_stop += not _ENDS_WITH_STOP.search(line)
    return Sentences(num_sentences, num_characters, num_without_stop)


def judge_sentences(sentences: Sentences) -> Iterator[str]:
    """Warnings: what looks wrong, and what to do."""
    if sentences.without_stop > _MANY_WITHOUT_STOP and sentences.mean_characters < _SHORT_SENTENCE:
        yield (
            f"{sentences.without_stop:.0%} of the sentences end without a stop, and they have "
            f"{sentences.mean_characters:.0f} characters on average: these are headings, titles or lists, from which a "
            'model learns no sentences; is it the right column or field of the source (--text_column, "text")?'
        )
