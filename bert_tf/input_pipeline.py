"""Batches in the global order: read raw records, parse and mask them whole, ahead of their use.

A rank reads its own rows of each update through a memory map, 64 neighbours at a time, and parses
them with one `tf.io.parse_example`, which is six times faster than parsing one by one. Unmasked
records get their masks there, from (seed, epoch, record), whoever reads them and however often.
Packed updates (`packing`) are planned from the indexes, before anything is read, by all ranks alike.

Shape letters: A micro-batches of an update, B micro-batch, S sequence, P masked positions.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import functools
import glob
import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, Generic, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from bert_tf.data_order import GlobalOrder, Run
from bert_tf.errors import UserError
from bert_tf.masking import Masker, MaskingRules, VocabularyIds
from bert_tf.packing import Places, best_fit, lay_out, predictions_per_row
from bert_tf.records import RecordFile, RecordSchema, describe, load_index
from bert_tf.tokenization import load_vocab

MANIFEST_NAME = "manifest.json"
PREFETCHED_BATCHES = 2
# Far under the usual limit of 1024 open files.
OPEN_FILES = 256

Features = dict[str, tf.Tensor]
Arrays = dict[str, np.ndarray]
Item = TypeVar("Item")


class Batch(NamedTuple):
    """One rank's rows of an update, and what the update of all ranks holds."""

    features: Features  # [A, B, ...]
    num_micro_batches: int | None = None  # of the A, the first so many hold rows, on every rank; None: all
    num_tokens: int = 0  # without padding; 0 where it is not counted
    num_rows: int = 0  # computed, with those that only fill the last micro-batch


class _Part(NamedTuple):
    """The records of a batch, and how its rows are made of their features."""

    runs: list[Run]
    arrange: Callable[[Arrays], Arrays]  # [n, ...] -> [rows, ...]


