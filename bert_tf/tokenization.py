"""WordPiece tokenisation by the rules of Google's BERT, exact on every code point, and fast.

SentencePiece models are the other kind of vocabulary: `open_tokenizer` tells them apart.

The rules (Devlin et al. 2018, and the tokenizer published with it), in order:

1. Clean: NUL, U+FFFD and the Unicode categories Cc and Cf vanish (tab, newline and carriage return
   are white space instead). Private-use, unassigned and surrogate code points stay.
2. CJK ideographs become words of their own. (Kana and Hangul do not.)
3. Split at white space as `str.split` sees it.
4. Where the vocabulary is lower-case: `str.lower` over the whole word, which gives a word-final
   sigma its final form; then canonical decomposition (NFD) with category Mn dropped.
5. Every punctuation character is a word of its own: the categories P*, and all ASCII symbols
   such as ``$ + < = > ^ ` | ~``. Hence a literal ``[MASK]`` in text is three words.
6. WordPiece: the longest piece of the vocabulary that matches, from left to right; a word that
   cannot be covered, or that is longer than 200 characters, is one ``[UNK]``.

No step looks past a space, so the ids of what stands between two spaces may be remembered: text costs
a split and a dictionary look-up per chunk, and only new chunks are worked out. The tables follow the
Unicode version of the running Python.

For SentencePiece the library of that name does all but step 4, which comes before it here.
"""

from __future__ import annotations

import itertools
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, Union

import numpy as np

from bert_tf.errors import UserError

