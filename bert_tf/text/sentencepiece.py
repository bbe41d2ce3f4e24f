"""Tokenisation by a SentencePiece model instead of WordPiece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.text.basic_tokenizer import Casing
from bert_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    UNKNOWN_TOKEN,
    VOCABULARY,
    TokenizedLines,
    Tokenizer,
    check_pieces,
    ids_of,
    vocabulary_text,
)


class SentencePieceTokenizer(Tokenizer):
    """Text to the pieces of a SentencePiece model, with the interface of `FullTokenizer`.

    The padding and unknown pieces are called [PAD] and [UNK] here, whatever the model calls them.
    Pieces that text never produces, or that cannot be a line in a vocabulary file, are called [unusedN].
    """

    def __init__(self, model_file: str | Path, do_lower_case: bool = True, strip_accents: bool | None = None):
        """Raises: UserError if the model, the library or a special token is missing."""
        self._model = _load_sentencepiece(model_file)
        self.casing = Casing.of(do_lower_case, strip_accents)
        self.inv_vocab = tuple(map(self._name, range(self._model.get_piece_size())))
        self.vocab = ids_of(self.inv_vocab)
        check_pieces(self.inv_vocab, f"SentencePiece model {model_file}")

    def files(self) -> dict[str, str]:
        return {VOCABULARY: vocabulary_text(self.inv_vocab)}

    def tokenize_to_ids(self, text: str) -> list[int]:
        return self._model.encode(self.casing.apply(text))

    def tokenize_lines(self, lines: bytes) -> TokenizedLines:
        return TokenizedLines.of(list(map(self.tokenize_to_ids, lines.decode().split("\n")[:-1])))

    def _name(self, token_id: int) -> str:
        model, piece = self._model, self._model.id_to_piece(token_id)
        if token_id == model.pad_id():
            return SPECIAL_TOKENS[0]
        if token_id == model.unk_id():
            return UNKNOWN_TOKEN
        # Text that contains a special token's name could produce this token if it were not a control symbol.
        is_special = piece in SPECIAL_TOKENS
        is_control = model.is_control(token_id)
        fits_a_line = piece.strip() == piece != "" and "\n" not in piece
        if model.is_unused(token_id) or is_special != is_control or not fits_a_line:
            return f"[unused{token_id}]"
        return piece


def import_sentencepiece(path: str | Path) -> Any:
    """The library. Raises: UserError if it is missing; `path`: the vocabulary that needs it."""
    try:
        import sentencepiece
    except ImportError:
        raise UserError(
            f"vocabulary {path} needs the package sentencepiece: install it (pip install sentencepiece, or bash "
            "scripts/setup.sh), or name a .txt for WordPiece"
        ) from None
    return sentencepiece


def _load_sentencepiece(path: str | Path) -> Any:
    sentencepiece = import_sentencepiece(path)
    check_file(Path(path), "make one by bertPrep.py --action create_vocab --vocab_file <name>.model")
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(Path(path).read_bytes())  # the constructor treats an empty file as no file
        for token_id in range(model.get_piece_size()):
            model.id_to_piece(token_id)  # raises UnicodeDecodeError
        return model
    except (RuntimeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no SentencePiece model ({error}); a WordPiece vocabulary is called .txt") from error
