"""Distributes documents to training and test shards, one sentence per line.

The formatted files are streamed into an index of (file, offset, length); documents are assigned from the
largest down, each to the shard that is least full relative to its capacity; each shard is then written
independently, its documents shuffled. The whole text is never in memory, a document is never split, and
for given text and arguments the bytes depend only on the seed, not on the number of processes.

A shard's documents stand all over the text, and a disk takes fifty times as long for millions of single
documents as for the text from beginning to end. So that is read once, in large pieces, each of which is
written with its documents ordered by shard; a shard then reads one range of each piece.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import uuid
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, atomic_file
from bert_tf.base.progress import Progress
from data.corpora.text_files import decoded, formatted_lines
from data.running.entries import FileEntry
from data.running.manifest import Stage
from data.running.workers import Workers, make_files
from data.sharding import sentences

SPLITS = ("training", "test")
# Tells the random stream of `assign_documents` apart from those of the splits, whose numbers are 0 and 1.
_TIES = 2
# Converted to Python integers at once, which take five times the memory of an array's.
_ASSIGNMENT_BLOCK = 1 << 18
_REPORT_BYTES = 1 << 20
# A worker holds up to twice as much text. Text that is one piece is in the disk's cache: it is not ordered first.
PIECE_BYTES = 128 << 20
# Documents that stand no further apart are read together.
_LARGEST_GAP_BYTES = 1 << 14


class ShardingSettings(NamedTuple):
    """The numbers of shards, and the fraction of the bytes that goes to the test split.

    Raises (in `validated`):
      UserError: a number or the fraction is out of range, or only one of fraction and test shards is 0.
    """

    num_training_shards: int
    num_test_shards: int
    fraction_test_set: float
    segmentation_method: str
    random_seed: int

    def validated(self) -> ShardingSettings:
        if self.num_training_shards < 1:
            raise UserError(f"n_training_shards={self.num_training_shards}: must be at least 1")
        if self.num_test_shards < 0:
            raise UserError(f"n_test_shards={self.num_test_shards}: must be 0 or more")
        if not 0 <= self.fraction_test_set < 1:
            raise UserError(f"fraction_test_set={self.fraction_test_set}: must be in [0, 1)")
        if (self.num_test_shards == 0) != (self.fraction_test_set == 0):
            raise UserError(
                f"n_test_shards={self.num_test_shards} and fraction_test_set="
                f"{self.fraction_test_set}: both must be 0 or neither"
            )
        sentences.get_splitter(self.segmentation_method)
        return self


class DocumentIndex(NamedTuple):
    """Each document's file number [n], byte offset [n] and length [n] without line end; in the order of the files."""

    files: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.offsets)

    def select(self, which: np.ndarray | slice) -> DocumentIndex:
        return DocumentIndex(*(column[which] for column in self))


class WriteTask(NamedTuple):
    """What a worker needs to write a piece or a shard: documents of the `inputs`, and their order."""

    output: str
    inputs: tuple[str, ...]
    documents: DocumentIndex
    order: np.ndarray


def index_documents(paths: Sequence[Path]) -> DocumentIndex:
    """Reads the formatted files once; empty lines are not documents.

    Raises: UserError where a document is too large.
    """
    files, offsets, lengths = array("H"), array("Q"), array("I")
    unreported = 0
    total_bytes = sum(path.stat().st_size for path in paths)
    with Progress(total=total_bytes, unit="B", description="indexing documents") as bar:
        for number, path in enumerate(paths):
            for offset, document in formatted_lines(path):
                if document:
                    files.append(number)
                    offsets.append(offset)
                    lengths.append(len(document))
                unreported += len(document) + 1
                if unreported >= _REPORT_BYTES:
                    bar.update(unreported)
                    unreported = 0
        bar.update(unreported)
    return DocumentIndex(
        np.frombuffer(files, np.uint16), np.frombuffer(offsets, np.uint64), np.frombuffer(lengths, np.uint32)
    )


