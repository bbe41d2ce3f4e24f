"""A pre-trained encoder with its tokenizer, for use in Python."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_folder
from bert_tf.base.tensorflow import limit_leaked_memory, tf
from bert_tf.interchange.google import CONFIG_FILE
from bert_tf.interchange.initialise import choose_tokenizer, find_weights, require_config
from bert_tf.model.encoder import BertEncoder
from bert_tf.run.checkpoint import PREFIX, save_encoder
from bert_tf.run.variables import check_encoder, load_weights, named_variables
from bert_tf.text.tokenizer import CasingFlags
from bert_tf.text.vocabulary import Tokenizer


class Pretrained(NamedTuple):
    """An encoder, which is a Keras model, and the tokenizer that it was trained with."""

    encoder: BertEncoder
    tokenizer: Tokenizer

    def features(self, texts: Iterable[str], max_seq_length: int) -> dict[str, np.ndarray]:
        """The encoder's input: ``[CLS] text [SEP]`` for each text, truncated or padded to `max_seq_length`.

        Returns: input_ids, input_mask, segment_ids, each int32 [texts, max_seq_length].
        Raises: TypeError if `texts` is a single string or a table, or holds something that is no string; ValueError if
          `max_seq_length` is not from 3 to the number of the model's positions.
        """
        if isinstance(texts, (str, Mapping)) or getattr(texts, "ndim", 1) != 1:  # a DataFrame gives its columns' names
            raise TypeError(f"texts={texts!r:.40}: must be a list of strings, even for one text")
        texts, limit = list(texts), self.encoder.config.max_position_embeddings
        if max_seq_length not in range(3, limit + 1):
            raise ValueError(f"max_seq_length={max_seq_length!r}: must be from 3 ([CLS], a token, [SEP]) to {limit}")
        vocab = self.tokenizer.vocab
        ids = np.full([len(texts), max_seq_length], vocab["[PAD]"], np.int32)
        mask = np.zeros_like(ids)
        for number, text in enumerate(texts):
            if not isinstance(text, str):  # such as the NaN that pandas has for an empty field
                raise TypeError(f"texts[{number}]={text!r:.40}: must be a string; leave it out, or put '' there")
            row = [vocab["[CLS]"], *self.tokenizer.tokenize_to_ids(text)[: max_seq_length - 2], vocab["[SEP]"]]
            ids[number, : len(row)], mask[number, : len(row)] = row, 1
        return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}

    def save(self, folder: str | Path) -> None:
        """Writes weights, configuration and tokenizer to a new folder, for `from_pretrained` and ``--init_checkpoint``.

        Raises: UserError if it is no folder, or not empty; SaveError if it could not be written.
        """
        folder, config = Path(folder), self.encoder.config
        check_folder(folder, str(folder))
        if folder.exists() and any(folder.iterdir()):  # of two kinds of weights in it, the wrong one might be read
            raise UserError(f"{folder} is not empty: name a new folder")
        files = {CONFIG_FILE: config.to_json(), **self.tokenizer.files()}
        save_encoder(folder / PREFIX, self.encoder.variables, config.vocab_size, files)


def from_pretrained(
    folder: str | Path,
    *,
    vocab_file: str | Path | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
    name: str = "bert",
) -> Pretrained:
    """The encoder and tokenizer from a run folder or checkpoint of ours, from a checkpoint of Google's or NVIDIA's, or
    from a Hugging Face folder.

    Args:
      folder: like ``--init_checkpoint``.
      vocab_file: the vocabulary, if there is none beside the weights.
      do_lower_case, strip_accents: None: as the folder says, else as the vocabulary suggests, with a warning.
      name: Keras' name of the encoder; in a Keras model that holds two, they need different names.

    Raises:
      UserError: something is missing, damaged, or belongs to another architecture; or TensorFlow is not eager.
    """
    if not tf.executing_eagerly():
        raise UserError(
            "in a graph of TensorFlow the weights would stay random: call from_pretrained outside of tf.function and "
            "tf.Graph, and leave out disable_eager_execution() and disable_v2_behavior()"
        )
    weights = find_weights(folder, "folder")
    config = require_config(weights)
    tokenizer, assumed = choose_tokenizer(vocab_file, CasingFlags(do_lower_case, strip_accents), config, weights)
    limit_leaked_memory()
    encoder = BertEncoder(config, name=name)
    check_encoder(
        weights, named_variables(encoder.variables), "name other weights, or put their own configuration beside them"
    )
    load_weights(weights, encoder.variables, config.vocab_size)
    notes = [assumed] if assumed else []
    if not any(name.startswith("bert/pooler/") for name in weights.shapes):
        notes.append(f"{weights.source} has no pooler: the second output of the encoder, the pooled one, is random")
    for warning in (*weights.warnings, *notes):
        warnings.warn(warning, stacklevel=2)
    return Pretrained(encoder, tokenizer)
