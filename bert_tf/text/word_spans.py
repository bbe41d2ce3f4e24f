"""Words of a text with the characters that each of their letters comes from."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bert_tf.text.basic_tokenizer import Casing, split_words, tokenize_words


def spans_of_words(text: str, casing: Casing) -> Iterator[tuple[str, list[int], list[int]]]:
    """The words of ``tokenize_words(text, casing)``, each with, for each of its letters, where the characters of `text`
    that it comes from start and end (exclusive).

    What a letter becomes may depend on its neighbours (a sigma at the end of a word), but into how many letters a
    character turns does not.
    """
    starts: list[int] = []
    ends: list[int] = []
    is_inside_word = False
    for index, char in enumerate(text):
        num_letters, joins, parts = _letters_of(char, casing)
        starts += [index] * num_letters
        ends += [index + 1] * num_letters
        if joins and not num_letters and is_inside_word:  # an accent that goes belongs to the letter before it
            ends[-1] = index + 1
        is_inside_word = not parts and (is_inside_word or num_letters > 0)
    first = 0
    for word in tokenize_words(text, casing):
        end = first + len(word)
        yield word, starts[first:end], ends[first:end]
        first = end
    assert first == len(starts)


@functools.lru_cache(maxsize=1 << 16)
def _letters_of(char: str, casing: Casing) -> tuple[int, bool, bool]:
    """How many letters of words a character becomes, and whether it joins or parts those around it."""
    words = split_words(f"a{char}b")
    return sum(map(len, tokenize_words(char, casing))), words == [f"a{char}b"], len(words) > 1
