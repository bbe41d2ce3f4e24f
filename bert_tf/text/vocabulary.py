"""Vocabulary files: reading, checking, special tokens, and which tokens continue a word."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.fields import first_repeated
from bert_tf.base.files import check_file, read_text
from bert_tf.text.basic_tokenizer import Casing, is_ideograph

UNKNOWN_TOKEN = "[UNK]"
SPECIAL_TOKENS = ("[PAD]", UNKNOWN_TOKEN, "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
SENTENCEPIECE_SUFFIX = ".model"
# SentencePiece marks tokens that begin a word; WordPiece marks tokens that continue one, with CONTINUATION.
WORD_START = "\u2581"
# The files of a tokenizer, beside weights, records and exports, with Hugging Face's names.
VOCABULARY, SENTENCEPIECE_MODEL, SETTINGS = "vocab.txt", "vocab.model", "tokenizer_config.json"
TOKENIZER = "tokenizer.json"  # whatever steps it has; transformers 5 writes no vocab.txt beside it
# A vocabulary made from normalised text may still have this share of pieces that are not normalised.
_MAX_UNREACHABLE = 0.01
# Word tables are padded by at most this many rows, to a multiple of 128.
_MAX_PADDING = 127
# Ordinary text has less than a hundredth of unknown tokens, even where another script is quoted.
_MANY_UNKNOWN = 0.05
_FEW_UNKNOWN = 2  # so many may be in a single ordinary sentence


class TokenizedLines(NamedTuple):
    """The tokens of some lines."""

    ids: np.ndarray  # int32, of all lines
    sizes: np.ndarray  # int64, number of tokens in each line

    @classmethod
    def from_ids(cls, ids_of_lines: Sequence[Sequence[int]]) -> TokenizedLines:
        sizes = np.fromiter(map(len, ids_of_lines), np.int64, len(ids_of_lines))
        return cls(np.fromiter(itertools.chain.from_iterable(ids_of_lines), np.int32, sizes.sum()), sizes)


class TokenSpans(NamedTuple):
    """The tokens of a text, and the characters of the text that each stands for."""

    ids: list[int]
    starts: list[int]
    ends: list[int]  # exclusive


class Tokenizer:
    """Text to tokens and ids of a vocabulary: what all tokenizers have in common.

    Attributes:
      vocab: token to id.
      inv_vocab: the tokens by id; "" for an id that is no token's.
      casing: what happens to capitals and accents.
    """

    vocab: Mapping[str, int]
    inv_vocab: Sequence[str]
    casing: Casing
    transformers_class = "BertTokenizer"  # as tokenizer_config.json calls it
    other_settings: Mapping[str, Any] = MappingProxyType({})  # its further fields, which change no ids

    @property
    def vocab_size(self) -> int:
        return len(self.inv_vocab)

    @property
    def do_lower_case(self) -> bool:
        return self.casing.lower_case

    def files(self) -> dict[str, str]:
        """The text files, by name, from which `text.tokenizer.open_stored` opens this tokenizer again."""
        settings = {"tokenizer_class": self.transformers_class, **self.casing.flags(), **self.other_settings}
        return {VOCABULARY: vocabulary_text(self.inv_vocab), SETTINGS: json.dumps(settings, indent=2) + "\n"}

    @property
    def markers(self) -> Collection[str]:
        """The tokens that stand for no text, or were added by hand: masking replaces no token by one of them."""
        return SPECIAL_TOKENS

    def continues_word(self) -> np.ndarray | None:
        """Whether a token continues a word: bool by token id; None if the tokens do not show it."""
        raise NotImplementedError

    def count_unknown(self, ids: np.ndarray) -> UnknownTokens:
        return UnknownTokens(int(np.count_nonzero(ids == self.vocab[UNKNOWN_TOKEN])), ids.size, self.casing)

    def tokenize_to_ids(self, text: str) -> list[int]:
        raise NotImplementedError

    def tokenize_with_spans(self, text: str) -> TokenSpans:
        """The ids of `tokenize_to_ids`, with the characters that each token stands for.

        A token that stands for a word which the vocabulary does not cover has that word's characters.
        """
        raise NotImplementedError

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """Tokenises lines of UTF-8, each ending with a line feed."""
        text = lines.decode("utf-8", "surrogatepass")
        return TokenizedLines.from_ids(list(map(self.tokenize_to_ids, text.split("\n")[:-1])))

    def encode_lines(self, lines: Sequence[str]) -> TokenizedLines:
        """Tokenises lines; a line feed within a line counts as a space."""
        # JSON may contain a lone UTF-16 surrogate.
        text = "".join(line.replace("\n", " ") + "\n" for line in lines).encode("utf-8", "surrogatepass")
        return self.tokenize_lines(text)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text`; pieces that continue a word, or those that begin one, are marked (`continues_word`)."""
        return self.convert_ids_to_tokens(self.tokenize_to_ids(text))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """The ids of the tokens. Raises: KeyError for a token outside the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.inv_vocab[token_id] for token_id in ids]


def is_sentencepiece_model(path: str | Path) -> bool:
    return Path(path).suffix == SENTENCEPIECE_SUFFIX


class UnknownTokens(NamedTuple):
    """How many tokens of a text are [UNK]."""

    num_unknown: int
    num_tokens: int
    casing: Casing

    @property
    def are_many(self) -> bool:
        """Whether they are far more than in ordinary text."""
        return self.num_unknown > max(_FEW_UNKNOWN, _MANY_UNKNOWN * self.num_tokens)

    def describe(self, source: object) -> str:
        """A line about the text of `source`, a warning if they are many."""
        share = f"{self.num_unknown / max(self.num_tokens, 1):.2%} of {self.num_tokens:,} tokens are {UNKNOWN_TOKEN}"
        if not self.are_many:
            return f"{source}: {share}"
        return (
            f"warning: {source}: {share}, far more than in ordinary text: it is in another language or script than the "
            f"vocabulary, or its capitals and accents are treated otherwise ({self.casing}) than when that was made"
        )


def has_word_starts(vocab: Collection[str]) -> bool:
    """Whether these are the tokens of a SentencePiece model."""
    num_starts = sum(len(token) > 1 and token.startswith(WORD_START) for token in vocab)
    # A SentencePiece model may have ## of headings in Markdown.
    return num_starts > sum(token.startswith(CONTINUATION) for token in vocab)


def continues_word(vocab: Mapping[str, int], prefix: str) -> np.ndarray:
    """bool by token id: whether the token continues the previous token's word.

    Args:
      prefix: marks tokens that continue a word. "": the tokens are SentencePiece's, which does not mark them: a token
        without `WORD_START` continues a word if it starts with a letter or digit that is not an ideograph, or with a
        mark on a letter, such as a vowel sign of Hindi.
    """
    continues = np.zeros(max(vocab.values()) + 1, bool)
    for token, token_id in vocab.items():
        if prefix:
            continues[token_id] = token.startswith(prefix)
        else:
            is_mark = unicodedata.category(token[0]).startswith("M")
            continues[token_id] = is_mark or token[0].isalnum() and not is_ideograph(token[0])
    return continues


def vocabulary_text(pieces: Iterable[str]) -> str:
    """The content of a vocabulary file."""
    return "".join(f"{piece}\n" for piece in pieces)


def ids_by_piece(pieces: Sequence[str]) -> dict[str, int]:
    """Token to id; an empty line is no token."""
    return {piece: token_id for token_id, piece in enumerate(pieces) if piece}


def load_pieces(path: str | Path) -> tuple[str, ...]:
    """Reads a vocabulary file with one token per line, whose id is the line's number, counted from 0.

    A line ends with \\n or \\r\\n, and nothing else is taken away from it, as in transformers: Google's Chinese
    vocabulary has the token U+2028. The id of an empty line is no token's.

    Raises: UserError if the file is missing, not UTF-8, repeats a token, or lacks one of `SPECIAL_TOKENS`.
    """
    pipeline = Path(path).with_name(TOKENIZER)
    new = "name the model's vocab.txt, or make one by bertPrep.py --action create_vocab"
    check_file(Path(path), f"name {pipeline}" if pipeline.is_file() else new)
    text = read_text(Path(path), f"vocabulary file {path}")
    pieces = tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n"))
    check_pieces(pieces, f"vocabulary file {path}")
    return pieces


def check_pieces(pieces: Sequence[str], source: str) -> None:
    """Raises `UserError` if a token is repeated, or if one of `SPECIAL_TOKENS` is missing."""
    if repeated := first_repeated(filter(None, pieces)):
        raise UserError(f"{source} has {repeated!r} twice; a token may occur once: rename the other to [unusedN]")
    if missing := [token for token in SPECIAL_TOKENS if token not in pieces]:
        raise UserError(
            f"{source} ({len(pieces)} tokens) lacks {' '.join(missing)}; BERT needs {' '.join(SPECIAL_TOKENS)}, in a "
            "vocab.txt with one token a line, or as control symbols: bertPrep.py --action create_vocab makes one"
        )


def check_is_wordpiece(pieces: Collection[str], path: str | Path) -> None:
    """Raises `UserError` if a vocabulary file lists the pieces of a SentencePiece model, which alone cuts text so."""
    if has_word_starts(pieces):
        raise UserError(
            f"vocabulary {path} lists the pieces of a SentencePiece model, and text is cut into them by that model "
            f"alone; name it (--vocab_file <its file>{SENTENCEPIECE_SUFFIX}; in Python vocab_file=)"
        )


def check_vocabulary_size(num_pieces: int, num_rows: int, source: str | Path, is_models_own: bool) -> str:
    """A warning if a vocabulary has far fewer pieces than a model's word table has rows (`num_rows`), or "".

    Rows without a token are never looked up. Publishers pad tables, and some reserve many rows; but if the vocabulary
    does not come with the model (`is_models_own`), many such rows mean that it is another model's.

    Raises: UserError if it does not suit the model.
    """
    num_unused = num_rows - num_pieces
    if num_unused < 0 or (num_unused > _MAX_PADDING and not is_models_own):
        raise UserError(
            f"{source} has {num_pieces} pieces, but the model's configuration says vocab_size={num_rows}; use the "
            "vocabulary the model was trained with"
        )
    if num_unused <= _MAX_PADDING:
        return ""
    return (
        f"warning: {source} has {num_pieces:,} pieces, the model's word table {num_rows:,} rows: unless the model's "
        "authors reserved the others, its vocabulary is not whole; fetch it again"
    )


def _words(pieces: Iterable[str]) -> list[str]:
    return [piece for piece in pieces if piece and not piece.startswith("[")]


def _unreachable(words: Sequence[str], casing: Casing) -> list[str]:
    """The words that never occur in text with this casing; none if they are few."""
    changed = [word for word in words if casing.apply(word) != word]
    return changed if len(changed) > _MAX_UNREACHABLE * len(words) else []


def guess_casing(pieces: Iterable[str]) -> Casing:
    """The casing of the text that a vocabulary was made from: that which leaves (almost) all of its pieces as they are.

    So Korean and Hindi keep their syllables and vowel signs, which taking accents away would break up.
    """
    words = _words(pieces)
    lower_case = not _unreachable(words, Casing(True, False))
    return Casing(lower_case, lower_case and not _unreachable(words, Casing(True, True)))


def check_casing(pieces: Iterable[str], casing: Casing, path: str | Path) -> None:
    """Raises `UserError` if too many pieces never occur in text with this `casing`, or if all its words with capital
    letters would be unknown."""
    words = _words(pieces)
    if unreachable := _unreachable(words, casing):
        raise UserError(
            f"{path} has {len(unreachable):,} pieces such as {unreachable[0]!r}, which text never has with {casing}; "
            "pass --do_lower_case=0 for capitals, --strip_accents=0 for accents, vowel signs and Hangul syllables"
        )
    has_case = [word for word in words if word.upper() != word.lower()]
    if not casing.lower_case and 2 * len(has_case) > len(words) and all(word == word.lower() for word in has_case):
        raise UserError(
            f"{path} has no piece with a capital letter, so every word with one would be unknown; "
            "pass --do_lower_case=1 with an uncased model"
        )
