"""A set of shards with their indexes and manifest: finds them, checks them against flags, reads and masks records."""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, read_json_object, split_paths
from bert_tf.base.progress import Progress
from bert_tf.batches.data_order import RecordRange
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.batches.packing import predictions_per_row
from bert_tf.records.index import INDEX_SUFFIX, RecordIndex, index_path, load_index, open_index
from bert_tf.records.reader import RecordFile, describe
from bert_tf.records.schema import RecordSchema
from bert_tf.records.tfrecord import UNPACKED_SUFFIX
from bert_tf.text.vocabulary import load_vocab

MANIFEST_NAME = "manifest.json"
_NOT_SHARDS = (INDEX_SUFFIX, UNPACKED_SUFFIX, TEMPORARY_SUFFIX)
# Shards kept open, and as many indexes: far below the usual limit of 1024 open files.
OPEN_FILES = 256


def _natural_key(path: Path) -> list[Any]:
    """Sorts shard_2 before shard_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def find_shards(patterns: str, argument: str) -> list[Path]:
    """The record files that comma-separated globs, folders and files name, in natural order.

    Raises:
      UserError: a pattern names no file; `argument` is the flag that the message names.
    """
    found: list[Path] = []
    for pattern in split_paths(patterns):
        if Path(pattern).is_dir():
            files = sorted(Path(pattern).glob("*.tfrecord*"), key=_natural_key)
        else:
            files = sorted(map(Path, glob.glob(pattern)), key=_natural_key)
        files = [path for path in files if path.is_file() and path.suffix not in _NOT_SHARDS]
        if not files:
            raise UserError(
                f"--{argument}: {pattern!r} names no record file; give a folder of .tfrecord "
                "files or a glob (data/bertPrep.py --action create_tfrecord_files makes them); "
                "a path that holds a comma stands alone"
            )
        found += files
    if not found:
        raise UserError(f"--{argument} is empty; name a folder of .tfrecord files")
    if len(set(found)) != len(found):
        raise UserError(f"--{argument}={patterns!r} names some files twice; every shard counts once")
    return found


class RecordSet:
    """Shards of pre-training records with their manifest. Missing indexes are made (`load_index`).

    Attributes:
      files: the shards.
      patterns: the globs, folders and files that named them, with absolute paths.
      stored_schema: of the features in the shards.
      schema: of the features after masking.
      masker: for unmasked records (dynamic masking); None where the records are masked already.
      records_per_file: number of records of each shard.
      manifest: that bertPrep.py wrote, {} for shards without one.
      folder: where the manifest and its vocab.txt lie, or None.
    """

    def __init__(self, patterns: str, argument: str):
        self.files = find_shards(patterns, argument)
        self.patterns = ",".join(str(Path(part).absolute()) for part in split_paths(patterns))
        has_all = all(index_path(path).exists() for path in self.files)
        shown = Progress(self.files, unit="shards", description="making indexes", disable=has_all)
        indexes = [load_index(path) for path in shown]
        self.records_per_file = [index.num_records for index in indexes]
        # Indexes that could not be stored; stored ones are opened when needed.
        self._unstored = {number: index for number, index in enumerate(indexes) if not index.is_stored}
        self.stored_schema = self.schema = self._common_schema(argument)
        self._first_records = np.cumsum([0, *self.records_per_file])
        self.folder, self.manifest = self._find_manifest()
        self.masker: Masker | None = None
        if not self.schema.max_predictions_per_seq:
            self.masker = self._make_masker(argument)
            self.schema = self.schema._replace(max_predictions_per_seq=self.masker.rules.max_predictions_per_seq)

    @property
    def num_instances(self) -> int:
        return sum(self.records_per_file)

    def check(self, schema: RecordSchema, vocab_size: int, argument: str) -> None:
        """Raises `UserError` where the records do not fit the flags or the model's vocabulary."""
        for name in ("max_seq_length", "max_predictions_per_seq"):
            wanted, found = getattr(schema, name), getattr(self.schema, name)
            if wanted != found:
                raise UserError(
                    f"--{name}={wanted}, but the records of --{argument} ({self.files[0]}) have "
                    f"{found}; use --{name}={found} or records made with {wanted}"
                )
        recorded = self.vocab_size
        if recorded is not None and recorded != vocab_size:
            raise UserError(
                f"the model's vocabulary has {vocab_size} pieces, but the records of --{argument} were "
                f"made with one of {recorded} ({self.vocab_file or self.folder}); use the same "
                "vocabulary for both"
            )

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary the records were made with; None without a manifest."""
        return self.manifest.get("vocab", {}).get("size")

    @property
    def random_seed(self) -> int:
        """The seed the records were made with; 0 without a manifest."""
        return self.manifest.get("arguments", {}).get("random_seed", 0)

    @property
    def vocab_file(self) -> Path | None:
        path = self.folder / "vocab.txt" if self.folder else None
        return path if path and path.is_file() else None

    def facts(self) -> dict[str, Any]:
        """The description of the data in a run's config.json."""
        manifest_file = self.folder / MANIFEST_NAME if self.folder else None
        return {
            "input_files": self.patterns,
            "files": len(self.files),
            "first_file": str(self.files[0]),
            "instances": self.num_instances,
            "max_seq_length": self.schema.max_seq_length,
            "max_predictions_per_seq": self.schema.max_predictions_per_seq,
            "masking": "dynamic" if self.masker else "static",
            "manifest_sha256": hashlib.sha256(manifest_file.read_bytes()).hexdigest() if manifest_file else None,
            "dataset": self.manifest.get("dataset"),
            "counts": self.manifest.get("counts", {}),
        }

    def fingerprint(self, packing: bool = False) -> str:
        """sha256 of what determines the batches: the shards' names and sizes, and the masking rules.

        With `packing`, all lengths, too.
        """
        facts: list[Any] = [(path.name, number) for path, number in zip(self.files, self.records_per_file)]
        if self.masker:
            facts.append(dataclasses.asdict(self.masker.rules))
        if packing:
            facts += [
                hashlib.sha256(self._index(number).lengths().tobytes()).hexdigest() for number in range(len(self.files))
            ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def ranges_in_file_order(self, start: int, count: int) -> list[RecordRange]:
        """The records at places [start, start + count) of all shards, one after the other."""
        found: list[RecordRange] = []
        while count > 0:
            file = int(np.searchsorted(self._first_records, start, side="right")) - 1
            first = start - int(self._first_records[file])
            taken = min(count, self.records_per_file[file] - first)
            found.append(RecordRange(file, first, taken))
            start, count = start + taken, count - taken
        return found

    def name(self, ranges: Sequence[RecordRange]) -> list[str]:
        """The ranges' files and record numbers (from 0), for messages."""
        return [
            f"{self.files[part.file]} {part.first}"
            + (f" to {part.first + part.num_records - 1}" if part.num_records > 1 else "")
            for part in ranges
        ]

    @property
    def predictions_per_packed_row(self) -> int:
        """Masked positions that a packed row has room for."""
        masked_lm_prob = self.manifest.get("arguments", {}).get("masked_lm_prob")
        return predictions_per_row(self.schema.max_predictions_per_seq, self.schema.max_seq_length, masked_lm_prob)

    def lengths(self, ranges: Sequence[RecordRange]) -> np.ndarray:
        """int64 [n]: real tokens of each record of the ranges, from the indexes."""
        parts = [self._index(part.file).lengths(part.first, part.num_records) for part in ranges]
        return np.concatenate(parts).astype(np.int64)

    def check_lengths(self, input_mask: np.ndarray, ranges: Sequence[RecordRange]) -> None:
        """Raises `UserError` where a record's real tokens differ from its index; `ranges` hold one record each."""
        lengths = self.lengths(ranges)
        expected = np.arange(self.schema.max_seq_length) < lengths[:, np.newaxis]
        wrong = np.flatnonzero((expected != (input_mask != 0)).any(axis=1) | (lengths < 1))
        if wrong.size:
            record_range, length = ranges[wrong[0]], lengths[wrong[0]]
            path = self.files[record_range.file]
            raise UserError(
                f"{path}: record {record_range.first} does not hold {length} tokens followed by padding, as its index "
                f"says; delete {path.name}.index, which is then made again, or train without --packing"
            )

    def read(self, ranges: Sequence[RecordRange]) -> list[bytes]:
        """The serialised records of the ranges, checksums verified."""
        records: list[bytes] = []
        for record_range in ranges:
            records += self._open(record_range.file).read_block(record_range.first, record_range.num_records)
        return records

    def add_masks(self, features: dict[str, np.ndarray], ranges: Sequence[RecordRange], mask_seed: int) -> None:
        """Masks the `features` [n, ...] of unmasked records; does nothing for records that are masked already.

        The masks are a function of `mask_seed` and each record's epoch and number.
        """
        if self.masker:
            numbered = [(part.epoch, self._first_records[part.file] + part.first, part.num_records) for part in ranges]
            masked = self.masker.mask(
                features["input_ids"], features["input_mask"], mask_seed, np.array(numbered, np.int64)
            )
            features.update(masked._asdict())

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> RecordFile:
        return RecordFile(self.files[number], self._index(number))

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _index(self, number: int) -> RecordIndex:
        # load_index makes it again if somebody has deleted it since.
        path = self.files[number]
        return self._unstored.get(number) or open_index(path) or load_index(path)

    def _common_schema(self, argument: str) -> RecordSchema:
        """The schema of every shard's first record; empty shards are ignored.

        Raises: UserError where all shards are empty, or schemas differ.
        """
        filled = [path for path, num_records in zip(self.files, self.records_per_file) if num_records]
        if not filled:
            raise UserError(f"the {len(self.files)} shard(s) of --{argument} hold no record; prepare the data again")
        schema = describe(filled[0])
        for path in filled[1:]:
            if (other := describe(path)) != schema:
                raise UserError(
                    f"--{argument}: {path} holds {other}, but {filled[0]} holds {schema}; "
                    "use records that were made with the same settings"
                )
        return schema

    def _make_masker(self, argument: str) -> Masker:
        """For unmasked records: with the rules in their manifest and the vocabulary beside it."""
        arguments = self.manifest.get("arguments", {})
        try:
            rules = MaskingRules(*(arguments[name] for name in MaskingRules.__dataclass_fields__))
        except KeyError as error:
            raise UserError(
                f"the records of --{argument} ({self.files[0]}) are unmasked, but no {MANIFEST_NAME} beside them says "
                f"how to mask them ({error.args[0]} is missing); keep records in the folder where bertPrep.py made them"
            ) from None
        assert self.folder is not None  # where the manifest is
        return Masker(rules, VocabularyIds.of(load_vocab(self.folder / "vocab.txt")))

    def _find_manifest(self) -> tuple[Path | None, dict[str, Any]]:
        for folder in (self.files[0].parent.parent, self.files[0].parent):
            path = folder / MANIFEST_NAME
            if path.is_file():
                manifest = read_json_object(path, "prepare the data again")
                if not all(isinstance(manifest.get(name, {}), dict) for name in ("arguments", "vocab", "counts")):
                    raise UserError(f"{path} is not what bertPrep.py writes; prepare the data again")
                return folder, manifest
        return None, {}
