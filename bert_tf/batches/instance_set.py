"""What record sets and token sets have in common: their files and manifest, checked against the flags."""

from __future__ import annotations

import functools
import glob
import hashlib
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, sha256_of_file, split_paths
from bert_tf.base.machine.hardware import allow_open_files
from bert_tf.batches.data_order import RecordRange
from bert_tf.batches.packing import predictions_per_row
from bert_tf.records.manifest import MANIFEST_NAME, Manifest, read_manifest
from bert_tf.records.pairs import SUFFIXES
from bert_tf.records.schema import RecordSchema
from bert_tf.records.shard import INDEX_SUFFIX
from bert_tf.records.tfrecord import UNPACKED_SUFFIX
from bert_tf.records.token_file import TOKENS_SUFFIX
from bert_tf.text.tokenizer import open_tokenizer, original_vocabulary
from bert_tf.text.vocabulary import VOCABULARY, Tokenizer, check_vocabulary_size, load_pieces

_NOT_SHARDS = (INDEX_SUFFIX, *SUFFIXES, UNPACKED_SUFFIX, TEMPORARY_SUFFIX)
# Shards kept open at a time, each with its index or pair file: together below the usual limit on open files.
OPEN_FILES, _USUAL_LIMIT = 256, 1024
OTHER_TOKENIZATION = "were made with another vocabulary, or with capitals or accents treated otherwise, than"


def _natural_key(path: Path) -> list[Any]:
    """A sort key that puts shard_2 before shard_10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", str(path))]


def find_shards(patterns: str, argument: str) -> list[Path]:
    """The record files, or the token files, named by comma-separated globs, folders and files, in natural order.

    Raises:
      UserError: a pattern names no file, some files are named twice, or there are files of both kinds; the message
        names the flag, `argument`.
    """
    shards: list[Path] = []
    for pattern in split_paths(patterns):
        if Path(pattern).is_dir():
            files = [*Path(pattern).glob("*.tfrecord*"), *Path(pattern).glob(f"*{TOKENS_SUFFIX}")]
        else:
            files = list(map(Path, glob.glob(pattern)))
        files = sorted((path for path in files if path.is_file() and path.suffix not in _NOT_SHARDS), key=_natural_key)
        if not files:
            raise UserError(
                f"--{argument}: {pattern!r} names no record or token file; give a folder of .tfrecord or .tokens files "
                "or a glob, of prepared data the folder 'training' in it, or 'test' for --eval_files; a path that "
                "holds a comma must be given alone"
            )
        shards += files
    if len({os.path.abspath(path) for path in shards}) != len(shards):
        raise UserError(f"--{argument}={patterns!r} names some files twice; every shard counts once")
    kinds = {path.suffix == TOKENS_SUFFIX: path for path in shards}
    if len(kinds) > 1:
        raise UserError(f"--{argument} names records ({kinds[False]}) and token files ({kinds[True]}); name one kind")
    return shards


def _tokenization(manifest: Manifest) -> tuple[object, ...]:
    """What determines a text's token ids: vocabulary, casing and accents."""
    return manifest.vocab, manifest.arguments.get("do_lower_case"), manifest.arguments.get("strip_accents")


