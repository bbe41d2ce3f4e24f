"""tf.data over the global order: read raw records, parse whole batches, prefetch.

A rank reads its own rows of each update through a memory map, 64 neighbours at a time, and parses
them with one `tf.io.parse_example`, which is six times faster than parsing one by one.

Shape letters: A micro-batches of an update, B micro-batch, S sequence, P masked positions.
"""
from __future__ import annotations

import functools
import glob
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from bert_tf.data_order import GlobalOrder, Run
from bert_tf.errors import UserError
from bert_tf.records import RecordFile, RecordSchema, describe, load_index

MANIFEST_NAME = "manifest.json"
PREFETCHED_BATCHES = 2
# Far under the usual limit of 1024 open files.
OPEN_FILES = 256

Features = Dict[str, tf.Tensor]


def _natural_key(path: Path) -> List[Any]:
    """shard_2 before shard_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def find_shards(patterns: str, argument: str) -> List[Path]:
    """The record files that comma-separated globs, folders and files name, in natural order.

    Raises:
      UserError: one of them names nothing; `argument` is the flag to blame.
    """
    found: List[Path] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        if Path(pattern).is_dir():
            files = sorted(Path(pattern).glob("*.tfrecord*"), key=_natural_key)
        else:
            files = sorted(map(Path, glob.glob(pattern)), key=_natural_key)
        files = [path for path in files if path.is_file() and path.suffix not in (".index", ".tmp")]
        if not files:
            raise UserError(f"--{argument}: {pattern!r} names no record file; give a folder of .tfrecord "
                            "files or a glob (data/bertPrep.py --action create_tfrecord_files makes them)")
        found += files
    if not found:
        raise UserError(f"--{argument} is empty; name a folder of .tfrecord files")
    if len(set(found)) != len(found):
        raise UserError(f"--{argument}={patterns!r} names some files twice; every shard counts once")
    return found


class RecordSet:
    """Shards of pre-training records, with what their manifest says of them.

    Attributes:
      files: the shards.
      schema: lengths of the records' features.
      records_per_file: number of records of each shard.
      manifest: the preparation's manifest, {} for foreign files.
      folder: where the manifest and its vocab.txt lie, or None.
    """

    def __init__(self, patterns: str, argument: str):
        self.files = find_shards(patterns, argument)
        self.schema: RecordSchema = describe(self.files[0])
        self._indexes = [load_index(path) for path in self.files]
        self.records_per_file = [index.num_records for index in self._indexes]
        self.folder, self.manifest = self._find_manifest()

    @property
    def num_instances(self) -> int:
        return sum(self.records_per_file)

    def check(self, schema: RecordSchema, vocab_size: int, argument: str) -> None:
        """Raises `UserError` where the records do not fit the flags or the model's vocabulary."""
        for name in ("max_seq_length", "max_predictions_per_seq"):
            wanted, found = getattr(schema, name), getattr(self.schema, name)
            if wanted != found:
                raise UserError(f"--{name}={wanted}, but the records of --{argument} ({self.files[0]}) have "
                                f"{found}; use --{name}={found} or records made with {wanted}")
        recorded = self.vocab_size
        if recorded is not None and recorded != vocab_size:
            raise UserError(f"the model's vocabulary has {vocab_size} pieces, but the records of --{argument} were "
                            f"made with one of {recorded} ({self.vocab_file or self.folder}); use the same "
                            "vocabulary for both")

    @property
    def vocab_size(self) -> Optional[int]:
        """Size of the vocabulary the records were made with, where a manifest says so."""
        return self.manifest.get("vocab", {}).get("size")

    @property
    def vocab_file(self) -> Optional[Path]:
        path = self.folder / "vocab.txt" if self.folder else None
        return path if path and path.is_file() else None

    def facts(self) -> Dict[str, Any]:
        """What a run's config.json says of its data."""
        manifest_file = self.folder / MANIFEST_NAME if self.folder else None
        return {
            "files": len(self.files), "first_file": str(self.files[0]), "instances": self.num_instances,
            "max_seq_length": self.schema.max_seq_length,
            "max_predictions_per_seq": self.schema.max_predictions_per_seq,
            "manifest_sha256": hashlib.sha256(manifest_file.read_bytes()).hexdigest() if manifest_file else None,
            "dataset": self.manifest.get("dataset"), "counts": self.manifest.get("counts", {}),
        }

    def fingerprint(self) -> str:
        """sha256 of what the order of instances depends on: the shards' names and sizes."""
        facts = [(path.name, number) for path, number in zip(self.files, self.records_per_file)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def runs_in_file_order(self, start: int, count: int) -> List[Run]:
        """The records at places [start, start + count), counted through the shards as they are listed."""
        ends = np.cumsum(self.records_per_file)
        found: List[Run] = []
        while count > 0:
            file = int(np.searchsorted(ends, start, side="right"))
            taken = min(count, int(ends[file]) - start)
            found.append(Run(file, self.records_per_file[file] - (int(ends[file]) - start), taken))
            start, count = start + taken, count - taken
        return found

    def read(self, runs: Sequence[Run]) -> List[bytes]:
        """Serialised records of the runs, their checksums verified."""
        records: List[bytes] = []
        for run in runs:
            records += self._open(run.file).read_block(run.first, run.count)
        return records

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> RecordFile:
        return RecordFile(self.files[number], self._indexes[number])

    def _find_manifest(self) -> Tuple[Optional[Path], Dict[str, Any]]:
        for folder in (self.files[0].parent.parent, self.files[0].parent):
            path = folder / MANIFEST_NAME
            if path.is_file():
                try:
                    return folder, json.loads(path.read_text(encoding="utf-8"))
                except json.JSONDecodeError as error:
                    raise UserError(f"{path} is not valid JSON ({error}); prepare the data again") from None
        return None, {}


def _parse(serialized: tf.Tensor, example_weights: tf.Tensor, schema: RecordSchema,
           leading: Tuple[int, ...]) -> Features:
    """Serialised records [n] -> features with the `leading` dimensions, int32 and float32."""
    spec = {name: tf.io.FixedLenFeature([size], tf.as_dtype(kind)) for name, kind, size in schema.fields}
    parsed = tf.io.parse_example(serialized, spec)
    features = {name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
                for name, value in parsed.items()}
    features["masked_lm_weights"] *= example_weights[:, tf.newaxis]
    features = {name: tf.reshape(value, [*leading, value.shape[1]]) for name, value in features.items()}
    features["example_weights"] = tf.reshape(example_weights, leading)
    return features


class Batches:
    """Iterates over parsed batches and turns a reader's failure back into its own exception.

    An exception raised inside tf.data arrives as a TensorFlow error with a traceback in its text;
    the reader's own is kept aside and raised instead.
    """

    def __init__(self, rows: Callable[[], Iterator[Tuple[List[bytes], np.ndarray]]], schema: RecordSchema,
                 leading: Tuple[int, ...], vocab_size: int):
        self._rows, self._vocab_size = rows, vocab_size
        self._failure: Optional[Exception] = None
        num_rows = int(np.prod(leading))
        signature = (tf.TensorSpec([num_rows], tf.string), tf.TensorSpec([num_rows], tf.float32))
        dataset = tf.data.Dataset.from_generator(self._guarded, output_signature=signature)
        dataset = dataset.map(
            lambda serialized, weights: self._with_largest_id(_parse(serialized, weights, schema, leading)),
            num_parallel_calls=1, deterministic=True)
        self._iterator = iter(dataset.prefetch(PREFETCHED_BATCHES))

    def __iter__(self) -> Iterator[Features]:
        return self

    def __next__(self) -> Features:
        try:
            features, largest_id = next(self._iterator)
        except (tf.errors.OpError, RuntimeError):
            if self._failure is not None:
                raise self._failure from None
            raise
        if int(largest_id) >= self._vocab_size:
            raise UserError(f"the records hold piece number {int(largest_id)}, but the model's vocabulary has only "
                            f"{self._vocab_size} pieces; use the vocabulary the records were made with")
        return features

    @staticmethod
    def _with_largest_id(features: Features) -> Tuple[Features, tf.Tensor]:
        return features, tf.maximum(tf.reduce_max(features["input_ids"]), tf.reduce_max(features["masked_lm_ids"]))

    def _guarded(self) -> Iterator[Tuple[List[bytes], np.ndarray]]:
        try:
            yield from self._rows()
        except Exception as error:
            self._failure = error
            raise


def training_batches(records: RecordSet, order: GlobalOrder, *, first_batch: int, num_accumulation_steps: int,
                     micro_batch_size: int, rank: int, num_ranks: int, vocab_size: int) -> Batches:
    """One rank's rows of update `first_batch` and all that follow, without end.

    Update u holds positions [u*G, (u+1)*G) of the order, G = A * B * ranks; a rank's rows are
    consecutive. Yields features [A, B, ...].
    """
    per_rank = num_accumulation_steps * micro_batch_size

    def rows() -> Iterator[Tuple[List[bytes], np.ndarray]]:
        weights = np.ones([per_rank], np.float32)
        start = (first_batch * num_ranks + rank) * per_rank
        while True:
            yield records.read(order.runs(start, per_rank)), weights
            start += per_rank * num_ranks

    return Batches(rows, records.schema, (num_accumulation_steps, micro_batch_size), vocab_size)


def evaluation_batches(records: RecordSet, *, batch_size: int, max_batches: int, rank: int, num_ranks: int,
                       vocab_size: int) -> Batches:
    """One rank's share of a single pass over the records in file order; yields features [B, ...].

    All ranks get equally many batches; rows past the end repeat the first record with weight 0.
    `max_batches` > 0 stops after so many batches of each rank.
    """
    num_instances = records.num_instances

    def rows() -> Iterator[Tuple[List[bytes], np.ndarray]]:
        num_batches = -(-num_instances // (batch_size * num_ranks))
        for batch in range(min(num_batches, max_batches or num_batches)):
            first = (batch * num_ranks + rank) * batch_size
            num_real = min(max(num_instances - first, 0), batch_size)
            weights = np.zeros([batch_size], np.float32)
            weights[:num_real] = 1.0
            filling = records.runs_in_file_order(0, 1) * (batch_size - num_real)
            yield records.read(records.runs_in_file_order(first, num_real) + filling), weights

    return Batches(rows, records.schema, (batch_size,), vocab_size)