UNKNOWN_TOKEN = "[UNK]"
SPECIAL_TOKENS = ("[PAD]", UNKNOWN_TOKEN, "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARS = 200
# Share of pieces with capitals in a vocabulary made from lower-cased text: a stray or two.
_FEW_CAPITALS = 0.01
CONTINUATION = "##"
SENTENCEPIECE_SUFFIX = ".model"
# SentencePiece marks where a word begins, WordPiece where it goes on.
WORD_START = "\u2581"

# About 60 MB when full. English text of a shard has some 100,000 different words.
CACHE_WORDS = 1 << 18
# Longer words hardly ever come back, and would let the cache grow without bound.
CACHE_WORD_LENGTH = 64

_CAPITAL_SIGMA = "\u03a3".encode()
# Stands for the end of a line among the ids.
_LINE_END_ID = -1

_CJK_BLOCKS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_PUNCTUATION = frozenset(string.punctuation)
_DROPPED_ANYWAY = frozenset((0, 0xFFFD))


class _Cleaning(dict[int, Union[int, str, None]]):
    """Steps 1 and 2 for `str.translate`: characters are classified when they first occur."""

    def __missing__(self, code_point: int) -> int | str | None:
        char = chr(code_point)
        new: int | str | None = code_point
        if code_point in _DROPPED_ANYWAY or (unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r"):
            new = None
        elif is_ideograph(char):
            new = f" {char} "
        self[code_point] = new
        return new


class _PunctuationApart(dict[int, Union[int, str]]):
    """Step 5 for `str.translate`, likewise."""

    def __missing__(self, code_point: int) -> int | str:
        char = chr(code_point)
        is_alone = char in _ASCII_PUNCTUATION or unicodedata.category(char).startswith("P")
        new = self[code_point] = f" {char} " if is_alone else code_point
        return new


# Filled by what occurs, a thousand characters in most texts, and never emptied.
_CLEANING = _Cleaning()
_PUNCTUATION_APART = _PunctuationApart()


def is_ideograph(char: str) -> bool:
    """Whether step 2 makes a word of it."""
    code_point = ord(char)
    return any(first <= code_point <= last for first, last in _CJK_BLOCKS)


def _split_words(text: str) -> list[str]:
    """Steps 1 to 3: cleaned text as words between white space, ideographs alone."""
    # Printable text holds no control and no format character: the common case needs no table.
    if not (text.isascii() and text.isprintable()):
        text = text.translate(_CLEANING)
    return text.split()


def _strip_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def to_lower_case(text: str) -> str:
    """Step 4, of a word or of a whole text."""
    text = text.lower()
    return text if text.isascii() else _strip_accents(text)


def _split_at_punctuation(word: str, do_lower_case: bool) -> list[str]:
    """Steps 4 and 5 on one word from `_split_words`."""
    if do_lower_case:
        word = to_lower_case(word)
    if word.isalnum():
        return [word]
    return word.translate(_PUNCTUATION_APART).split()


def is_sentencepiece_model(path: str | Path) -> bool:
    return Path(path).suffix == SENTENCEPIECE_SUFFIX


def _not_wordpiece(path: str | Path) -> UserError:
    return UserError(
        f"vocabulary {path} is SentencePiece's; fine-tuning finds the places of answers by WordPiece "
        "and needs its vocab.txt: use a checkpoint that was pre-trained with one"
    )


def _has_word_starts(vocab: Mapping[str, int]) -> bool:
    """Whether the tokens are SentencePiece's."""
    return any(len(token) > 1 and token.startswith(WORD_START) for token in vocab) and not any(
        token.startswith(CONTINUATION) for token in vocab
    )


def continues_word(vocab: Mapping[str, int]) -> np.ndarray:
    """By id, whether a token goes on with the word of the token before it, bool.

    SentencePiece has no mark for that: there a token without the mark of a beginning goes on if it
    starts with a letter or digit that is no ideograph.
    """
    continues = np.zeros(max(vocab.values()) + 1, bool)
    has_word_starts = _has_word_starts(vocab)
    for token, token_id in vocab.items():
        if has_word_starts:
            continues[token_id] = token[0].isalnum() and not is_ideograph(token[0])
        else:
            continues[token_id] = token.startswith(CONTINUATION)
    return continues


def load_vocab(path: str | Path) -> dict[str, int]:
    """Reads a vocabulary file: one token a line, its id the line's number from 0.

    Returns: token to id, in the file's order.
    Raises: UserError where the file is missing, a SentencePiece model, not UTF-8, has an empty or a
      repeated line, or lacks one of `SPECIAL_TOKENS`.
    """
    if is_sentencepiece_model(path):
        raise _not_wordpiece(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"vocabulary file {path} cannot be read ({error.strerror}); pass --vocab_file with the "
            "vocab.txt of a checkpoint, or make one with bertPrep.py"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"vocabulary file {path} is not UTF-8 (byte {error.start}); it must hold a token a line"
        ) from error
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    vocab: dict[str, int] = {}
    for number, line in enumerate(lines):
        token = line.strip()
        if not token:
            raise UserError(
                f"vocabulary file {path}, line {number + 1}, is empty; every line holds one token, "
                "whose id is its line: put the token back, or delete the line if it is the last"
            )
        if vocab.setdefault(token, number) != number:
            raise UserError(
                f"vocabulary file {path}: {token!r} stands on lines {vocab[token] + 1} and "
                f"{number + 1}; a token may occur once: rename one of them to [unusedN]"
            )
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise UserError(
            f"vocabulary file {path} ({len(vocab)} tokens) lacks {' '.join(missing)}; BERT needs "
            f"{' '.join(SPECIAL_TOKENS)}: is it a vocab.txt with one token a line?"
        )
    return vocab


class TokenizedLines(NamedTuple):
    """The tokens of some lines."""

    ids: np.ndarray  # int32, of all lines
    sizes: np.ndarray  # int64, tokens of each line


class BasicTokenizer:
    """Text to words: steps 1 to 5 of the module's docstring."""

    def __init__(self, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case

    def tokenize(self, text: str) -> list[str]:
        """The words of `text`; with `do_lower_case` lower-cased and without accents."""
        return [part for word in _split_words(text) for part in _split_at_punctuation(word, self.do_lower_case)]


class WordpieceTokenizer:
    """Words to pieces of the vocabulary: step 6 of the module's docstring."""

    def __init__(
        self, vocab: Mapping[str, int], unk_token: str = UNKNOWN_TOKEN, max_input_chars_per_word: int = MAX_WORD_CHARS
    ):
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self._first = dict(vocab)
        self._continuing = {
            token[len(CONTINUATION) :]: token_id for token, token_id in vocab.items() if token.startswith(CONTINUATION)
        }
        self._tokens = {token_id: token for token, token_id in vocab.items()}
        self._longest = max(map(len, vocab), default=0)
        self._unknown = (vocab[unk_token],)

    def tokenize(self, text: str) -> list[str]:
        """Pieces of every word of `text`, which is split at white space alone."""
        return [self._tokens[token_id] for word in text.split() for token_id in self.word_to_ids(word)]

    def word_to_ids(self, word: str) -> tuple[int, ...]:
        """Ids of one word's pieces; the unknown token alone where no cover is found."""
        whole = self._first.get(word)
        num_chars = len(word)
        if num_chars > self.max_input_chars_per_word:
            return self._unknown
        if whole is not None:
            return (whole,)
        ids = []
        pieces, start = self._first, 0
        while start < num_chars:
            for end in range(min(num_chars, start + self._longest), start, -1):
                token_id = pieces.get(word[start:end])
                if token_id is not None:
                    break
            else:
                return self._unknown
            ids.append(token_id)
            pieces, start = self._continuing, end
        return tuple(ids)


_Key = TypeVar("_Key", bound=Union[bytes, str])


class _WordCache(dict[_Key, tuple[int, ...]]):
    """Remembers `compute(word)`; a look-up that hits runs no Python code.

    When `max_words` are remembered it starts anew: the frequent words are back at once, which keeps
    it bounded without any bookkeeping on a hit.
    """

    def __init__(self, compute: Callable[[_Key], tuple[int, ...]], max_words: int):
        super().__init__()
        self._compute = compute
        self._max_words = max_words

    def __missing__(self, word: _Key) -> tuple[int, ...]:
        ids = self._compute(word)
        if len(word) <= CACHE_WORD_LENGTH:
            if len(self) >= self._max_words:
                self.clear()
            self[word] = ids
        return ids


def _split_chunks(text: bytes) -> list[bytes]:
    """UTF-8 in parts that can be tokenised apart, ends of lines alone: the fewer different ones, the better.

    White space and punctuation part words wherever they stand, with one exception: whether a capital
    sigma is final is seen past a full stop. (Past a comma or a quotation mark it is not.)
    """
    text = text.replace(b"\n", b" \n ").replace(b",", b" ,").replace(b'"', b' " ')
    if _CAPITAL_SIGMA not in text:
        text = text.replace(b".", b" . ")
    return text.split(b" ")


class FullTokenizer:
    """Text to WordPiece tokens or ids, for preparing data and for fine-tuning.

    Attributes:
      vocab: token to id, in the order of the file.
      inv_vocab: the tokens by id.
      vocab_size: number of tokens.
    """

    def __init__(self, vocab_file: str | Path, do_lower_case: bool = True, *, max_cached_words: int = CACHE_WORDS):
        """Raises: UserError as `load_vocab` does, or where the tokens are SentencePiece's."""
        self.vocab = load_vocab(vocab_file)
        if _has_word_starts(self.vocab):
            raise _not_wordpiece(vocab_file)
        self.inv_vocab: Sequence[str] = tuple(self.vocab)
        self.do_lower_case = do_lower_case
        self.basic_tokenizer = BasicTokenizer(do_lower_case)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        self._chunk_ids: _WordCache[bytes] = _WordCache(self._compute_chunk_ids, max_cached_words)
        # Of ideographs: text of such a script is a single chunk.
        self._word_ids: _WordCache[str] = _WordCache(self._compute_word_ids, max_cached_words)

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text`, continuations marked with ``##``."""
        return self.convert_ids_to_tokens(self.tokenize_to_ids(text))

    def tokenize_to_ids(self, text: str) -> list[int]:
        """The ids of ``tokenize(text)``, at the speed of a look-up per word."""
        # JSON may hold half a character of UTF-16.
        chunks = _split_chunks(text.replace("\n", " ").encode("utf-8", "surrogatepass"))
        return list(itertools.chain.from_iterable(map(self._chunk_ids.__getitem__, chunks)))

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """Tokenises lines of UTF-8, each of which ends with a line feed."""
        chunk_ids = map(self._chunk_ids.__getitem__, _split_chunks(lines))
        ids = np.fromiter(itertools.chain.from_iterable(chunk_ids), np.int32)
        ends = np.flatnonzero(ids == _LINE_END_ID)
        return TokenizedLines(np.delete(ids, ends), np.diff(ends, prepend=-1) - 1)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Raises: KeyError for a token outside the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.inv_vocab[token_id] for token_id in ids]

    def _compute_chunk_ids(self, chunk: bytes) -> tuple[int, ...]:
        if chunk == b"\n":
            return (_LINE_END_ID,)
        words = _split_words(chunk.decode("utf-8", "surrogatepass"))
        if len(words) == 1:
            return self._compute_word_ids(words[0])
        return tuple(itertools.chain.from_iterable(map(self._word_ids.__getitem__, words)))

    def _compute_word_ids(self, word: str) -> tuple[int, ...]:
        parts = _split_at_punctuation(word, self.do_lower_case)
        return tuple(itertools.chain.from_iterable(map(self.wordpiece_tokenizer.word_to_ids, parts)))


class SentencePieceTokenizer:
    """Text to the pieces of a SentencePiece model, with the interface of `FullTokenizer`.

    The pieces for padding and for what is unknown are called [PAD] and [UNK] here, whatever the
    model calls them. Pieces that text never gives, or that are no line of text, are [unusedN].
    """

    def __init__(self, model_file: str | Path, do_lower_case: bool = True):
        """Raises: UserError where there is no such model or library, or a special token lacks."""
        self._model = _load_sentencepiece(model_file)
        self.do_lower_case = do_lower_case
        self.inv_vocab: Sequence[str] = tuple(map(self._name, range(self._model.get_piece_size())))
        self.vocab = {token: token_id for token_id, token in enumerate(self.inv_vocab)}
        missing = [token for token in SPECIAL_TOKENS if token not in self.vocab]
        if missing or len(self.vocab) < len(self.inv_vocab):
            problem = f"lacks {' '.join(missing)}" if missing else "has two pieces of one name"
            raise UserError(
                f"SentencePiece model {model_file} ({self.vocab_size} pieces) {problem}; BERT needs a "
                "padding piece and [CLS], [SEP] and [MASK] as control symbols: make one by bertPrep.py "
                "--action create_vocab --vocab_file <name>.model"
            )

    @property
    def vocab_size(self) -> int:
        return len(self.inv_vocab)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text`, those that begin a word marked with `WORD_START`."""
        return self.convert_ids_to_tokens(self.tokenize_to_ids(text))

    def tokenize_to_ids(self, text: str) -> list[int]:
        return self._model.encode(to_lower_case(text) if self.do_lower_case else text)

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        """Tokenises lines of UTF-8, each of which ends with a line feed."""
        found = list(map(self.tokenize_to_ids, lines.decode().split("\n")[:-1]))
        sizes = np.fromiter(map(len, found), np.int64, len(found))
        return TokenizedLines(np.fromiter(itertools.chain.from_iterable(found), np.int32, sizes.sum()), sizes)

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Raises: KeyError for a token outside the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        return [self.inv_vocab[token_id] for token_id in ids]

    def _name(self, token_id: int) -> str:
        model, piece = self._model, self._model.id_to_piece(token_id)
        if token_id == model.pad_id():
            return SPECIAL_TOKENS[0]
        if token_id == model.unk_id():
            return UNKNOWN_TOKEN
        # A symbol that is no control symbol could be written in a text.
        is_special = piece in SPECIAL_TOKENS
        is_control = model.is_control(token_id)
        is_line = piece.strip() == piece != "" and "\n" not in piece
        if model.is_unused(token_id) or is_special != is_control or not is_line:
            return f"[unused{token_id}]"
        return piece


def _load_sentencepiece(path: str | Path):
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            f"vocabulary {path} needs the package sentencepiece: install it (pip install "
            "sentencepiece, or bash scripts/setup.sh)"
        ) from None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=Path(path).read_bytes())
    except OSError as error:
        raise UserError(
            f"SentencePiece model {path} cannot be read ({error.strerror}); make one by bertPrep.py "
            "--action create_vocab --vocab_file <name>.model"
        ) from error
    except RuntimeError as error:
        raise UserError(f"{path} is no SentencePiece model ({error}); a WordPiece vocabulary is called .txt") from error


def check_casing(vocab: Iterable[str], do_lower_case: bool, path: str | Path) -> None:
    """Raises `UserError` where the vocabulary's capitals and --do_lower_case contradict each other."""
    words = [piece for piece in vocab if not piece.startswith("[")]
    num_with_capitals = sum(piece != piece.lower() for piece in words)
    if do_lower_case and num_with_capitals > _FEW_CAPITALS * len(words):
        raise UserError(
            f"{path} has {num_with_capitals} pieces with capital letters, which lower-cased text never "
            "uses; pass --do_lower_case=0 with a cased model"
        )
    if not do_lower_case and not num_with_capitals and any(piece != piece.upper() for piece in words):
        raise UserError(
            f"{path} has no piece with a capital letter, so every word with one would be unknown; "
            "pass --do_lower_case=1 with an uncased model"
        )


Tokenizer = Union[FullTokenizer, SentencePieceTokenizer]


def open_tokenizer(vocab_file: str | Path, do_lower_case: bool = True) -> Tokenizer:
    """SentencePiece's for a file that ends in ``.model``, else WordPiece's.

    Raises: UserError where the vocabulary cannot be read or is not fit for BERT.
    """
    if is_sentencepiece_model(vocab_file):
        return SentencePieceTokenizer(vocab_file, do_lower_case)
    return FullTokenizer(vocab_file, do_lower_case)
