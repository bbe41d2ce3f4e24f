"""The small models of the tests: their configuration, and the files that a program needs of one."""

from __future__ import annotations

from pathlib import Path

from bert_tf.bert_config import BertConfig


def small_config(vocab_size: int = 101, hidden_size: int = 32, layers: int = 2, positions: int = 16, **changes):
    """A BERT with heads of size 8 and a feed-forward size of twice the width; `dropout` sets both rates."""
    if (dropout := changes.pop("dropout", None)) is not None:
        changes.update(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    sizes = dict(num_hidden_layers=layers, num_attention_heads=hidden_size // 8, intermediate_size=2 * hidden_size)
    return BertConfig(vocab_size, hidden_size, **{**sizes, "max_position_embeddings": positions, **changes})


def write_small_model(folder: Path, vocab, hidden_size=16, dropout=0.1, layers=1, positions=64) -> Path:
    """vocab.txt and bert_config.json of a model with two heads."""
    config = small_config(len(vocab), hidden_size, layers, positions, dropout=dropout, num_attention_heads=2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    (folder / "bert_config.json").write_text(config.to_json(), encoding="utf-8")
    return folder
