"""A set of token files: instances of any length, assembled and masked while they are read.

An instance is one or two ranges of its shard's tokens (`records.pairs`); its masks are a function of (seed, epoch,
instance number). So any process can make any instance at any time, and every epoch has new masks.

Before a shard is first used, the checksums of its token file and pairs are verified. This also brings both files into
the page cache, which makes the many small reads that follow fast.

Shape letters: N instances, R ranges, S sequence.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import check_file
from bert_tf.batches.data_order import RecordRange
from bert_tf.batches.instance_set import OPEN_FILES, InstanceSet
from bert_tf.batches.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.records.manifest import MANIFEST_NAME
from bert_tf.records.pair_file import PairFile, decode_pairs, ensure_pairs, open_pairs, pairs_path
from bert_tf.records.pairs import Pairs, PairSettings
from bert_tf.records.schema import RecordSchema
from bert_tf.records.token_file import TokenFile, read_tokens
from bert_tf.text.vocabulary import VOCABULARY

# About this many tokens are assembled and masked at once, few enough for their arrays to stay in the CPU's cache.
_BLOCK_TOKENS = 1 << 17
# Limits the shards in use at once: a large batch has ranges of more shards than may be open.
_RANGES_AT_ONCE = 128


class _Shard(NamedTuple):
    tokens: TokenFile
    pairs: PairFile


class TokenSet(InstanceSet):
    """Token files with their pairs, or single segments, for one sequence length; missing pair files are made.

    Attributes:
      masker: draws the masks.
      pair_settings: the settings that the pairs were drawn with.
    """

    stage = "create_token_files"

    def __init__(
        self, patterns: str, argument: str, sequence_length: int, rules: MaskingRules, single_segments: bool = False
    ):
        super().__init__(patterns, argument)
        settings = PairSettings.for_length(sequence_length, single_segments)
        settings.check(rules.max_predictions_per_seq)
        self.schema = RecordSchema(sequence_length, rules.max_predictions_per_seq)
        if self.folder is None:
            raise UserError(
                f"--{argument}: there is no {MANIFEST_NAME} beside the token files ({self.files[0]}); keep token files "
                "in the folder where bertPrep.py made them"
            )
        check_file(self.folder / VOCABULARY, "bertPrep.py --action verify --repair puts it back")
        self.masker = Masker(rules, VocabularyIds.from_tokenizer(self.tokenizer))
        self.pair_settings, _ = ensure_pairs(self.files, settings)
        self.masked_lm_prob, self.random_seed = rules.masked_lm_prob, self.pair_settings.random_seed
        self._verified: set[int] = set()
        sizes, self._checksums = [], []
        for number in range(len(self.files)):  # one shard at a time: all together may be too many open files
            pairs = self._open_unverified(number).pairs
            sizes.append(pairs.num_instances)
            self._checksums.append(pairs.checksum)
        self.copies = [list(file_sizes) for file_sizes in zip(*sizes)]
        self._first_instances = np.cumsum(np.pad(np.array(self.copies, np.int64), [(0, 0), (1, 0)]), axis=1)

    def facts(self) -> dict[str, Any]:
        pairs, rules = self.pair_settings._asdict(), dataclasses.asdict(self.masker.rules)
        return {**super().facts(), "pairs": pairs, "masking_rules": rules}

    def fingerprint(self, with_lengths: bool = False) -> str:
        # The pairs' checksums cover the lengths and the token files' checksums.
        names = [path.name for path in self.files]
        facts = [*zip(names, self._checksums), dataclasses.asdict(self.masker.rules)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def lengths(self, ranges: Sequence[RecordRange]) -> np.ndarray:
        return self._pairs(ranges).lengths

    def features(
        self, ranges: Sequence[RecordRange], mask_seed: int, shape: Sequence[int] = (-1,)
    ) -> dict[str, np.ndarray]:
        num_tokens = self.schema.sequence_length * sum(part.num_records for part in ranges)
        num_blocks = max(-(-num_tokens // _BLOCK_TOKENS), -(-len(ranges) // _RANGES_AT_ONCE))
        step = -(-len(ranges) // num_blocks)
        blocks = [self._make_block(ranges[start : start + step], mask_seed) for start in range(0, len(ranges), step)]
        types = {"int64": np.int32, "float32": np.float32}
        return {
            name: np.concatenate([block[name] for block in blocks], dtype=types[kind], casting="same_kind").reshape(
                *shape, size
            )
            for name, kind, size in self.schema.fields
        }

    def _make_block(self, ranges: Sequence[RecordRange], mask_seed: int) -> dict[str, np.ndarray]:
        """The features [N, ...] of the ranges' instances, assembled and masked."""
        tokens, pairs = self._read_tokens(ranges, self._pairs(ranges))
        epochs_and_numbers = [
            (part.epoch, self._first_instances[part.epoch % len(self.copies), part.file] + part.first, part.num_records)
            for part in ranges
        ]
        ranges_Rx3 = np.array(epochs_and_numbers, np.int64)
        return self.masker.instances(tokens, pairs, self.schema.sequence_length, seed=mask_seed, ranges=ranges_Rx3)

    def _pairs(self, ranges: Sequence[RecordRange]) -> Pairs:
        num_copies = len(self.copies)
        rows = [
            self._open(part.file).pairs.rows(part.epoch % num_copies, part.first, part.num_records) for part in ranges
        ]
        return decode_pairs(b"".join(rows))

    def _read_tokens(self, ranges: Sequence[RecordRange], pairs: Pairs) -> tuple[np.ndarray, Pairs]:
        """The tokens of the pairs, concatenated, and the pairs as ranges of these tokens."""
        file_numbers, file_of_range = np.unique([part.file for part in ranges], return_inverse=True)
        file_of_pair = np.repeat(file_of_range, [part.num_records for part in ranges])
        starts = np.concatenate([pairs.a_start, pairs.b_start])
        sizes = np.concatenate([pairs.a_end - pairs.a_start, pairs.b_end - pairs.b_start])
        files = [self._open(number).tokens for number in file_numbers.tolist()]
        tokens = read_tokens(files, np.tile(file_of_pair, 2), starts, sizes)
        ends = np.cumsum(sizes)
        (a_start, b_start), (a_end, b_end) = np.split(ends - sizes, 2), np.split(ends, 2)
        return tokens, Pairs(a_start, a_end, b_start, b_end, pairs.is_random_next)

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> _Shard:
        shard = self._open_unverified(number)
        if number not in self._verified:
            shard.tokens.verify()
            shard.pairs.verify()
            self._verified.add(number)
        return shard

    def _open_unverified(self, number: int) -> _Shard:
        tokens = TokenFile(self.files[number])
        if tokens.vocab_size != self.tokenizer.vocab_size:
            raise UserError(
                f"token file {tokens.path} was made with a vocabulary of {tokens.vocab_size:,} pieces, but that of "
                f"{self.folder} has {self.tokenizer.vocab_size:,}; keep them in the folder where bertPrep.py made them"
            )
        pairs = open_pairs(tokens, self.pair_settings)
        if pairs is None:
            path = pairs_path(tokens.path, self.pair_settings)
            raise UserError(f"{path} is gone or was changed while it was in use; start again")
        return _Shard(tokens, pairs)
