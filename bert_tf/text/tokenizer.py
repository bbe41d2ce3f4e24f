"""The tokenizer that belongs to a vocabulary file: WordPiece or SentencePiece."""

from __future__ import annotations

from pathlib import Path

from bert_tf.text.sentencepiece import SentencePieceTokenizer
from bert_tf.text.vocabulary import Tokenizer, is_sentencepiece_model
from bert_tf.text.wordpiece import FullTokenizer


def open_tokenizer(vocab_file: str | Path, do_lower_case: bool = True) -> Tokenizer:
    """A SentencePiece tokenizer for a file that ends in ``.model``, else a WordPiece tokenizer.

    Raises: UserError if the vocabulary cannot be read or does not suit BERT.
    """
    if is_sentencepiece_model(vocab_file):
        return SentencePieceTokenizer(vocab_file, do_lower_case)
    return FullTokenizer(vocab_file, do_lower_case)