class InstanceSet:
    """Shards of pre-training instances with their manifest.

    Attributes:
      files: the shards.
      patterns: the globs, folders and files that named them, with absolute paths.
      manifest: the one that bertPrep.py wrote; None for shards without one.
      folder: the folder of the manifest and its vocab.txt, or None.
      stage: the action of bertPrep.py that makes such shards (set by the subclasses; --plan reads shards of any).
      schema: the features of an instance (set by the subclasses).
      copies: numbers of instances [copies][files]; epoch e is a pass over copy e % copies (set by the subclasses).
      masked_lm_prob: the share of tokens that are predicted; None if unknown.
      random_seed: the seed the instances were made with; 0 without a manifest.
    """

    stage: str | None = None  # any
    schema: RecordSchema
    copies: list[list[int]]

    def __init__(self, patterns: str, argument: str):
        allow_open_files(_USUAL_LIMIT)
        self.files, self._argument = find_shards(patterns, argument), argument
        self.patterns = ",".join(str(Path(part).absolute()) for part in split_paths(patterns))
        self.folder, self.manifest = self._find_manifest({Path(part) for part in split_paths(patterns)})
        arguments = self.manifest.arguments if self.manifest else {}
        self.masked_lm_prob: float | None = arguments.get("masked_lm_prob")
        self.random_seed: int = arguments.get("random_seed", 0)

    @property
    def num_instances(self) -> int:
        """The number of instances in the first copy."""
        return sum(self.copies[0])

    def check_vocabulary(self, num_rows: int, *, has_reserved_rows: bool) -> str:
        """A warning if the instances' vocabulary leaves many of the `num_rows` rows of a word table unused, or "".

        `has_reserved_rows`: whether the table may have more rows than padding needs, as other publishers' models do.

        Raises: UserError if it does not fit the table.
        """
        if self.vocab_size is None:
            return ""
        source = f"the vocabulary in {self.folder}, with which the data of --{self._argument} were made,"
        return check_vocabulary_size(self.vocab_size, num_rows, source, has_reserved_rows)

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary the shards were made with; None without a manifest."""
        return self.manifest.vocab.size if self.manifest and self.manifest.vocab else None

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The one that the shards were made with, for sets whose folder has a vocab.txt."""
        assert self.folder and self.manifest
        arguments = self.manifest.arguments
        return open_tokenizer(original_vocabulary(self.folder), arguments["do_lower_case"], arguments["strip_accents"])

    def tokenizer_files(self) -> dict[str, str]:
        """The files, by name, of the tokenizer that the shards were made with; {} if it is not known.

        Raises:
          UserError: the folder's vocabulary is not the one that the manifest names.
        """
        if self.folder is None or not (self.folder / VOCABULARY).is_file():
            return {}
        assert self.manifest and self.manifest.vocab
        original, pieces_file = original_vocabulary(self.folder), self.folder / VOCABULARY
        is_changed = sha256_of_file(original) != self.manifest.vocab.sha256
        if is_changed or load_pieces(pieces_file) != tuple(self.tokenizer.inv_vocab):
            path = original if is_changed else pieces_file
            raise UserError(
                f"{path} is not the vocabulary that the data beside it were made with; put the original back, or make "
                "the data again (data/bertPrep.py --action verify finds what changed)"
            )
        return self.tokenizer.files()

    def facts(self) -> dict[str, Any]:
        """The description of the data in a run's config.json."""
        manifest_file = self.folder / MANIFEST_NAME if self.folder else None
        return {
            "input_files": self.patterns,
            "files": len(self.files),
            "first_file": str(self.files[0]),
            "instances": self.num_instances,
            "max_seq_length": self.schema.sequence_length,
            "max_predictions_per_seq": self.schema.num_predictions,
            "manifest_sha256": hashlib.sha256(manifest_file.read_bytes()).hexdigest() if manifest_file else None,
            "dataset": self.manifest.dataset if self.manifest else None,
            "counts": self.manifest.counts if self.manifest else {},
        }

    def ranges_in_file_order(self, start: int, count: int) -> list[RecordRange]:
        """The instances [start, start + count) of all shards concatenated."""
        ranges = []
        for file, num_records in enumerate(self.copies[0]):
            if start < num_records and count > 0:
                ranges.append(RecordRange(file, start, min(count, num_records - start)))
                count -= ranges[-1].num_records
            start = max(start - num_records, 0)
        return ranges

    def name_ranges(self, ranges: Sequence[RecordRange]) -> list[str]:
        """Each range's file and instance numbers in it (counted from 0), for messages."""
        return [
            f"{self.files[part.file]} {part.first}"
            + (f" to {part.first + part.num_records - 1}" if part.num_records > 1 else "")
            + (f" of copy {part.epoch % len(self.copies)}" if len(self.copies) > 1 else "")
            for part in ranges
        ]

    @property
    def predictions_per_packed_row(self) -> int:
        """The number of masked positions that a packed row has room for."""
        size, length = self.schema.num_predictions, self.schema.sequence_length
        return predictions_per_row(size, length, self.masked_lm_prob)

    def fingerprint(self, with_lengths: bool = False) -> str:
        """sha256 of what determines the batches; packed ones also depend on the instances' lengths (`with_lengths`)."""
        raise NotImplementedError

    def lengths(self, ranges: Sequence[RecordRange]) -> np.ndarray:
        """int64 [N]: number of real tokens of each instance of the ranges, without reading the instances."""
        raise NotImplementedError

    def features(self, ranges: Sequence[RecordRange], mask_seed: int, shape: Sequence[int] = (-1,)) -> dict[str, Any]:
        """The features of the ranges' instances, int32 and float32 [*shape, ...]: arrays, or tensors on the host.

        `mask_seed` determines the masks of token files; records are masked already.

        Raises: UserError if a file is damaged or cannot be read.
        """
        raise NotImplementedError

    def _find_manifest(self, named: Collection[Path]) -> tuple[Path | None, Manifest | None]:
        """Those of the first file.

        Raises: UserError if other files were made with another vocabulary or casing, or if a folder that is itself
          `named` lacks files.
        """
        shard_folders = dict.fromkeys(path.parent for path in self.files)
        manifests = list(map(self._manifest_beside, shard_folders))
        folder, manifest = manifests[0]
        for shard_folder, (other_folder, other) in zip(shard_folders, manifests):
            if other_folder and other and shard_folder in named:
                self._require_whole(shard_folder, {other_folder / entry.file for entry in other.entries})
            if manifest and other and _tokenization(other) != _tokenization(manifest):
                raise UserError(
                    f"--{self._argument}: the data of {other_folder} {OTHER_TOKENIZATION} those of {folder}; "
                    "use the same vocabulary and casing for all"
                )
        return folder, manifest

    def _require_whole(self, folder: Path, listed: set[Path]) -> None:
        """Raises: UserError if a folder lacks a file that its manifest lists."""
        if missing := sorted(path for path in listed.difference(self.files) if path.parent == folder):
            raise UserError(
                f"--{self._argument}={folder} lacks {len(missing)} of the files that {MANIFEST_NAME} lists there, such "
                f"as {missing[0].name}: copy the folder again, or make them (data/bertPrep.py --action verify "
                f"--repair); to do without them, name the others: {folder}/*{missing[0].suffix}"
            )

    def _manifest_beside(self, shard_folder: Path) -> tuple[Path | None, Manifest | None]:
        for folder in (shard_folder.parent, shard_folder):
            if manifest := read_manifest(folder / MANIFEST_NAME, self.stage):
                return folder, manifest
        return None, None
