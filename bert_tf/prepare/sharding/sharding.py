"""Distributes documents to training and test shards, one sentence per line.

The formatted files are read once for the documents' lengths; documents are assigned from the largest down, each to
the shard that is least full relative to its capacity. The files are then read again, and each document is appended to
its shard's temporary file, because a disk takes fifty times as long to read millions of single documents as to read the
text from beginning to end. Then each shard is written separately, with its documents shuffled. The whole text is never
in memory, a document is never split, and for given text and arguments the bytes depend only on the seed, not on the
number of processes.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
import os
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import TEMPORARY_SUFFIX, atomic_file, read_ahead
from bert_tf.prepare.corpora.text_files import decoded, formatted_lines
from bert_tf.prepare.running.stage import Stage, StageResult
from bert_tf.prepare.running.workers import TaskPool, make_files
from bert_tf.prepare.sharding import sentences
from bert_tf.records.manifest import FileEntry
from bert_tf.records.token_file import SPLITS

# Tells the random stream of `assign_documents` apart from those of the splits, whose numbers are 0 and 1.
_TIES = 2
# How much text is held in memory while documents are gathered by shard.
BUFFER_BYTES = 256 << 20


class ShardingSettings(NamedTuple):
    """The numbers of shards, and the fraction of the bytes that goes to the test split."""

    num_training_shards: int
    num_test_shards: int
    fraction_test_set: float
    segmentation_method: str
    random_seed: int

    def validated(self) -> ShardingSettings:
        """These settings. Raises: UserError where only one of fraction and test shards is 0, or NLTK is missing."""
        if (self.num_test_shards == 0) != (self.fraction_test_set == 0):
            raise UserError(
                f"n_test_shards={self.num_test_shards} and fraction_test_set={self.fraction_test_set}: both must be 0 "
                "or neither"
            )
        sentences.get_splitter(self.segmentation_method)
        return self


class ShardTask(NamedTuple):
    """What a worker needs to write a shard."""

    documents_path: Path  # a file of the shard's documents, one after the other, in the order of the text
    output: Path
    lengths: np.ndarray  # uint32 [n], of these documents, in bytes
    seed: tuple[int, int, int]


def document_lengths(paths: Sequence[Path]) -> np.ndarray:
    """The bytes of each document in the formatted files, without line end: uint32 [n].

    Raises: UserError where a document is too large.
    """
    lengths = array("I", (len(document) for _, _, document in formatted_lines(paths, "indexing documents")))
    return np.frombuffer(lengths, np.uint32)


def assign_documents(lengths: np.ndarray, settings: ShardingSettings) -> np.ndarray:
    """The shard of each document, int32 [n]: training shards first, then test shards.

    Greedy from the largest document down, to the shard with the fewest bytes relative to its capacity;
    documents of equal size in a seeded order. Every shard gets a document before any gets two.
    """
    num_training, num_test = settings.num_training_shards, settings.num_test_shards
    capacities = [(1 - settings.fraction_test_set) / num_training] * num_training
    capacities += [settings.fraction_test_set / max(num_test, 1)] * num_test
    generator = np.random.default_rng([settings.random_seed, _TIES])
    shuffled = generator.permutation(len(lengths)).astype(np.int32)
    # Inverting all bits of unsigned lengths sorts the longest first.
    order = shuffled[np.argsort(~lengths[shuffled], kind="stable")]
    assignment = np.empty(len(lengths), np.int32)
    heap = [(0.0, shard) for shard in range(len(capacities))]
    # Iterating over `data` makes Python's numbers one by one; a list of all would take five times the array's memory.
    for document, length in zip(order.data, lengths[order].data):
        load, shard = heap[0]
        assignment[document] = shard
        heapq.heapreplace(heap, (load + length / capacities[shard], shard))
    return assignment


def gather(paths: Sequence[Path], lengths: np.ndarray, assignment: np.ndarray, outputs: Mapping[int, Path]) -> None:
    """Appends each document to the file of its shard; documents of shards without a file are skipped.

    Raises: UserError where the text is not UTF-8, or has changed since its documents were measured.
    """
    buffers = {shard: bytearray() for shard in outputs}
    num_buffered = 0

    def write() -> None:
        for shard, content in buffers.items():
            with open(outputs[shard], "ab") as file:
                file.write(content)
            content.clear()

    documents = formatted_lines(paths, "gathering documents by shard")
    for entry, shard, length in itertools.zip_longest(documents, assignment.data, lengths.data):
        path, offset, document = entry or (paths[-1], 0, b"")
        if len(document) != length:
            raise _changed_error(path)
        if shard in buffers:
            decoded(document, path, offset)
            buffers[shard] += document
            num_buffered += length
        if num_buffered > BUFFER_BYTES:
            write()
            num_buffered = 0
    write()


def _changed_error(path: Path) -> UserError:
    return UserError(
        f"{path}: was changed while it was read, or its file system fails; start the same command again, or format "
        "the text anew"
    )


def _write_shard(task: ShardTask, *, segmentation_method: str) -> FileEntry:
    split = sentences.get_splitter(segmentation_method)
    digest, num_sentences = hashlib.sha256(), 0
    ends = np.cumsum(task.lengths, dtype=np.int64)
    order = np.random.default_rng(task.seed).permutation(len(ends))
    with open(task.documents_path, "rb") as documents, atomic_file(task.output) as file:
        if os.fstat(documents.fileno()).st_size != ends[-1]:
            raise _changed_error(task.documents_path)
        # The whole file, because its documents are needed in another order.
        read_ahead(documents)
        for end, length in zip(ends[order].tolist(), task.lengths[order].tolist()):
            lines = split(os.pread(documents.fileno(), length, end - length).decode())
            block = "\n".join([*lines, "", ""]).encode()
            file.write(block)
            digest.update(block)
            num_sentences += len(lines)
        num_bytes = file.tell()
    counts = {"num_documents": len(ends), "num_sentences": num_sentences}
    return FileEntry("/".join(task.output.parts[-2:]), num_bytes, digest.hexdigest(), counts)


def shard_corpus(
    stage: Stage, dataset: str, paths: Sequence[Path], settings: ShardingSettings, workers: TaskPool
) -> StageResult:
    """Writes all shards of `dataset`; returns the counts and the entries of the shards.

    Raises:
      UserError: fewer documents than shards, a full disk, a killed worker.
    """
    lengths = document_lengths(paths)
    num_shards = dict(zip(SPLITS, (settings.num_training_shards, settings.num_test_shards)))
    if len(lengths) < sum(num_shards.values()):
        raise UserError(
            f"{len(lengths):,} document(s) are too few for {settings.num_training_shards:,} training and "
            f"{settings.num_test_shards:,} test shards, since none is split: ask for fewer, such as "
            f"--n_training_shards={max(1, len(lengths) // 4)} --n_test_shards=1 (without held-out text "
            "--n_test_shards=0 --fraction_test_set=0), or add text; in your own text a blank line ends a document"
        )
    assignment = assign_documents(lengths, settings)
    # In the order in which `assign_documents` numbers the shards.
    numbered = [(split, number) for split in SPLITS for number in range(num_shards[split])]
    ordered = lengths[np.argsort(assignment, kind="stable")]
    ends = np.cumsum(np.bincount(assignment, minlength=len(numbered)))
    temporary_suffix = f"{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
    tasks: dict[str, ShardTask] = {}
    for (split, number), shard_lengths in zip(numbered, np.split(ordered, ends[:-1])):
        name = f"{dataset}_{split}_{number}.txt"
        documents_path, output = stage.folder / f"{name}.{temporary_suffix}", f"{split}/{name}"
        seed = (settings.random_seed, SPLITS.index(split), number)
        tasks[output] = ShardTask(documents_path, stage.folder / output, shard_lengths, seed)
    unfinished = {
        shard: task.documents_path for shard, (output, task) in enumerate(tasks.items()) if output not in stage.finished
    }
    gather(paths, lengths, assignment, unfinished)
    write = functools.partial(_write_shard, segmentation_method=settings.segmentation_method)
    shards = make_files(stage, workers, write, tasks, f"sharding {dataset}")
    counts = {"num_documents": len(lengths)}
    for split in SPLITS:
        counts[f"num_documents_{split}"] = sum(entry.counts["num_documents"] for entry in shards[split])
    counts["num_sentences"] = sum(entry.counts["num_sentences"] for split in SPLITS for entry in shards[split])
    return {**counts, "text_bytes": int(lengths.sum())}, shards


# Enough to measure shares of a thousandth.
_SAMPLE_BYTES = 16 << 20
# In novels and encyclopedias, a twelfth to a quarter of the text is in sentences of more than 300 characters.
_LONG_SENTENCE, _MAX_LONG_SHARE = 300, 0.5


def sample_sentences(paths: Sequence[Path]) -> list[str]:
    """The sentences at the beginning of each sharded text file: a fair sample, because documents are shuffled.

    Raises: UserError where a file is not UTF-8.
    """
    sentences: list[str] = []
    for path in paths:
        with open(path, "rb") as file:
            block = file.read(_SAMPLE_BYTES // len(paths)) + file.readline(_SAMPLE_BYTES)
        sentences += filter(None, decoded(block, path, 0).split("\n"))
    return sentences


def long_sentence_warnings(sentences: Sequence[str]) -> Iterator[str]:
    """A warning if most of the text is in lines that are too long to be single sentences."""
    in_long = sum(len(sentence) for sentence in sentences if len(sentence) > _LONG_SENTENCE)
    share = in_long / max(sum(map(len, sentences)), 1)
    if share > _MAX_LONG_SHARE:
        yield (
            f"{share:.0%} of the text is in sentences of more than {_LONG_SENTENCE} characters, so hardly any sentence "
            "ends were found (text without stops, or a script that has none): format it again from files with a "
            "sentence on each line and blank lines between documents, --dataset=custom --input_format=sentences"
        )


# Abstracts have eight, books and encyclopedias more.
_MIN_SENTENCES = 1.5


def single_sentence_warnings(counts: Mapping[str, int]) -> Iterator[str]:
    """A warning if most documents are single sentences, given the counts of `shard_corpus`."""
    num_documents, num_sentences = counts["num_documents"], counts["num_sentences"]
    if num_sentences < _MIN_SENTENCES * num_documents:
        yield (
            f"{num_documents:,} documents have {num_sentences:,} sentences: after a single one none comes next, so "
            "that nearly all second passages will be random. If the source has the sentences of longer texts in its "
            "lines or rows, as BookCorpus has, format them again from a file with a sentence on each line and blank "
            "lines between texts, --dataset=custom --input_format=sentences; if its texts are so short, train with "
            "--no_next_sentence"
        )
