"""What counts as a word and as a sentence, in any script, and how lines of wrapped text are joined."""

from __future__ import annotations

import itertools
import re

from bert_tf.prepare.sharding.sentences import OTHER_STOPS, SENTENCE_END

# Vowel signs, tone marks and accents, which are no word characters in Python: of Latin, Hebrew, Arabic, India, Thai,
# Lao, Tibetan, Burmese, Khmer and Japanese; and the joiners.
WORD_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u05bf-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed"
    "\u0900-\u0963\u0966-\u0df3\u0e31-\u0e4e\u0eb1-\u0ece\u0f71-\u0f84\u102b-\u103e\u1056-\u109d\u17b4-\u17d3"
    "\u200c\u200d\u3099\u309a"
)
_IDEOGRAPHS = "\u3005-\u3007\u31a0-\u31bf\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u3099\u309a\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3105-\u312f\u31f0-\u31ff\uff66-\uff9f"
# Thai, Lao, Burmese and Khmer, without their punctuation.
_SOUTH_EAST_ASIAN = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0edf\u1000-\u1049\u1050-\u109d\u1780-\u17d3"
# Scripts without spaces between words, which have about three characters.
_UNSPACED = f"{_SOUTH_EAST_ASIAN}{_KANA}{_IDEOGRAPHS}"
_WORD = re.compile(rf"[{_UNSPACED}]{{1,3}}|[^\W_{_UNSPACED}]+(?:[{WORD_MARKS}]+[^\W_{_UNSPACED}]*)*")
# Nothing stands at a line break between two wide characters that are not Hangul (CSS Text 3, section 4.1.3).
_WIDE = f"{_IDEOGRAPHS}\u2e80-\u312f\u31f0-\u31ff\ua000-\ua4cf\ufe30-\ufe4f\uff01-\uff9f"
_WIDE_BREAK = re.compile(rf"(?<=[{_WIDE}])[^\S\n]*\n\s*(?=[{_WIDE}])")
_STOP = re.compile(f"[.!?…{OTHER_STOPS}{SENTENCE_END}]")
# Text without a full stop (speech, verse) counts if it has more words than a title.
MIN_WORDS_WITHOUT_STOP = 8


def find_words(text: str) -> list[str]:
    """The words; in a script without spaces between them, pieces of up to three characters."""
    return _WORD.findall(text)


def has_words(text: str, number: int = 1) -> bool:
    """Whether there are at least `number` words."""
    return next(itertools.islice(_WORD.finditer(text), number - 1, None), None) is not None


def has_sentence(line: str) -> bool:
    """Whether there is a word, and either a sentence's end or more words than in a title."""
    return has_words(line, MIN_WORDS_WITHOUT_STOP) or (has_words(line) and bool(_STOP.search(line)))


def unwrap(paragraph: str) -> str:
    """The paragraph on one line: line breaks become spaces, or nothing between two Chinese or Japanese characters."""
    if "\n" in paragraph and not paragraph.isascii():
        paragraph = _WIDE_BREAK.sub("", paragraph)
    return " ".join(paragraph.split())
