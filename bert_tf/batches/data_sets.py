"""The pre-training data that a flag names: token files, or record files with their indexes, already masked."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Callable

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import tf
from bert_tf.batches.data_order import RecordRange
from bert_tf.batches.instance_set import OPEN_FILES, InstanceSet, find_shards
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.token_set import TokenSet
from bert_tf.records.manifest import sample_sha256
from bert_tf.records.schema import RecordSchema
from bert_tf.records.shard import RecordFile, RecordIndex, describe, index_path, load_index
from bert_tf.records.token_file import TOKENS_SUFFIX

# Of each of a shard's three samples: more than a record has, so that every sample contains a record's checksum.
_SAMPLE_BYTES = 4096


@functools.cache
def _parser(schema: RecordSchema) -> Callable[[tf.Tensor, tf.Tensor], dict[str, tf.Tensor]]:
    """A function, traced once, that parses serialised records [N] into features [*shape, ...].

    All at once, which is far faster than one by one.
    """
    stored_features = {
        schema.stored_name(name): tf.io.FixedLenFeature([size], tf.as_dtype(kind)) for name, kind, size in schema.fields
    }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int32)], autograph=False)
    def parse(serialized: tf.Tensor, shape: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.device("/CPU:0"):
            parsed = tf.io.parse_example(serialized, stored_features)
            features = {}
            for name, kind, size in schema.fields:
                values = tf.reshape(parsed[schema.stored_name(name)], tf.concat([shape, [size]], 0))
                features[name] = tf.cast(values, tf.int32 if kind == "int64" else tf.float32)
            return features

    return parse


class RecordSet(InstanceSet):
    """Shards of pre-training records. Missing indexes are made (`load_index`)."""

    stage = "create_tfrecord_files"

    def __init__(self, patterns: str, argument: str):
        super().__init__(patterns, argument)
        has_all = all(index_path(path).exists() for path in self.files)
        progress = Progress(self.files, unit="shards", description="making indexes", disable=has_all)
        sizes: list[int] = []
        self._unstored: dict[Path, RecordIndex] = {}  # indexes that could not be stored beside their shards
        for path in progress:  # one index at a time: all together may be too many open files
            index = load_index(path)
            sizes.append(index.num_records)
            if not index.is_stored:
                self._unstored[path] = index
        self.copies = [sizes]
        schemas = {describe(path): path for path, size in zip(self.files, sizes) if size}
        if not schemas:
            raise UserError(f"the {len(self.files)} shard(s) of --{argument} hold no record; prepare the data again")
        self.schema, *others = schemas
        if others:
            raise UserError(
                f"--{argument}: {schemas[others[0]]} holds {others[0]}, but {schemas[self.schema]} holds {self.schema}"
                "; use records that were made with the same settings"
            )

    @functools.cached_property
    def _samples(self) -> list[str]:
        """A hash of each shard's samples. They contain records' checksums, and so differ if only the masks differ."""
        return [sample_sha256(path, _SAMPLE_BYTES) for path in self.files]

    def fingerprint(self, with_lengths: bool = False) -> str:
        names = (path.name for path in self.files)
        facts: list[object] = list(zip(names, self.copies[0], self._samples))
        if with_lengths:
            lengths = (self._open(number).index.lengths() for number in range(len(self.files)))
            facts += [hashlib.sha256(file_lengths.tobytes()).hexdigest() for file_lengths in lengths]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def lengths(self, ranges: Sequence[RecordRange]) -> np.ndarray:
        parts = [self._open(part.file).index.lengths(part.first, part.num_records) for part in ranges]
        return np.concatenate(parts).astype(np.int64)

    def read(self, ranges: Sequence[RecordRange]) -> list[bytes]:
        """The serialised records of the ranges, checksums verified."""
        return [record for part in ranges for record in self._open(part.file).read(part.first, part.num_records)]

    def features(
        self, ranges: Sequence[RecordRange], mask_seed: int = 0, shape: Sequence[int] = (-1,)
    ) -> dict[str, tf.Tensor]:
        try:
            with tf.device("/CPU:0"):
                return _parser(self.schema)(tf.constant(self.read(ranges)), tf.constant(shape))
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"one of the records {', '.join(self.name_ranges(ranges))} does not hold {self.schema}, as the "
                "first record of its file does; use records that were made with the same settings"
            ) from error

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> RecordFile:
        path = self.files[number]
        return RecordFile(path, self._unstored.get(path))


def open_instances(
    patterns: str, argument: str, sequence_length: int, rules: MaskingRules, single_segments: bool = False
) -> InstanceSet:
    """The set of token files, or of record files, that `patterns` name.

    Args:
      argument: the flag, for messages.
      rules: for token files; records were masked when they were made.
      single_segments: instead of pairs; only token files have them.

    Raises: UserError if files are missing or of both kinds, or if records do not fit the sizes or rules.
    """
    if find_shards(patterns, argument)[0].suffix == TOKENS_SUFFIX:
        return TokenSet(patterns, argument, sequence_length, rules, single_segments)
    records, default_rules = RecordSet(patterns, argument), MaskingRules()
    given_and_possible = {
        "max_seq_length": (sequence_length, records.schema.sequence_length),
        "max_predictions_per_seq": (rules.max_predictions_per_seq, records.schema.num_predictions),
        "masked_lm_prob": (rules.masked_lm_prob, default_rules.masked_lm_prob),
        "whole_word_masking": (rules.whole_word_masking, default_rules.whole_word_masking),
        "no_next_sentence": (single_segments, False),
    }
    for name, (value, possible) in given_and_possible.items():
        if value != possible:
            raise UserError(
                f"--{name}={value}: the records of --{argument}={patterns} were cut, paired and masked when they were "
                f"made, so that only --{name}={possible} fits them; give that, make other records, or use token "
                "files (data/bertPrep.py --action create_token_files)"
            )
    return records
