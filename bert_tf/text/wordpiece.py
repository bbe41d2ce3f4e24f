"""WordPiece tokenisation by the rules of Google's BERT, exact for every code point, and fast.

The rules (Devlin et al. 2018, and the tokenizer published with it), in order:

1. Clean: NUL, U+FFFD and the Unicode categories Cc and Cf are removed (but tab, newline and carriage
   return count as white space). Private-use, unassigned and surrogate code points stay.
2. CJK ideographs become words of their own. (Kana and Hangul do not.)
3. Split at white space as `str.split` sees it.
4. As the vocabulary's `Casing` says: `str.lower` of the whole word, which gives a word-final sigma its final form;
   canonical decomposition (NFD) with category Mn removed. Google's code does both or neither.
5. Every punctuation character is a separate word: the categories P*, and all ASCII symbols
   such as ``$ + < = > ^ ` | ~``. Hence a literal ``[MASK]`` in text is three words.
6. WordPiece: the longest piece of the vocabulary that matches, from left to right; a word that
   cannot be covered, or that is longer than 200 characters, is one ``[UNK]``.

No step looks past a space, so the ids of each word between two spaces can be cached: text costs a split and a look-up
per word, and only new words are computed. Lines of text are split and looked up by compiled code if there is any
(`chunk_ids`). Character categories follow the Unicode version of the running Python.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.compiled import compiled_file, load_library
from bert_tf.text.basic_tokenizer import Casing, spans_of_words, split_at_punctuation, split_words
from bert_tf.text.chunk_ids import SOURCE, ChunkTable
from bert_tf.text.vocabulary import (
    CONTINUATION,
    UNKNOWN_TOKEN,
    TokenizedLines,
    Tokenizer,
    TokenSpans,
    check_is_wordpiece,
    continues_word,
    ids_by_piece,
    load_pieces,
)

MAX_WORD_CHARS = 200

# About 60 MB when full. The English text of one shard has about 100,000 different words.
CACHE_WORDS = 1 << 18
# Longer words hardly ever recur, and would leave the cache's size in bytes unbounded.
CACHE_WORD_LENGTH = 64


class WordCache(dict[Any, Any]):
    """Caches `compute(word)` for bytes or strings; a look-up that hits runs no Python code.

    At `CACHE_WORDS` the cache is emptied: frequent words soon return, and a hit needs no bookkeeping.
    """

    def __init__(self, compute: Callable[[Any], Any]):
        super().__init__()
        self._compute = compute

    def __missing__(self, word: Any) -> Any:
        computed = self._compute(word)
        if len(word) <= CACHE_WORD_LENGTH:
            if len(self) >= CACHE_WORDS:
                self.clear()
            self[word] = computed
        return computed


class FullTokenizer(Tokenizer):
    """Text to WordPiece tokens or ids, for preparing data and for fine-tuning."""

    def __init__(self, vocab_file: str | Path, do_lower_case: bool = True, strip_accents: bool | None = None):
        """
        Args:
          strip_accents: None: as `do_lower_case`.

        Raises: UserError as `load_pieces` does, or if the tokens are SentencePiece's.
        """
        self.inv_vocab = load_pieces(vocab_file)
        self.vocab = ids_by_piece(self.inv_vocab)
        check_is_wordpiece(self.inv_vocab, vocab_file)
        self.casing = Casing.from_flags(do_lower_case, strip_accents)
        self._continuing = {
            token[len(CONTINUATION) :]: token_id
            for token, token_id in self.vocab.items()
            if token.startswith(CONTINUATION)
        }
        self._longest, self._unknown = max(map(len, self.vocab)), (self.vocab[UNKNOWN_TOKEN],)
        self._word_ids, self._chunk_spans = WordCache(self._compute_word_ids), WordCache(self._compute_spans)

    def continues_word(self) -> np.ndarray:
        return continues_word(self.vocab, CONTINUATION)

    def tokenize_to_ids(self, text: str) -> list[int]:
        return list(itertools.chain.from_iterable(map(self._word_ids.__getitem__, split_words(text))))

    def tokenize_with_spans(self, text: str) -> TokenSpans:
        spans: list[tuple[int, int, int]] = []
        begin = 0
        for chunk in text.split(" "):
            spans += [(token_id, begin + start, begin + end) for token_id, start, end in self._chunk_spans[chunk]]
            begin += len(chunk) + 1
        return TokenSpans(*([span[column] for span in spans] for column in range(3)))

    def _compute_spans(self, chunk: str) -> tuple[tuple[int, int, int], ...]:
        """The ids in a chunk without a space, and where their characters start and end in it."""
        spans = []
        for word, starts, ends in spans_of_words(chunk, self.casing):
            first = 0
            for token_id in self._word_to_ids(word):
                piece = self.inv_vocab[token_id].removeprefix(CONTINUATION if first else "")
                last = first + len(word if token_id in self._unknown else piece) - 1
                spans.append((token_id, starts[first], ends[last]))
                first = last + 1
        return tuple(spans)

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        return self._chunk_table.tokenize_lines(lines) if self._chunk_table else super().tokenize_lines(lines)

    @functools.cached_property
    def _chunk_table(self) -> ChunkTable | None:
        """The compiled table, or None. It stores a chunk in a quarter of the memory that the caches take."""
        # The compiled code holds the GIL, so that threads may share a table.
        code = load_library(compiled_file(SOURCE))
        if code is None:
            return None
        compute_ids = self._compute_chunk_ids
        return ChunkTable(code, self.vocab, self.casing, compute_ids=compute_ids, max_chunks=4 * CACHE_WORDS)

    def _compute_chunk_ids(self, chunk: bytes) -> tuple[int, ...]:
        words = split_words(chunk.decode("utf-8", "surrogatepass"))
        # In scripts without spaces, such as Chinese, a whole sentence may be a single chunk.
        ids_of_word = self._compute_word_ids if len(words) == 1 else self._word_ids.__getitem__
        return tuple(itertools.chain.from_iterable(map(ids_of_word, words)))

    def _compute_word_ids(self, word: str) -> tuple[int, ...]:
        parts = split_at_punctuation(word, self.casing)
        return tuple(itertools.chain.from_iterable(map(self._word_to_ids, parts)))

    def _word_to_ids(self, word: str) -> tuple[int, ...]:
        """Step 6: the ids of one word's pieces, or only the unknown token's if pieces cannot cover the word."""
        if len(word) > MAX_WORD_CHARS:
            return self._unknown
        if word in self.vocab:
            return (self.vocab[word],)
        ids = []
        pieces, start = self.vocab, 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token_id = pieces.get(word[start:end])
                if token_id is not None:
                    break
            else:
                return self._unknown
            ids.append(token_id)
            pieces, start = self._continuing, end
        return tuple(ids)
