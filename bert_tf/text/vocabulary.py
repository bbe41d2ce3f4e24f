"""Vocabulary files: reading, checking, special tokens, and which tokens continue a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.text.basic_tokenizer import is_ideograph

UNKNOWN_TOKEN = "[UNK]"
SPECIAL_TOKENS = ("[PAD]", UNKNOWN_TOKEN, "[CLS]", "[SEP]", "[MASK]")
# A vocabulary made from lower-cased text may still have some tokens with capitals, at most this fraction.
_MAX_CAPITALS_FRACTION = 0.01
CONTINUATION = "##"
SENTENCEPIECE_SUFFIX = ".model"
# SentencePiece marks tokens that begin a word; WordPiece marks tokens that continue one, with CONTINUATION.
WORD_START = "\u2581"


class TokenizedLines(NamedTuple):
    """The tokens of some lines."""

    ids: np.ndarray  # int32, of all lines
    sizes: np.ndarray  # int64, number of tokens in each line


class Tokenizer:
    """Text to tokens and ids of a vocabulary: what all tokenizers have in common.

    Attributes:
      vocab: token to id.
      inv_vocab: the tokens by id.
      do_lower_case: whether text is lower-cased and stripped of accents.
    """

    vocab: Mapping[str, int]
    inv_vocab: Sequence[str]
    do_lower_case: bool

    @property
    def vocab_size(self) -> int:
        return len(self.inv_vocab)

    def tokenize_to_ids(self, text: str) -> list[int]:
        raise NotImplementedError

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """Tokenises lines of UTF-8, each ending with a line feed."""
        raise NotImplementedError

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


def not_wordpiece(path: str | Path) -> UserError:
    return UserError(
        f"vocabulary {path} belongs to SentencePiece; fine-tuning, which locates answers by tokens, and export to "
        "Hugging Face need a vocab.txt of WordPiece: use a checkpoint that was pre-trained with that"
    )


def has_word_starts(vocab: Mapping[str, int]) -> bool:
    """Whether these are the tokens of a SentencePiece model."""
    return any(len(token) > 1 and token.startswith(WORD_START) for token in vocab) and not any(
        token.startswith(CONTINUATION) for token in vocab
    )


def continues_word(vocab: Mapping[str, int]) -> np.ndarray:
    """bool by token id: whether the token continues the previous token's word.

    SentencePiece does not mark continuations: there a token without `WORD_START` continues a word if
    it starts with a letter or digit that is not an ideograph.
    """
    continues = np.zeros(max(vocab.values()) + 1, bool)
    is_sentencepiece = has_word_starts(vocab)
    for token, token_id in vocab.items():
        if is_sentencepiece:
            continues[token_id] = token[0].isalnum() and not is_ideograph(token[0])
        else:
            continues[token_id] = token.startswith(CONTINUATION)
    return continues


def load_vocab(path: str | Path) -> dict[str, int]:
    """Reads a vocabulary file with one token per line, whose id is the line's number, counted from 0.

    Returns: token to id, in the file's order.
    Raises: UserError if the file is missing, a SentencePiece model, not UTF-8, has an empty or a
      repeated line, or lacks one of `SPECIAL_TOKENS`.
    """
    if is_sentencepiece_model(path):
        raise not_wordpiece(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"vocabulary file {path} cannot be read ({error.strerror}); pass --vocab_file with the "
            "vocab.txt of a checkpoint, or make one with bertPrep.py"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary file {path} is not UTF-8 (byte {error.start}); it must hold one token per line"
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    vocab: dict[str, int] = {}
    for token_id, line in enumerate(lines):
        token = line.strip()
        if not token:
            raise UserError(
                f"vocabulary file {path}, line {token_id + 1}, is empty; every line holds one token, "
                "whose id is its line: put the token back, or delete the line if it is the last"
            )
        if vocab.setdefault(token, token_id) != token_id:
            raise UserError(
                f"vocabulary file {path}: {token!r} is on lines {vocab[token] + 1} and "
                f"{token_id + 1}; a token may occur once: rename one of them to [unusedN]"
            )
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"vocabulary file {path} ({len(vocab)} tokens) lacks {' '.join(missing)}; BERT needs "
            f"{' '.join(SPECIAL_TOKENS)}: is it a vocab.txt with one token a line?"
        )
    return vocab


def _words(vocab: Iterable[str]) -> list[str]:
    return [piece for piece in vocab if not piece.startswith("[")]


def is_lower_case(vocab: Iterable[str]) -> bool:
    """Whether a vocabulary was made from lower-cased text, judged by how many of its tokens have capitals."""
    words = _words(vocab)
    return sum(piece != piece.lower() for piece in words) <= _MAX_CAPITALS_FRACTION * len(words)


def check_casing(vocab: Iterable[str], do_lower_case: bool, path: str | Path) -> None:
    """Raises `UserError` if the vocabulary's capitals and --do_lower_case contradict each other."""
    words = _words(vocab)
    num_with_capitals = sum(piece != piece.lower() for piece in words)
    if do_lower_case and not is_lower_case(words):
        raise UserError(
            f"{path} has {num_with_capitals} pieces with capital letters, which lower-cased text never "
            "uses; pass --do_lower_case=0 with a cased model"
        )
    if not do_lower_case and not num_with_capitals and any(piece != piece.upper() for piece in words):
        raise UserError(
            f"{path} has no piece with a capital letter, so every word with one would be unknown; "
            "pass --do_lower_case=1 with an uncased model"
        )
