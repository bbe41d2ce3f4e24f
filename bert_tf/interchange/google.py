"""Weights in TensorFlow's checkpoint format: ours and Google's."""

from __future__ import annotations

from pathlib import Path

from bert_tf.config import BertConfig
from bert_tf.interchange.weights import Weights
from bert_tf.run.checkpoint import is_weight, open_checkpoint

CONFIG_FILE = "bert_config.json"


def read_checkpoint(prefix: Path) -> Weights:
    """The weights of a checkpoint, without its optimizer's state; shape and vocabulary are those beside it.

    Raises:
      UserError: the checkpoint or the ``bert_config.json`` beside it cannot be read.
    """
    stored, folder = open_checkpoint(prefix), prefix.parent
    config_file, vocab_file = folder / CONFIG_FILE, folder / "vocab.txt"
    return Weights(
        source=str(prefix),
        shapes={name: shape for name, shape in stored.shapes.items() if is_weight(name)},
        read=stored.read,
        folder=folder,
        config=BertConfig.from_json_file(config_file) if config_file.is_file() else None,
        vocab_file=vocab_file if vocab_file.is_file() else None,
        do_lower_case=None,
    )