def assign_documents(lengths: np.ndarray, settings: ShardingSettings) -> np.ndarray:
    """The shard of each document, int32 [n]: training shards first, then test shards.

    Greedy from the largest document down, to the shard with the fewest bytes relative to its capacity;
    documents of equal size in a seeded order. Every shard gets a document before any gets two.
    """
    num_training, num_test = settings.num_training_shards, settings.num_test_shards
    capacities = [(1 - settings.fraction_test_set) / num_training] * num_training
    capacities += [settings.fraction_test_set / num_test] * num_test if num_test else []
    generator = np.random.default_rng([settings.random_seed, _TIES])
    shuffled = generator.permutation(len(lengths)).astype(np.int32)
    # Inverting all bits of unsigned lengths sorts the longest first.
    order = shuffled[np.argsort(~lengths[shuffled], kind="stable")]
    assignment = np.empty(len(lengths), np.int32)
    heap = [(0.0, shard) for shard in range(len(capacities))]
    for first in range(0, len(order), _ASSIGNMENT_BLOCK):
        block = order[first : first + _ASSIGNMENT_BLOCK]
        for document, length in zip(block.tolist(), lengths[block].tolist()):
            load, shard = heap[0]
            assignment[document] = shard
            heapq.heapreplace(heap, (load + length / capacities[shard], shard))
    return assignment


def _read_documents(task: WriteTask) -> Iterator[tuple[bytes, str]]:
    """The documents in the task's order, as bytes and text; read by `2 * PIECE_BYTES` in that of the files.

    Raises: UserError where the bytes cannot be read or are not UTF-8.
    """
    _, inputs, documents, order = task
    held = np.cumsum(documents.lengths[order], dtype=np.uint64) // (2 * PIECE_BYTES)
    for own in np.split(order, np.flatnonzero(np.diff(held)) + 1):
        texts = _read_together(inputs, documents, np.sort(own))
        for number in own.tolist():
            content = texts.pop(number)
            yield content, decoded(content, inputs[documents.files[number]], int(documents.offsets[number]))


def _read_together(inputs: Sequence[str], documents: DocumentIndex, numbers: np.ndarray) -> dict[int, bytes]:
    """The documents of these numbers, which rise."""
    texts: dict[int, bytes] = {}
    files, starts, lengths = documents.select(numbers)
    ends = starts + lengths
    is_apart = (starts[1:] > ends[:-1] + _LARGEST_GAP_BYTES) | (np.diff(files) != 0)
    for group in np.split(np.arange(len(numbers)), np.flatnonzero(is_apart) + 1):
        name, start, end = inputs[files[group[0]]], int(starts[group[0]]), int(ends[group[-1]])
        with open(name, "rb") as file:
            file.seek(start)
            content = memoryview(file.read(end - start))
        for number, offset, length in zip(*(column[group].tolist() for column in (numbers, starts, lengths))):
            texts[number] = bytes(content[offset - start : offset - start + length])
            if len(texts[number]) < length:
                raise UserError(
                    f"{name}: only {len(texts[number]):,} of {length:,} bytes can be read at byte {offset:,}: the file "
                    "was changed, or its file system fails; start the same command again, or format the text anew"
                )
    return texts


def _write_piece(task: WriteTask) -> None:
    with atomic_file(Path(task.output)) as file:
        for content, _ in _read_documents(task):
            file.write(content)


