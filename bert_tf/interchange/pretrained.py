"""A pre-trained encoder with its tokenizer, for use in Python."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.interchange.initialise import choose_config, choose_tokenizer, find_weights
from bert_tf.interchange.weights import Weights
from bert_tf.model.blocks import Blocks
from bert_tf.model.encoder import BertEncoder
from bert_tf.run.checkpoint import check_encoder, load_weights, named_variables
from bert_tf.text.wordpiece import FullTokenizer


class Pretrained(NamedTuple):
    """An encoder, which is a Keras model, and the tokenizer that it was trained with."""

    encoder: BertEncoder
    tokenizer: FullTokenizer

    def features(self, texts: Sequence[str], max_seq_length: int) -> dict[str, np.ndarray]:
        """The encoder's input: ``[CLS] text [SEP]`` for each text, truncated or padded to `max_seq_length`.

        Returns: input_ids, input_mask, segment_ids, each int32 [texts, max_seq_length].
        """
        return self.pad([self.encode(text, max_seq_length) for text in texts], (len(texts), max_seq_length))

    def encode(self, text: str, max_seq_length: int) -> list[int]:
        """The ids of ``[CLS] text [SEP]``, at most `max_seq_length`."""
        first, last = self.tokenizer.convert_tokens_to_ids(["[CLS]", "[SEP]"])
        return [first, *self.tokenizer.tokenize_to_ids(text)[: max_seq_length - 2], last]

    def pad(self, rows: Sequence[Sequence[int]], shape: tuple[int, int]) -> dict[str, np.ndarray]:
        """The encoder's input with this `shape`, whose first rows contain the ids of `rows`."""
        ids = np.full(shape, self.tokenizer.vocab["[PAD]"], np.int32)
        mask = np.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)], mask[number, : len(row)] = row, 1
        return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def from_pretrained(
    folder: str | Path, *, vocab_file: str | Path | None = None, do_lower_case: bool | None = None
) -> Pretrained:
    """The encoder and tokenizer from a run folder or checkpoint of ours, from a checkpoint of Google's or NVIDIA's, or
    from a Hugging Face folder.

    Args:
      folder: like ``--init_checkpoint``.
      vocab_file: the vocabulary, if there is none beside the weights.
      do_lower_case: None: as the folder says, else as the vocabulary suggests.

    Raises:
      UserError: something is missing, damaged, or belongs to another architecture.
    """
    weights = find_weights(folder, "folder")
    for warning in weights.warnings:
        warnings.warn(warning, stacklevel=2)
    return load_pretrained(weights, vocab_file, do_lower_case)


def load_pretrained(
    weights: Weights, vocab_file: str | Path | None = None, do_lower_case: bool | None = None
) -> Pretrained:
    """Like `from_pretrained`, for weights that have already been found."""
    config = choose_config(None, weights)
    _, tokenizer = choose_tokenizer(None if vocab_file is None else str(vocab_file), do_lower_case, config, weights)
    encoder = BertEncoder(config, Blocks("off"))
    check_encoder(
        weights, named_variables(encoder.variables), "name other weights, or put their own configuration beside them"
    )
    load_weights(weights, encoder.variables, config.vocab_size)
    return Pretrained(encoder, tokenizer)
