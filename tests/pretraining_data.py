"""Small pre-training records for tests, with a pattern that a model can learn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bert_tf.config import BertConfig
from bert_tf.records.schema import InstanceArrays, RecordSchema
from bert_tf.records.writer import RecordWriter

SCHEMA = RecordSchema(max_seq_length=16, max_predictions_per_seq=3)
# Lengths from 10 on, so that up to three instances fit a row.
ROOMY = RecordSchema(max_seq_length=40, max_predictions_per_seq=3)
VOCAB_SIZE = 40
TINY = BertConfig(VOCAB_SIZE, 16, 1, 2, 32, max_position_embeddings=16)  # a layer of width 16


def instances(count: int, seed: int = 0, schema: RecordSchema = SCHEMA) -> dict[str, np.ndarray]:
    """Rows of ascending pieces, three of them masked, so that the masked ones can be told."""
    rng = np.random.default_rng(seed)
    length, predictions = schema.max_seq_length, schema.max_predictions_per_seq
    lengths = rng.integers(10, length + 1, [count, 1])
    mask = (np.arange(length) < lengths).astype(np.int64)
    ids = (5 + (rng.integers(0, 30, [count, 1]) + np.arange(length)) % 30) * mask
    positions = np.sort(np.stack([rng.permutation(np.arange(1, 9))[:predictions] for _ in range(count)]), axis=1)
    labels = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, 4, axis=1)
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": (np.arange(length) > 6) * mask,
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": np.ones([count, predictions], np.float32),
        "next_sentence_labels": rng.integers(0, 2, [count]),
    }


def unmasked(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same rows as ``[CLS] A [SEP] B [SEP]``, to be masked when they are read."""
    ids, mask = arrays["input_ids"].copy(), arrays["input_mask"]
    np.put_along_axis(ids, arrays["masked_lm_positions"], arrays["masked_lm_ids"], axis=1)
    ids[:, 0], ids[:, 6], ids[np.arange(len(ids)), mask.sum(axis=1) - 1] = 2, 3, 3
    nothing = np.zeros([len(ids), 0], np.int64)
    return {
        **arrays,
        "input_ids": ids,
        "masked_lm_positions": nothing,
        "masked_lm_ids": nothing,
        "masked_lm_weights": nothing.astype(np.float32),
    }


def write_dataset(
    folder: Path, shards=(70, 64, 3), seed: int = 0, masking: str = "static", schema: RecordSchema = SCHEMA
) -> Path:
    """`folder`/{training,test} with manifest and vocabulary, as bertPrep leaves them."""
    for split, sizes in (("training", shards), ("test", (9, 4))):
        (folder / split).mkdir(parents=True)
        for number, size in enumerate(sizes):
            rows = instances(size, seed + number, schema)
            write_records(
                folder / split / f"x_{split}_{number}.tfrecord",
                make_instance_arrays(unmasked(rows) if masking == "dynamic" else rows),
            )
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{number}" for number in range(VOCAB_SIZE - 5)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    arguments = {
        "masking": masking,
        "masked_lm_prob": 0.2,
        "max_predictions_per_seq": schema.max_predictions_per_seq,
        "whole_word_masking": False,
        "max_ngram_size": 1,
        "random_seed": 7,
    }
    (folder / "manifest.json").write_text(
        json.dumps({"dataset": "x", "vocab": {"size": VOCAB_SIZE}, "arguments": arguments, "counts": {}})
    )
    return folder


def make_instance_arrays(arrays: dict[str, np.ndarray]) -> InstanceArrays:
    return InstanceArrays(**arrays)


def write_records(path: str | Path, rows: InstanceArrays) -> None:
    """Writes a shard and its index."""
    with RecordWriter(path) as writer:
        writer.write(rows)