def _natural_key(path: Path) -> list[Any]:
    """shard_2 before shard_10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def find_shards(patterns: str, argument: str) -> list[Path]:
    """The record files that comma-separated globs, folders and files name, in natural order.

    Raises:
      UserError: one of them names nothing; `argument` is the flag to blame.
    """
    found: list[Path] = []
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        if Path(pattern).is_dir():
            files = sorted(Path(pattern).glob("*.tfrecord*"), key=_natural_key)
        else:
            files = sorted(map(Path, glob.glob(pattern)), key=_natural_key)
        files = [path for path in files if path.is_file() and path.suffix not in (".index", ".tmp")]
        if not files:
            raise UserError(
                f"--{argument}: {pattern!r} names no record file; give a folder of .tfrecord "
                "files or a glob (data/bertPrep.py --action create_tfrecord_files makes them)"
            )
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
      patterns: what named them, with absolute paths.
      schema: lengths of the features that are read.
      masker: what masks the records, None where they are masked already.
      records_per_file: number of records of each shard.
      manifest: the preparation's manifest, {} for foreign files.
      folder: where the manifest and its vocab.txt lie, or None.
    """

    def __init__(self, patterns: str, argument: str):
        self.files = find_shards(patterns, argument)
        self.patterns = ",".join(str(Path(part.strip()).absolute()) for part in patterns.split(",") if part.strip())
        self._stored = self.schema = describe(self.files[0])
        self._indexes = [load_index(path) for path in self.files]
        self.records_per_file = [index.num_records for index in self._indexes]
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
        for path, index in zip(self.files, self._indexes):
            if index.lengths.max(initial=0) > schema.max_seq_length:
                raise UserError(
                    f"{path} has a record of {index.lengths.max()} tokens, but the other records of "
                    f"--{argument} have a length of {schema.max_seq_length}; use records made alike"
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
        """Size of the vocabulary the records were made with, where a manifest says so."""
        return self.manifest.get("vocab", {}).get("size")

    @property
    def random_seed(self) -> int:
        """The seed the records were made with; 0 where no manifest says so."""
        return self.manifest.get("arguments", {}).get("random_seed", 0)

    @property
    def vocab_file(self) -> Path | None:
        path = self.folder / "vocab.txt" if self.folder else None
        return path if path and path.is_file() else None

    def facts(self) -> dict[str, Any]:
        """What a run's config.json says of its data."""
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
        """sha256 of what the order of instances depends on, the shards' names and sizes, and of how they are masked.

        With `packing`, which depends on them, of all lengths too.
        """
        facts: list[Any] = [(path.name, number) for path, number in zip(self.files, self.records_per_file)]
        if self.masker:
            facts.append(dataclasses.asdict(self.masker.rules))
        if packing:
            facts += [hashlib.sha256(index.lengths.tobytes()).hexdigest() for index in self._indexes]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def runs_in_file_order(self, start: int, count: int) -> list[Run]:
        """The records at places [start, start + count), counted through the shards as they are listed."""
        ends = np.cumsum(self.records_per_file)
        found: list[Run] = []
        while count > 0:
            file = int(np.searchsorted(ends, start, side="right"))
            taken = min(count, int(ends[file]) - start)
            found.append(Run(file, self.records_per_file[file] - (int(ends[file]) - start), taken))
            start, count = start + taken, count - taken
        return found

    def name(self, runs: Sequence[Run]) -> list[str]:
        """The runs' files and records, counted from 0, for people; neighbours together."""
        names: list[str] = []
        start = 0
        for place, run in enumerate(runs):
            following = runs[place + 1] if place + 1 < len(runs) else None
            if following and (following.file, following.first) == (run.file, run.first + run.num_records):
                continue
            first, last = runs[start].first, run.first + run.num_records - 1
            names.append(f"{self.files[run.file]} {first}" + (f" to {last}" if last > first else ""))
            start = place + 1
        return names

    @property
    def predictions_per_packed_row(self) -> int:
        """Masked positions that a row of packed instances has room for."""
        share = self.manifest.get("arguments", {}).get("masked_lm_prob")
        return predictions_per_row(self.schema.max_predictions_per_seq, self.schema.max_seq_length, share)

    def lengths(self, runs: Sequence[Run]) -> np.ndarray:
        """int64 [n]: real tokens of each record of the runs, by the indexes."""
        parts = [self._indexes[run.file].lengths[run.first : run.first + run.num_records] for run in runs]
        return np.concatenate(parts).astype(np.int64)

    def check_lengths(self, input_mask: np.ndarray, runs: Sequence[Run]) -> None:
        """For runs of one record each: raises `UserError` where real tokens are not those that the index counts."""
        lengths = self.lengths(runs)
        expected = np.arange(self.schema.max_seq_length) < lengths[:, np.newaxis]
        wrong = np.flatnonzero((expected != (input_mask != 0)).any(axis=1) | (lengths < 1))
        if wrong.size:
            run, length = runs[wrong[0]], lengths[wrong[0]]
            path = self.files[run.file]
            raise UserError(
                f"{path}: record {run.first} does not begin with the {length} tokens that its index gives, "
                f"with nothing but padding after them; delete {path.name}.index, which is then made "
                "again, or train without --packing"
            )

    def read(self, runs: Sequence[Run]) -> list[bytes]:
        """Serialised records of the runs, their checksums verified."""
        records: list[bytes] = []
        for run in runs:
            records += self._open(run.file).read_block(run.first, run.num_records)
        return records

    def parse(self, serialized: list[bytes], runs: Sequence[Run], mask_seed: int) -> dict[str, np.ndarray]:
        """The serialised records [n] of `runs` -> features [n, ...], int32 and float32.

        `mask_seed` decides the masks, where they are not in the records.
        """
        # Not .numpy(), which copies; so they may only be read.
        features = {name: np.asarray(value) for name, value in _parser(self._stored)(tf.constant(serialized)).items()}
        if self.masker:
            numbered = [(run.epoch, self._first_records[run.file] + run.first, run.num_records) for run in runs]
            masked = self.masker.mask(
                features["input_ids"], features["input_mask"], mask_seed, np.array(numbered, np.int64)
            )
            features.update(masked._asdict())
        return features

    @functools.lru_cache(maxsize=OPEN_FILES)  # noqa: B019 - the set lives as long as the run
    def _open(self, number: int) -> RecordFile:
        return RecordFile(self.files[number], self._indexes[number])

    def _make_masker(self, argument: str) -> Masker:
        """For unmasked records: by the rules in their manifest and the vocabulary beside it."""
        made = self.manifest.get("arguments", {})
        try:
            rules = MaskingRules(*(made[name] for name in MaskingRules.__dataclass_fields__))
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
                try:
                    return folder, json.loads(path.read_text(encoding="utf-8"))
                except json.JSONDecodeError as error:
                    raise UserError(f"{path} is not valid JSON ({error}); prepare the data again") from None
        return None, {}


@functools.cache
def _parser(schema: RecordSchema) -> Callable[[tf.Tensor], Features]:
    """Parses serialised records [n] of one schema; traced once."""
    spec = {
        schema.stored_name(name): tf.io.FixedLenFeature([size], tf.as_dtype(kind)) for name, kind, size in schema.fields
    }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    def parse(serialized: tf.Tensor) -> Features:
        with tf.device("/CPU:0"):
            parsed = tf.io.parse_example(serialized, spec)
            return {
                name: tf.cast(parsed[schema.stored_name(name)], tf.int32 if kind == "int64" else tf.float32)
                for name, kind, _ in schema.fields
            }

    return parse


class Batches(Generic[Item]):
    """Iterates over batches that a thread reads, parses and masks ahead of the caller.

    The thread is a pool's: Python waits for those before it leaves, so none is cut off at work.
    """

    def __init__(self, batches: Iterator[Item]):
        self._batches = batches
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="input")
        self._ahead: collections.deque[concurrent.futures.Future] = collections.deque()
        for _ in range(PREFETCHED_BATCHES):
            self._read_one_more()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        batch = self._ahead[0].result()
        if batch is None:
            raise StopIteration
        self._ahead.popleft()
        self._read_one_more()
        return batch

    def _read_one_more(self) -> None:
        self._ahead.append(self._pool.submit(next, self._batches, None))


