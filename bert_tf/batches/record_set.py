"""A set of record files with their indexes: instances that are already assembled and masked."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.batches.data_order import RecordRange
from bert_tf.batches.instance_set import OPEN_FILES, InstanceSet
from bert_tf.records.index import RecordIndex, index_path, load_index, open_index
from bert_tf.records.reader import RecordFile, describe
from bert_tf.records.schema import RecordSchema


class RecordSet(InstanceSet):
    """Shards of pre-training records. Missing indexes are made (`load_index`)."""

    stage = "create_tfrecord_files"

    def __init__(self, patterns: str, argument: str):
        super().__init__(patterns, argument)
        has_all = all(index_path(path).exists() for path in self.files)
        shown = Progress(self.files, unit="shards", description="making indexes", disable=has_all)
        indexes = [load_index(path) for path in shown]
        self.copies = [[index.num_records for index in indexes]]
        # Indexes that could not be stored. The stored ones are opened when needed.
        self._unstored = {number: index for number, index in enumerate(indexes) if not index.is_stored}
        self.schema = self._common_schema(argument)

    def fingerprint(self, with_lengths: bool = False) -> str:
        facts: list[Any] = [(path.name, number) for path, number in zip(self.files, self.copies[0])]
        if with_lengths:
            facts += [
                hashlib.sha256(self._index(number).lengths().tobytes()).hexdigest() for number in range(len(self.files))
            ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def lengths(self, ranges: Sequence[RecordRange]) -> np.ndarray:
        parts = [self._index(part.file).lengths(part.first, part.num_records) for part in ranges]
        return np.concatenate(parts).astype(np.int64)

    def check_lengths(self, input_mask: np.ndarray, ranges: Sequence[RecordRange]) -> None:
        """Raises `UserError` if a record's real tokens do not match its index; each range must be a single record."""
        lengths = self.lengths(ranges)
        expected = np.arange(self.schema.sequence_length) < lengths[:, np.newaxis]
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

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> RecordFile:
        return RecordFile(self.files[number], self._index(number))

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _index(self, number: int) -> RecordIndex:
        # load_index rebuilds it if it has been deleted since.
        path = self.files[number]
        return self._unstored.get(number) or open_index(path) or load_index(path)

    def _common_schema(self, argument: str) -> RecordSchema:
        """The schema of every shard's first record; empty shards are ignored.

        Raises: UserError if all shards are empty or their schemas differ.
        """
        filled = [path for path, num_records in zip(self.files, self.copies[0]) if num_records]
        if not filled:
            raise UserError(f"the {len(self.files)} shard(s) of --{argument} hold no record; prepare the data again")
        schema = describe(filled[0])
        for path in filled[1:]:
            if (schema_here := describe(path)) != schema:
                raise UserError(
                    f"--{argument}: {path} holds {schema_here}, but {filled[0]} holds {schema}; "
                    "use records that were made with the same settings"
                )
        return schema