def order_by_shard(
    index: DocumentIndex, assignment: np.ndarray, paths: Sequence[Path], folder: Path, workers: Workers
) -> tuple[DocumentIndex, list[Path]]:
    """Writes the text to `folder` in pieces, temporary files, each with its documents ordered by shard.

    Returns: where the documents stand then.
    """
    ends = np.cumsum(index.lengths, dtype=np.uint64)
    starts = [0, *(np.flatnonzero(np.diff(ends // PIECE_BYTES)) + 1).tolist(), index.num_documents]
    files, offsets = np.empty_like(index.files), np.empty_like(index.offsets)
    ending = f"{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
    outputs = [folder / f"piece_{number}.{ending}" for number in range(len(starts) - 1)]

    def tasks() -> Iterator[WriteTask]:
        for number, output in enumerate(outputs):
            own = slice(starts[number], starts[number + 1])
            documents = index.select(own)
            order = np.argsort(assignment[own], kind="stable").astype(np.int32)
            moved = np.cumsum(documents.lengths[order], dtype=np.uint64)
            offsets[own][order] = moved - documents.lengths[order]
            files[own] = number
            yield WriteTask(str(output), tuple(map(str, paths)), documents, order)

    with Progress(total=len(outputs), unit="pieces", description="ordering documents by shard") as bar:
        for _ in workers.map_in_order(_write_piece, tasks()):
            bar.update(1)
    return DocumentIndex(files, offsets, index.lengths), outputs


def _write_shard(task: WriteTask, *, segmentation_method: str) -> FileEntry:
    split = sentences.get_splitter(segmentation_method)
    digest = hashlib.sha256()
    num_sentences = num_bytes = 0
    path = Path(task.output)
    with atomic_file(path) as file:
        for _, text in _read_documents(task):
            found = split(text)
            block = "\n".join([*found, "", ""]).encode()
            file.write(block)
            digest.update(block)
            num_bytes += len(block)
            num_sentences += len(found)
    counts = {"num_documents": task.documents.num_documents, "num_sentences": num_sentences}
    return FileEntry(f"{path.parent.name}/{path.name}", num_bytes, digest.hexdigest(), counts)


def shards_for(num_documents: int, num_training: int, num_test: int) -> tuple[int, int]:
    """The numbers of training and test shards asked for, or fewer where there are too few documents for them."""
    if num_documents >= num_training + num_test:
        return num_training, num_test
    num_test = min(num_test, max(1, num_documents // 20), num_documents - 1)
    return max(1, (num_documents - num_test) // 4), num_test


def _require_enough_documents(num_documents: int, settings: ShardingSettings) -> None:
    wanted = settings.num_training_shards, settings.num_test_shards
    if num_documents >= sum(wanted):
        return
    num_training, num_test = shards_for(num_documents, *wanted)
    what = f"{num_documents:,} documents are fewer" if num_documents != 1 else "a single document is less"
    fewer = f"--n_training_shards={num_training} --n_test_shards={num_test}"
    hint = "" if num_test else " --fraction_test_set=0 (no held-out text then)"
    raise UserError(
        f"{what} than the {settings.num_training_shards:,} training and {settings.num_test_shards:,} test shards, and "
        f"a document is never split: ask for fewer shards, such as {fewer}{hint}, or add text; put blank lines "
        "between several documents in one file"
    )


def documents_by_shard(index: DocumentIndex, assignment: np.ndarray, num_shards: int) -> Iterator[DocumentIndex]:
    """The documents of each shard, in the order of the text."""
    order = np.argsort(assignment, kind="stable").astype(np.int32)
    for members in np.split(order, np.cumsum(np.bincount(assignment, minlength=num_shards))[:-1]):
        yield index.select(members)


def shard_names(dataset: str, settings: ShardingSettings) -> list[tuple[str, int, str]]:
    """(split, number in the split, file name) of every shard, in the order of `assign_documents`."""
    counts = zip(SPLITS, (settings.num_training_shards, settings.num_test_shards))
    return [
        (split, number, f"{split}/{dataset}_{split}_{number}.txt") for split, count in counts for number in range(count)
    ]


def shard_corpus(
    stage: Stage, dataset: str, paths: Sequence[Path], settings: ShardingSettings, workers: Workers
) -> dict[str, int]:
    """Writes all shards of `dataset` and completes `stage`; returns the counts.

    Raises:
      UserError: fewer documents than shards, a full disk, a killed worker.
    """
    index = index_documents(paths)
    _require_enough_documents(index.num_documents, settings)
    assignment = assign_documents(index.lengths, settings)
    for split in SPLITS:
        (stage.folder / split).mkdir(exist_ok=True)
    names = shard_names(dataset, settings)
    num_documents, text_bytes = index.num_documents, int(index.lengths.sum())
    is_missing = np.array([name not in stage.finished for _, _, name in names])[assignment]
    index, assignment = index.select(is_missing), assignment[is_missing]
    if index.lengths.sum() > PIECE_BYTES:
        index, paths = order_by_shard(index, assignment, paths, stage.folder, workers)
    inputs = tuple(map(str, paths))

    def tasks() -> Iterator[WriteTask]:
        for (split, number, name), own in zip(names, documents_by_shard(index, assignment, len(names))):
            if name not in stage.finished:
                generator = np.random.default_rng((settings.random_seed, SPLITS.index(split), number))
                order = generator.permutation(own.num_documents)
                yield WriteTask(str(stage.folder / name), inputs, own, order)

    write = functools.partial(_write_shard, segmentation_method=settings.segmentation_method)
    make_files(stage, workers, write, tasks(), len(names), f"sharding {dataset}")
    shards = {split: [stage.finished[name] for of, _, name in names if of == split] for split in SPLITS}
    entries = [entry for split in SPLITS for entry in shards[split]]
    counts = {
        "num_documents": num_documents,
        "num_documents_training": sum(e.counts["num_documents"] for e in shards["training"]),
        "num_documents_test": sum(e.counts["num_documents"] for e in shards["test"]),
        "num_sentences": sum(e.counts["num_sentences"] for e in entries),
        "text_bytes": text_bytes,
    }
    assert sum(e.counts["num_documents"] for e in entries) == num_documents, counts
    stage.complete(counts, shards)
    return counts
