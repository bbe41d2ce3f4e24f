"""Checks that a text is prose: a model learns no sentences from headings, titles or search queries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from data.checking.vocabulary_fit import sample_text

# A stop, perhaps followed by closing quotation marks and brackets.
_ENDS_WITH_STOP = re.compile(r"[.!?:;\u2026\u3002\uff01\uff1f\uff61\u061f\u06d4\u0964\u0965\u1362]\W{0,3}$")
# A sentence has some 100 characters, in Chinese 30; in scripts without stops whole paragraphs count as sentences.
_SHORT_SENTENCE, _MANY_WITHOUT_STOP = 40, 0.5


def inspect_sentences(paths: Sequence[Path]) -> Iterator[str]:
    """Prints measurements of a sample of sharded text; yields a warning if it looks wrong."""
    sentences = [line for text in sample_text(paths) for line in text.split("\n") if line]
    num = max(len(sentences), 1)
    mean_characters = sum(map(len, sentences)) / num
    without_stop = sum(not _ENDS_WITH_STOP.search(sentence) for sentence in sentences) / num
    print(
        f"\nSentences\n  {len(sentences):,} looked at: {mean_characters:.0f} characters on average, "
        f"{without_stop:.1%} without a stop",
        flush=True,
    )
    if without_stop > _MANY_WITHOUT_STOP and mean_characters < _SHORT_SENTENCE:
        yield (
            f"{without_stop:.0%} of the sentences end without a stop, and they have {mean_characters:.0f} characters "
            "on average: these are headings, titles or lists, from which a model learns no sentences; is it the "
            'right column or field of the source (--text_column, "text")?'
        )
