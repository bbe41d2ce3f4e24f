"""Small pre-training records and token files for tests, with a pattern that a model can learn."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from bert_tf.batches.data_sets import open_instances
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.batches.masking import MaskingRules, VocabularyIds
from bert_tf.ranks.workers import Workers
from bert_tf.records import shard
from bert_tf.records.manifest import FileEntry, Manifest, VocabEntry
from bert_tf.records.pair_file import encode_pairs, write_pairs
from bert_tf.records.pairs import Pairs, PairSettings
from bert_tf.records.schema import Features, RecordSchema
from bert_tf.records.token_file import SPLITS, Shard, TokenFile, TokenizedText, write_tokens
from bert_tf.settings.programs import PretrainingOptions
from bert_tf.settings.training import PretrainingConfig
from bert_tf.tasks.job import Job, run_job
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.text.vocabulary import SPECIAL_TOKENS, continues_word, ids_by_piece
from tests.small_models import small_config

SCHEMA = RecordSchema(16, 3)
# Lengths from 10 on, so that up to three instances fit a row.
ROOMY = RecordSchema(40, 3)
VOCAB_SIZE = 40
TINY = small_config(VOCAB_SIZE, 16, layers=1)


def vocabulary_ids(pieces: Sequence[str]) -> VocabularyIds:
    """Those of a WordPiece vocabulary."""
    vocab = ids_by_piece(pieces)
    marks = {"markers": SPECIAL_TOKENS, "continues_word": lambda: continues_word(vocab, "##")}
    return VocabularyIds.from_tokenizer(SimpleNamespace(vocab=vocab, **marks))


def instances(count: int, seed: int = 0, schema: RecordSchema = SCHEMA) -> dict[str, np.ndarray]:
    """Rows of ascending pieces, three of them masked, so that the masked ones can be told."""
    rng = np.random.default_rng(seed)
    length, predictions = schema.sequence_length, schema.num_predictions
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
        "next_sentence_labels": rng.integers(0, 2, [count, 1]),
    }


def write_dataset(
    folder: Path, shards=(70, 64, 3), seed: int = 0, data_format: str = "records", schema: RecordSchema = SCHEMA
) -> Path:
    """`folder`/{training,test} with manifest and vocabulary, as bertPrep leaves them, and a model for them."""
    for split, sizes in (("training", shards), ("test", (9, 4))):
        (folder / split).mkdir(parents=True)
        for number, size in enumerate(sizes):
            rows = instances(size, seed + number, schema)
            if data_format == "records":
                write_records(folder / split / f"x_{split}_{number}.tfrecord", rows)
            else:
                path = folder / split / f"x_{split}_{number}.tokens"
                write_token_shard(path, Shard(SPLITS.index(split), number), rows, schema)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{number}" for number in range(VOCAB_SIZE - 5)]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    model = dataclasses.replace(TINY, max_position_embeddings=schema.sequence_length)
    (folder / "bert_config.json").write_text(model.to_json())
    write_manifest(folder, data_format, {"masked_lm_prob": 0.2, "random_seed": 7}, dataset="x")
    return folder


def write_manifest(
    folder: Path, data_format: str, arguments: Mapping[str, Any], sha256: str = "", dataset: str = "sample"
) -> None:
    """The manifest of records or tokens with these and some other arguments, and the shards that are there."""
    others = {"do_lower_case": True, "strip_accents": True, "num_training_shards": 1, "fraction_test_set": 0.1}
    others |= {"masked_lm_prob": 0.15, "max_seq_length": 128, "max_predictions_per_seq": 20, "random_seed": 7}
    stage = "create_tfrecord_files" if data_format == "records" else "create_token_files"
    vocab = VocabEntry(VOCAB_SIZE, sha256 or hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest())
    count = {"num_instances": 1, "num_instance_tokens": 1, "num_tokens": 1}
    suffix = "tfrecord" if data_format == "records" else "tokens"
    files = {split: sorted((folder / split).glob(f"*.{suffix}")) for split in SPLITS}
    shards = {
        split: [FileEntry(f"{split}/{path.name}", path.stat().st_size, "", count) for path in paths]
        for split, paths in files.items()
    }
    shards["training"] = shards["training"] or [FileEntry("training/0", 1, "", count)]
    manifest = Manifest(stage, dataset, 2, {**others, **arguments}, (), vocab, counts=count, shards=shards)
    (folder / "manifest.json").write_text(json.dumps(manifest.to_json()))


def write_token_shard(path: Path, shard: Shard, rows: dict[str, np.ndarray], schema: RecordSchema) -> None:
    """The unmasked rows as ``[CLS] A [SEP] B [SEP]``, A of 5 tokens: a sentence each, two rows a document.

    The training split has two copies of the pairs, the second one of fewer instances.
    """
    ids = rows["input_ids"].copy()
    np.put_along_axis(ids, rows["masked_lm_positions"], rows["masked_lm_ids"], axis=1)
    texts = [row[1 : length - 1] for row, length in zip(ids, rows["input_mask"].sum(axis=1))]
    tokens = np.concatenate([np.delete(text, 5) for text in texts]).astype(np.uint16)
    ends = np.cumsum([len(text) - 1 for text in texts])
    starts = ends - [len(text) - 1 for text in texts]
    sentences = np.sort(np.concatenate([starts, starts + 5, ends[-1:]]))
    documents = np.unique([*range(0, len(sentences) - 1, 4), len(sentences) - 1])
    write_tokens(path, TokenizedText(tokens, sentences, documents), shard, VOCAB_SIZE)
    pairs = Pairs(starts, starts + 5, starts + 5, ends, rows["next_sentence_labels"][:, 0])
    copies = [pairs, pairs.rows(slice(1, None))] if SPLITS[shard.split] == "training" else [pairs]
    settings = PairSettings(schema.sequence_length, len(copies), 7)
    write_pairs(TokenFile(path), settings, list(map(encode_pairs, copies)))


def unmasked_ids(features: Mapping[str, np.ndarray]) -> np.ndarray:
    """The tokens [N, S] before masking."""
    rows, columns = np.nonzero(features["masked_lm_weights"])
    ids = features["input_ids"].copy()
    ids[rows, features["masked_lm_positions"][rows, columns]] = features["masked_lm_ids"][rows, columns]
    return ids


def open_dataset(
    folder: Path, split: str = "training", schema: RecordSchema = SCHEMA, prob: float = 0.2
) -> InstanceSet:
    """The records or token files of a split, as a run opens them."""
    is_records = any((folder / split).glob("*.tfrecord"))
    rules = MaskingRules(0.15 if is_records else prob, schema.num_predictions)
    argument = "input_files" if split == "training" else "eval_files"
    return open_instances(str(folder / split), argument, schema.sequence_length, rules)


def pretrain(config: PretrainingConfig, model_dir: Path, **options: Any) -> bool:
    """Pre-trains in a run folder, with these of the program's other settings."""
    given = PretrainingOptions(model_dir=str(model_dir), **options)
    return run_job(Job(config, given, PretrainingTask.from_settings(config, given)), Workers())


def write_records(path: str | Path, rows: Features) -> None:
    """Writes a shard and its index."""
    shard.write_records(Path(path), [rows])