def _read_part(records: RecordSet, part: _Part, leading: tuple[int, ...], mask_seed: int, vocab_size: int) -> Features:
    """The features of one batch with the `leading` dimensions, on the host.

    Raises: UserError for a record that is damaged or does not fit the vocabulary.
    """
    features = records.parse(records.read(part.runs), part.runs, mask_seed)
    largest_id = max(features["input_ids"].max(), features["masked_lm_ids"].max())
    if largest_id >= vocab_size:
        raise UserError(
            f"the records hold piece number {largest_id}, but the model's vocabulary has only "
            f"{vocab_size} pieces; use the vocabulary the records were made with"
        )
    with tf.device("/CPU:0"):
        return {
            name: tf.constant(value.reshape(*leading, *value.shape[1:]))
            for name, value in part.arrange(features).items()
        }


def _weighted(example_weights: np.ndarray) -> Callable[[Arrays], Arrays]:
    """An instance a row, and how much each one counts."""

    def arrange(features: Arrays) -> Arrays:
        return {
            **features,
            "masked_lm_weights": features["masked_lm_weights"] * example_weights[:, np.newaxis],
            "example_weights": example_weights,
        }

    return arrange


def _packed_part(records: RecordSet, runs: Sequence[Run], rows: np.ndarray, num_rows: int) -> _Part:
    """The instances that lie in `rows` [r, K], numbered by their places in `runs`, laid into `num_rows` rows.

    Rows past the r given ones only fill.
    """
    places = Places.of(rows)
    # Where there is no row for this rank, a record is read all the same: it gives the others' shapes.
    wanted = rows[places] if len(rows) else np.zeros([1], np.int64)
    ends = np.cumsum([run.num_records for run in runs])
    of = np.searchsorted(ends, wanted, side="right")
    own = [
        Run(runs[number].file, runs[number].first + runs[number].num_records - int(before_end), 1, runs[number].epoch)
        for number, before_end in zip(of, ends[of] - wanted)
    ]

    def arrange(features: Arrays) -> Arrays:
        records.check_lengths(features["input_mask"], own)
        features = {name: values[: len(places.row_N)] for name, values in features.items()}
        return lay_out(features, places, num_rows, records.predictions_per_packed_row)

    return _Part(own, arrange)


def training_batches(
    records: RecordSet,
    order: GlobalOrder,
    *,
    first_batch: int,
    num_accumulation_steps: int,
    micro_batch_size: int,
    rank: int,
    num_ranks: int,
    vocab_size: int,
    packing: bool = False,
) -> Batches[Batch]:
    """One rank's rows of update `first_batch` and all that follow, without end.

    Update u holds positions [u*G, (u+1)*G) of the order, G = A * B * ranks; a rank's rows are
    consecutive. With `packing` they are rows of several instances each, so there are fewer
    micro-batches, though equally many on all ranks; what is past them in [A, B, ...] is 0.
    """
    per_rank = num_accumulation_steps * micro_batch_size

    def batches() -> Iterator[Batch]:
        for number in itertools.count(first_batch):
            start = number * num_ranks * per_rank
            runs = order.runs(start, num_ranks * per_rank)
            lengths = records.lengths(runs)
            num_micro_batches: int | None = None
            own_rows = per_rank
            if packing:
                rows = best_fit(lengths, records.schema.max_seq_length)
                num_micro_batches = -(-len(rows) // (micro_batch_size * num_ranks))
                own_rows = num_micro_batches * micro_batch_size
                part = _packed_part(records, runs, rows[rank * own_rows : (rank + 1) * own_rows], per_rank)
            else:
                part = _Part(order.runs(start + rank * per_rank, per_rank), _weighted(np.ones([per_rank], np.float32)))
            features = _read_part(records, part, (num_accumulation_steps, micro_batch_size), order.seed, vocab_size)
            yield Batch(features, num_micro_batches, int(lengths.sum()), own_rows * num_ranks)

    return Batches(batches())


def evaluation_batches(
    records: RecordSet, *, batch_size: int, max_batches: int, rank: int, num_ranks: int, vocab_size: int
) -> Batches[Features]:
    """One rank's share of a single pass over the records in file order; yields features [B, ...].

    All ranks get equally many batches; rows past the end repeat the first record with weight 0.
    `max_batches` > 0 stops after so many batches of each rank. Masks that are drawn are those of
    epoch 0 and the records' own seed: the same in every evaluation of every run.
    """
    num_instances = records.num_instances

    def batches() -> Iterator[Features]:
        num_batches = -(-num_instances // (batch_size * num_ranks))
        for batch in range(min(num_batches, max_batches or num_batches)):
            first = (batch * num_ranks + rank) * batch_size
            num_real = min(max(num_instances - first, 0), batch_size)
            weights = np.zeros([batch_size], np.float32)
            weights[:num_real] = 1.0
            filling = records.runs_in_file_order(0, 1) * (batch_size - num_real)
            part = _Part(records.runs_in_file_order(first, num_real) + filling, _weighted(weights))
            yield _read_part(records, part, (batch_size,), records.random_seed, vocab_size)

    return Batches(batches())
