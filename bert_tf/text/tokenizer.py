"""Opens the tokenizer that belongs to a vocabulary file, or to a folder with weights or an exported model.

A folder's ``tokenizer.json`` is its tokenizer. Without one it is WordPiece by its ``vocab.txt``: beside weights of
Hugging Face's by their rules, else by Google's. ``tokenizer_config.json`` says what happens to capitals and accents;
without one that is guessed from the vocabulary, and the user is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.text import hugging_face
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.hugging_face import TOKENIZER, FolderSettings
from bert_tf.text.sentencepiece import open_model
from bert_tf.text.vocabulary import (
    SENTENCEPIECE_MODEL,
    SETTINGS,
    VOCABULARY,
    Tokenizer,
    check_casing,
    guess_casing,
    has_word_starts,
    is_sentencepiece_model,
    load_pieces,
)
from bert_tf.text.wordpiece import FullTokenizer


def open_tokenizer(vocab_file: str | Path, do_lower_case: bool = True, strip_accents: bool | None = None) -> Tokenizer:
    """The tokenizer of a file: SentencePiece for ``.model``, Hugging Face's for ``.json``, else Google's WordPiece.

    Args:
      strip_accents: None: as `do_lower_case`. Neither matters for a ``.json``, which itself says what happens.

    Raises: UserError if the vocabulary cannot be read or does not suit BERT.
    """
    if is_sentencepiece_model(vocab_file):
        return open_model(vocab_file, Casing.from_flags(do_lower_case, strip_accents))
    if is_pipeline(vocab_file):
        return hugging_face.open_json(Path(vocab_file))
    return FullTokenizer(vocab_file, do_lower_case, strip_accents)


def is_pipeline(path: str | Path) -> bool:
    """Whether this is a ``tokenizer.json``, by its name."""
    return Path(path).suffix == ".json"


def original_vocabulary(folder: Path) -> Path:
    """The vocabulary beside token files or records: a SentencePiece model or tokenizer.json, else vocab.txt.

    Beside the first two there is also a vocab.txt that was made from them, for those who only need the pieces.
    """
    files = (folder / name for name in (SENTENCEPIECE_MODEL, TOKENIZER))
    return next(filter(Path.is_file, files), folder / VOCABULARY)


class StoredTokenizer(NamedTuple):
    """The files of a tokenizer beside weights."""

    folder: Path
    is_hugging_face: bool = False  # whether the weights are in Hugging Face's format

    @property
    def vocab_file(self) -> Path | None:
        files = (self.folder / name for name in (VOCABULARY, TOKENIZER))
        return next(filter(Path.is_file, files), None)

    @property
    def needs_library(self) -> bool:
        """Whether Hugging Face's tokenizer, not Google's or a SentencePiece model, cuts texts for these weights."""
        if (self.folder / TOKENIZER).is_file():
            return True
        needs_library = self.is_hugging_face or hugging_face.read_settings(self.folder).needs_library
        return needs_library and not has_word_starts(load_pieces(self.folder / VOCABULARY))

    @property
    def casing(self) -> Casing | None:
        """The casing that the folder states; None: it states none."""
        return hugging_face.read_settings(self.folder).casing


class CasingFlags(NamedTuple):
    """The flags for casing, as the user has given them; None: not given."""

    do_lower_case: bool | None = None
    strip_accents: bool | None = None

    def check(self, casing: Casing, source: Path) -> None:
        """Raises: UserError if a flag contradicts the `casing` in the file `source`."""
        for flag, flag_value, actual in zip(self._fields, self, casing):
            if flag_value not in (None, actual):
                raise UserError(
                    f"--{flag}={int(flag_value)}: {source} says that its text has {casing}; omit the flag, since the "
                    "model knows no other tokens"
                )


def open_stored(stored: StoredTokenizer, flags: CasingFlags = CasingFlags()) -> tuple[Tokenizer, str]:  # noqa: B008
    """The tokenizer in a folder that has one, as `open_vocab_file`."""
    assert stored.vocab_file
    return open_vocab_file(stored.vocab_file, flags, stored.is_hugging_face)


def open_vocab_file(path: Path, flags: CasingFlags, is_hugging_face: bool) -> tuple[Tokenizer, str]:
    """The tokenizer of a vocabulary, and a line that says what was assumed ("" if nothing was).

    If the file has a usual name, it is the tokenizer of its folder, of which the file may be a part.

    Args:
      is_hugging_face: whether the weights that it belongs to are in Hugging Face's format.

    Raises: UserError if it is damaged or not supported, or if the folder's files or `flags` contradict each other.
    """
    is_of_folder = path.name in (VOCABULARY, TOKENIZER)
    settings = hugging_face.read_settings(path.parent) if is_of_folder else FolderSettings()
    pipeline_file = path.with_name(TOKENIZER) if is_of_folder and path.with_name(TOKENIZER).is_file() else path
    if is_pipeline(pipeline_file):
        tokenizer = hugging_face.open_json(pipeline_file, settings)
        if is_of_folder and path.with_name(VOCABULARY).is_file():
            _check_same_ids(path.with_name(VOCABULARY), tokenizer)
        flags.check(tokenizer.casing, pipeline_file)
        return tokenizer, ""
    vocabulary = open_tokenizer(path)
    casing, assumed = settings.casing, ""
    if not casing:
        accents = flags.strip_accents if settings.strip_accents is None else settings.strip_accents
        casing, assumed = _assume_casing(path, vocabulary.inv_vocab, flags._replace(strip_accents=accents))
    flags.check(casing, path.with_name(SETTINGS))
    if not is_sentencepiece_model(path) and (is_hugging_face or settings.needs_library):
        source = str(path.parent if is_of_folder else path)
        return hugging_face.open_vocabulary(vocabulary.vocab, casing, settings, source), assumed
    return open_tokenizer(path, *casing), assumed


def _assume_casing(vocab_file: Path, pieces: Sequence[str], flags: CasingFlags) -> tuple[Casing, str]:
    guessed = guess_casing(pieces)
    lower_case = guessed.lower_case if flags.do_lower_case is None else flags.do_lower_case
    strip_accents = lower_case and guessed.strip_accents if flags.strip_accents is None else flags.strip_accents
    casing = Casing(lower_case, strip_accents)
    check_casing(pieces, casing, vocab_file)
    if None not in flags or flags.do_lower_case is False:  # which keeps accents, too
        return casing, ""
    return casing, (
        f"{vocab_file}: {casing} is assumed, as the vocabulary suggests and no {SETTINGS} beside it says; "
        "--do_lower_case and --strip_accents say otherwise"
    )


def _check_same_ids(vocab_file: Path, tokenizer: Tokenizer) -> None:
    """Raises: UserError if a vocab.txt gives a token another id than the tokenizer.json beside it."""
    pairs = itertools.zip_longest(load_pieces(vocab_file), tokenizer.inv_vocab, fillvalue="")
    for token_id, (piece, pipeline_piece) in enumerate(pairs):
        if piece not in ("", pipeline_piece):
            raise UserError(
                f"{vocab_file}, line {token_id + 1}: {piece!r} has id {token_id}, which {TOKENIZER} beside it gives to "
                f"{pipeline_piece!r}; one of the two is another model's: fetch the tokenizer again"
            )
