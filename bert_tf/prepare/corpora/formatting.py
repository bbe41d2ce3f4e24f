"""Writes a corpus as one document per line: in order, without duplicates, resumable.

Lines are written in the order of the batches that a corpus is read in (`documents`), so that an interrupted run can
resume after any batch and produces the same bytes.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Callable

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file, sync
from bert_tf.base.progress import Progress
from bert_tf.prepare.corpora.documents import (
    BadRecord,
    Batch,
    Cleaned,
    Corpus,
    Document,
    Dropped,
    Position,
    has_sentence,
)
from bert_tf.prepare.running.stage import Stage
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records.manifest import FileEntry

# At most this much output has to be written again after a kill.
CHECKPOINT_BYTES = 16 << 20
# The manifest and the closing warnings name at most this many.
NAMED_BAD_RECORDS = 20
# Input held by workers or waiting to be written in order.
_BYTES_IN_FLIGHT = 1 << 27


class SeenDocuments:
    """A set of documents as 64-bit hashes, 8 bytes each; only the newest are in a set, which takes 90 bytes each.

    Once it holds `most` hashes no more are added, so later documents are compared with these only.
    """

    # Takes half a gigabyte.
    MOST = 50_000_000
    _NEWEST = 1 << 20

    def __init__(self, most: int = MOST) -> None:
        self._sorted = np.zeros(0, np.uint64)
        self._newest: set[int] = set()
        self._most = most

    @property
    def is_full(self) -> bool:
        return len(self._sorted) + len(self._newest) >= self._most

    def add(self, document: bytes) -> bool:
        """Adds a document; returns False if it was there before."""
        key = int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little")
        # `data` yields Python's integers; numpy would compare its own large integers with these as floats.
        rank = bisect.bisect_left(self._sorted.data, key)
        if key in self._newest or (rank < len(self._sorted) and self._sorted.data[rank] == key):
            return False
        if not self.is_full:
            self._newest.add(key)
        if len(self._newest) == self._NEWEST:
            num_sorted = len(self._sorted)
            # In place, because a copy would double the memory.
            self._sorted.resize(num_sorted + self._NEWEST, refcheck=False)
            self._sorted[num_sorted:] = np.fromiter(self._newest, np.uint64)
            self._sorted.sort(kind="stable")
            self._newest.clear()
        return True


class Writer:
    """The text being written and the counts; can be resumed at a checkpoint.

    The text is called ``<name>.partial`` until it is complete.
    """

    def __init__(self, stage: Stage, output: Path, *, keep_duplicates: bool, max_bad_records: int):
        self.stage, self.output = stage, output
        self._partial = output.with_name(output.name + ".partial")
        self._seen = None if keep_duplicates else SeenDocuments()
        self._max_bad_records = max_bad_records
        self.bad_records: list[str] = []
        # After what has been written.
        self.position: Position = {}
        # Of the text, at the last checkpoint.
        self._kept_bytes = 0
        self.counts: dict[str, int] = {"num_read": 0, "num_documents": 0}
        self.input_bytes = 0

    def open(self) -> IO[bytes]:
        checkpoint = self.stage.checkpoint
        if checkpoint and self.output.exists() and not self._partial.exists():
            os.replace(self.output, self._partial)  # the earlier run was killed after its end
        if checkpoint and self._partial.exists() and self._partial.stat().st_size >= checkpoint["bytes"]:
            self.position, self.input_bytes = checkpoint["position"], checkpoint["input_bytes"]
            self.counts = dict(checkpoint["counts"])
            self.bad_records = list(checkpoint["bad_records"])
            self._kept_bytes = checkpoint["bytes"]
            print(f"going on where an earlier run stopped, after {self.counts['num_read']:,} documents", flush=True)
        self._file = open(self._partial, "a+b")  # noqa: SIM115 - the caller's to close
        self._file.truncate(self._kept_bytes)
        if self._seen:
            self._file.seek(0)
            for line in self._file:
                self._seen.add(line)
        self._file.seek(self._kept_bytes)
        return self._file

    def write(self, documents: Sequence[Cleaned], batch: Batch) -> None:
        self._count("num_read", len(documents))
        for document in documents:
            if isinstance(document, str):
                self._write_line(document)
            elif isinstance(document, Document):
                for reason, count in document.num_removed.items():
                    self._count(f"num_removed_{reason}", count)
                self._write_line(document.line)
            elif isinstance(document, BadRecord):
                self._drop_bad_record(f"{batch.path}, {document.fault}")
            else:
                self._count(f"num_dropped_{document.reason}")
        self.input_bytes += batch.input_bytes
        self.position = batch.next_position
        if self._file.tell() - self._kept_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()

    def _drop_bad_record(self, fault: str) -> None:
        self._count("num_dropped_bad_records")
        self.bad_records += [fault] if len(self.bad_records) < NAMED_BAD_RECORDS else []
        if self.counts["num_dropped_bad_records"] > self._max_bad_records:
            too_many = f"more than {self._max_bad_records:,} bad records, now " if self._max_bad_records else ""
            raise UserError(
                f"{too_many}{fault}; to leave such records out, run the same command with a larger "
                f"--max_bad_records, which resumes here"
            )

    def _write_line(self, line: str) -> None:
        encoded = line.encode("utf-8", "replace") + b"\n"
        if not has_sentence(line):
            self._count("num_dropped_without_sentence")
        elif self._is_repeated(encoded):
            self._count("num_dropped_duplicates")
        else:
            self._file.write(encoded)
            self._count("num_documents")

    def _is_repeated(self, encoded: bytes) -> bool:
        if self._seen is None:
            return False
        if self._seen.is_full:
            self._count("num_not_kept_for_comparison")
        return not self._seen.add(encoded)

    def checkpoint(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._kept_bytes = self._file.tell()
        names = ("position", "input_bytes", "counts", "bad_records")
        self.stage.add_checkpoint({**{name: getattr(self, name) for name in names}, "bytes": self._kept_bytes})

    def finish(self) -> None:
        self.checkpoint()
        self._file.close()
        os.replace(self._partial, self.output)

    def discard(self) -> None:
        """After a failure: removes the output if there is no checkpoint to resume from."""
        if not self._kept_bytes:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)
                self.stage.forget()

    def _count(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count


def _require_own_output(stage: Stage, output: Path) -> None:
    if output.exists() and stage.checkpoint is None and not stage.manifest_path.exists():
        raise UserError(
            f"{output} exists, but was not made by this stage (no manifest beside it): continue with "
            "--action=sharding to use it as it is, or delete it to make it again"
        )


def format_corpus(writer: Writer, corpus: Corpus, workers: TaskPool) -> dict[str, int]:
    """Writes the text and completes the writer's stage; returns the counts.

    Raises:
      UserError: damaged input, a corpus without a document, a full disk, killed or missing workers.
        The next run resumes at the last checkpoint.
    """
    stage, output = writer.stage, writer.output
    _require_own_output(stage, output)
    try:
        with writer.open():
            _write_all(writer, corpus, output.name, workers)
            counts = writer.counts
            if not counts["num_documents"]:
                found = ", ".join(f"{name} {count:,}" for name, count in counts.items())
                raise UserError(
                    f"no document is left of the input ({found}): check that these are the right files and not empty"
                )
            writer.finish()
            sync(output.parent)
    except (UserError, OSError):
        writer.discard()
        raise
    details: dict[str, Any] = {"num_documents": counts["num_documents"]}
    warnings = [*corpus.damages, *(f"left out, because it cannot be read: {fault}" for fault in writer.bad_records)]
    if corpus.damages:
        details["damages"] = list(corpus.damages)
    if writer.bad_records:
        details["bad_records"] = writer.bad_records
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    entry = FileEntry(output.name, output.stat().st_size, sha256_of_file(output), details)
    stage.complete(counts, {"documents": [entry]})
    return counts


def _clean_all(batch: Batch, *, clean: Callable[[Any], Any]) -> list[Cleaned]:
    results: list[Cleaned] = []
    for document in batch.documents:
        cleaned = document if isinstance(document, (Dropped, BadRecord)) else clean(document)
        results += cleaned if isinstance(cleaned, list) else [cleaned]
    return results


def _write_all(writer: Writer, corpus: Corpus, name: str, workers: TaskPool) -> None:
    # The batches being cleaned, without their documents.
    waiting: collections.deque[Batch] = collections.deque()

    def batches() -> Iterator[Batch]:
        for batch in corpus.batches(writer.position):
            waiting.append(batch._replace(documents=()))
            yield batch

    total_bytes = total_size(corpus.paths)
    with Progress(total=total_bytes, initial=writer.input_bytes, unit="B", description=f"formatting {name}") as bar:
        clean = functools.partial(_clean_all, clean=corpus.clean)
        results = workers.map_in_order(clean, batches(), _size_of_batch, _BYTES_IN_FLIGHT)
        with contextlib.closing(results):
            for documents in results:
                batch = waiting.popleft()
                writer.write(documents, batch)
                num_documents = writer.counts["num_documents"]
                bar.update(batch.input_bytes, "1 document" if num_documents == 1 else f"{num_documents:,} documents")


def _size_of_batch(batch: Batch) -> int:
    return batch.size or max(batch.input_bytes, sum(map(len, batch.documents)))


def total_size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
