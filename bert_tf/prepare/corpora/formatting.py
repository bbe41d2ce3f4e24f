"""Writes a corpus as one document per line: in order, without duplicates, resumable.

A corpus module reads its files into `Batch`es in a fixed order, and cleans each document into a line (in a worker
process). This module writes the lines in that order, so that an interrupted run can resume after any batch and
produces the same bytes.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import functools
import hashlib
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import sha256_of_file, sync
from bert_tf.base.progress import Progress
from bert_tf.prepare.running.resumable_file import ResumableFile
from bert_tf.prepare.running.stage import Stage
from bert_tf.prepare.running.workers import Workers
from bert_tf.prepare.sharding.sentences import OTHER_STOPS, PARAGRAPH_SEPARATOR, SENTENCE_END
from bert_tf.records.manifest import FileEntry

# Size of a batch: a tenth of a second of cleaning for a worker.
BATCH_CHARACTERS = 1 << 19
# At most this much output has to be written again after a kill.
CHECKPOINT_BYTES = 16 << 20

# Hard-wrapped text has shorter lines; a longer line is a paragraph by itself.
LONGEST_WRAPPED_LINE = 120
# The manifest and the closing warnings name at most this many.
NAMED_BAD_RECORDS = 20
# MediaWiki's titles are not longer. A broken page's may be, and all of its lines in the report would begin with it.
_LONGEST_TITLE = 255
# Input held by workers or waiting to be written in order.
_BYTES_IN_FLIGHT = 1 << 27

_WORD = re.compile(r"[^\W_]+")
_STOP = re.compile(f"[.!?…{OTHER_STOPS}{SENTENCE_END}]")
# Text without a full stop (speech, verse) counts if it has more words than a title.
MIN_WORDS_WITHOUT_STOP = 8


class BadRecord(NamedTuple):
    """A document that cannot be read; `what` names its place in the file and the fault."""

    what: str


class Dropped(NamedTuple):
    """A document that is left out; one with a title is in the report."""

    reason: str
    title: str = ""


class Document(NamedTuple):
    """A document as a line; for Wikipedia also the title, the number of removed pieces by reason, and the lines about
    them in the report.
    """

    line: str
    title: str = ""
    num_removed: Mapping[str, int] = {}
    report: Sequence[str] = ()


# Without line end; the line may be empty. A `str` for a document that is only a line, which is faster to pickle.
Cleaned = Union[str, Document, Dropped, BadRecord]


class Batch(NamedTuple):
    """Documents as read (or `BadRecord`s and `Dropped`s in their place), their file and their bytes in it, the place
    after them, where a resumed run continues reading (empty if it cannot start there), and their bytes in memory if
    these do not follow from their lengths.
    """

    documents: Sequence[Any]
    path: Path
    input_bytes: int
    behind: Mapping[str, Any]
    size: int = 0


class Corpus(NamedTuple):
    """How to read a corpus: `batches` yields its files' content in a fixed order, from a place on (if empty, from the
    start); `clean` processes a document in a worker process. If what is cleaned are not whole documents, `join` makes
    documents and their batches from the workers' results.

    `arguments` are those that change the result. Reading the batches appends a sentence to `damages` for
    each damaged file.
    """

    paths: Sequence[Path]
    batches: Callable[[Mapping[str, Any]], Iterable[Batch]]
    clean: Callable[[Any], Any]
    arguments: dict[str, Any]
    damages: Sequence[str] = ()
    join: Callable[[Iterable[tuple[Any, Batch]]], Iterable[tuple[Sequence[Cleaned], Batch]]] = lambda cleaned: cleaned


def as_line(paragraphs: Iterable[str]) -> str:
    """Joins paragraphs by two spaces; white space within one becomes single spaces.

    Paragraphs without a word (rows of asterisks) are left out.
    """
    normal = (" ".join(paragraph.split()) for paragraph in paragraphs if _WORD.search(paragraph))
    return PARAGRAPH_SEPARATOR.join(normal)


def as_marked_line(sentences: Iterable[str]) -> str:
    """Joins sentences that sharding is to keep, with a mark after each; white space within one as in `as_line`."""
    normal = (" ".join(sentence.split()) for sentence in sentences)
    return "".join(sentence + SENTENCE_END for sentence in normal if sentence)


def files_from(paths: Sequence[Path], place: Mapping[str, Any]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The files that are still to be read from a place on, each with the place inside it."""
    for number in range(place.get("file", 0), len(paths)):
        begin = {"file": number, "num_documents": 0, "bytes": 0}
        yield paths[number], {**begin, **place} if number == place.get("file") else begin


def in_batches(
    documents: Iterable[Any], path: Path, begin: Mapping[str, Any], position: Callable[[], int] | None = None
) -> Iterator[Batch]:
    """Batches of about equal size, of the documents in a file after the place `begin`.

    Args:
      position: tells how many bytes of the file have been read; default: as many as the documents have characters.
    """
    total_bytes = path.stat().st_size
    held: list[Any] = []
    number, num_documents, num_bytes = begin["file"], begin["num_documents"], begin["bytes"]
    size = 0
    for document in documents:
        held.append(document)
        size += len(document)
        if size >= BATCH_CHARACTERS:
            num_documents += len(held)
            read_bytes = position() if position else min(total_bytes, num_bytes + size)
            behind = {"file": number, "num_documents": num_documents, "bytes": read_bytes}
            yield Batch(held, path, read_bytes - num_bytes, behind)
            held, size, num_bytes = [], 0, read_bytes
    yield Batch(held, path, total_bytes - num_bytes, {"file": number + 1})


def read_files(
    paths: Sequence[Path], place: Mapping[str, Any], documents_of: Callable[[Path], Iterable[Any]]
) -> Iterator[Batch]:
    """Batches of the documents in each file; where reading resumes inside a file, earlier documents are skipped."""
    for path, begin in files_from(paths, place):
        yield from in_batches(itertools.islice(documents_of(path), begin["num_documents"], None), path, begin)


def report_line(reason: str, title: str, text: str = "") -> str:
    """A line of the report of --keep_report, which lists what was dropped: reason, article and text."""
    return "\t".join((reason, title[:_LONGEST_TITLE], " ".join(text.split())))


def _encoded(line: str) -> bytes:
    return line.encode("utf-8", "replace") + b"\n"


def has_words(text: str, number: int) -> bool:
    """Whether there are at least `number` words."""
    return next(itertools.islice(_WORD.finditer(text), number - 1, None), None) is not None


def has_sentence(line: str) -> bool:
    """Whether there is a word, and either a sentence's end or more words than in a title."""
    return has_words(line, MIN_WORDS_WITHOUT_STOP) or (has_words(line, 1) and bool(_STOP.search(line)))


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
        place = bisect.bisect_left(self._sorted.data, key)
        if key in self._newest or (place < len(self._sorted) and self._sorted.data[place] == key):
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
    """The text being written, its report if one is wanted, and the counts; can be resumed at a checkpoint."""

    def __init__(self, stage: Stage, output: Path, keep_duplicates: bool, max_bad_records: int, report: Path | None):
        self.stage, self.output = stage, output
        self._text = ResumableFile(output)
        self._report = ResumableFile(report) if report else None
        # By their names in a checkpoint. The text is finished last.
        self._files = {"report_bytes": self._report, "bytes": self._text} if self._report else {"bytes": self._text}
        self._seen = None if keep_duplicates else SeenDocuments()
        self._max_bad_records = max_bad_records
        self.bad_records: list[str] = []
        # The place after what has been written.
        self.place: Mapping[str, Any] = {}
        # Of the text, at the last checkpoint.
        self._kept_bytes = 0
        self.counts: dict[str, int] = {"num_read": 0, "num_documents": 0}
        self.input_bytes = 0

    def open(self) -> contextlib.ExitStack:
        opened, checkpoint = contextlib.ExitStack(), self.stage.checkpoint
        if checkpoint and not all(file.has(checkpoint[name]) for name, file in self._files.items()):
            checkpoint = None
        if checkpoint:
            self.place, self.input_bytes = checkpoint["place"], checkpoint["input_bytes"]
            self.counts = dict(checkpoint["counts"])
            self.bad_records = list(checkpoint["bad_records"])
            self._kept_bytes = checkpoint["bytes"]
            print(f"going on where an earlier run stopped, after {self.counts['num_read']:,} documents", flush=True)
        for name, file in self._files.items():
            written = opened.enter_context(file.open(checkpoint[name] if checkpoint else 0))
        if self._seen:
            written.seek(0)
            for line in written:
                self._seen.add(line)
        return opened

    def write(self, documents: Sequence[Cleaned], batch: Batch) -> None:
        """Writes the cleaned `documents` of a batch."""
        self._count("num_read", len(documents))
        for document in documents:
            if isinstance(document, str):
                self._write_document(Document(document))
            elif isinstance(document, Document):
                self._write_document(document)
            elif isinstance(document, BadRecord):
                self._drop_bad_record(f"{batch.path}, {document.what}")
            else:
                self._count(f"num_dropped_{document.reason}")
                self._write_report([report_line(*document)] if document.title else [])
        self.input_bytes += batch.input_bytes
        if not batch.behind:
            return
        self.place = batch.behind
        if self._text.file.tell() - self._kept_bytes >= CHECKPOINT_BYTES:
            self.checkpoint()

    def _drop_bad_record(self, what: str) -> None:
        self._count("num_dropped_bad_records")
        self.bad_records += [what] if len(self.bad_records) < NAMED_BAD_RECORDS else []
        if self.counts["num_dropped_bad_records"] > self._max_bad_records:
            too_many = f"more than {self._max_bad_records:,} bad records, now " if self._max_bad_records else ""
            raise UserError(
                f"{too_many}{what}; to leave such records out, run the same command with a larger "
                f"--max_bad_records, which resumes here"
            )

    def _write_document(self, document: Document) -> None:
        line, title, num_removed, report = document
        for reason, count in num_removed.items():
            self._count(f"num_removed_{reason}", count)
        if report:
            self._write_report(report)
        encoded = _encoded(line)
        reason = self._reason_to_drop(line, encoded)
        if reason:
            self._count(f"num_dropped_{reason}")
            self._write_report([report_line(reason, title, line)])
        else:
            self._text.file.write(encoded)
            self._count("num_documents")

    def _write_report(self, lines: Iterable[str]) -> None:
        if self._report:
            self._report.file.write(b"".join(map(_encoded, lines)))

    def _reason_to_drop(self, line: str, encoded: bytes) -> str:
        if not has_sentence(line):
            return "without_sentence"
        if self._seen is None:
            return ""
        if self._seen.is_full:
            self._count("num_not_kept_for_comparison")
        return "" if self._seen.add(encoded) else "duplicates"

    def checkpoint(self) -> None:
        written = {name: file.sync() for name, file in self._files.items()}
        self.stage.add_checkpoint(
            {
                "place": self.place,
                "input_bytes": self.input_bytes,
                "counts": self.counts,
                "bad_records": self.bad_records,
                **written,
            }
        )
        self._kept_bytes = written["bytes"]

    def finish(self) -> None:
        self.checkpoint()
        for file in self._files.values():
            file.finish()

    def discard(self) -> None:
        """After a failure: removes the output if there is no checkpoint to resume from."""
        if not self._kept_bytes:
            with contextlib.suppress(OSError):
                for file in self._files.values():
                    file.discard()
                self.stage.forget()

    def _count(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count


def _nothing_left(counts: dict[str, int]) -> str:
    why = ", ".join(
        f"{count:,} {name.removeprefix('num_dropped_').replace('_', ' ')}"
        for name, count in counts.items()
        if name.startswith("num_dropped_")
    )
    return (
        f"no document is left of {counts['num_read']:,} in the input"
        + (f" ({why})" if why else "")
        + ": check that these are the right files and not empty"
    )


def _require_own_output(stage: Stage, output: Path) -> None:
    if output.exists() and stage.checkpoint is None and not stage.manifest_path.exists():
        raise UserError(
            f"{output} exists, but was not made by this stage (no manifest beside it): continue with "
            "--action=sharding to use it as it is, or delete it to make it again"
        )


def format_corpus(writer: Writer, corpus: Corpus, workers: Workers) -> dict[str, int]:
    """Writes the text and, if wanted, the report, and completes the writer's stage; returns the counts.

    Raises:
      UserError: damaged input, a corpus without a document, a full disk, killed or missing workers.
        The next run resumes at the last checkpoint.
    """
    stage, output = writer.stage, writer.output
    _require_own_output(stage, output)
    try:
        with writer.open():
            _write_all(writer, corpus, output.name, workers)
            if not writer.counts["num_documents"]:
                raise UserError(_nothing_left(writer.counts))
            writer.finish()
            sync(output.parent)
    except (UserError, OSError):
        writer.discard()
        raise
    counts = writer.counts
    num_dropped = sum(n for name, n in counts.items() if name.startswith("num_dropped_"))
    assert counts["num_read"] == counts["num_documents"] + num_dropped, counts
    details: dict[str, Any] = {"num_documents": counts["num_documents"]}
    if corpus.damages:
        details["damages"] = list(corpus.damages)
    if writer.bad_records:
        details["bad_records"] = writer.bad_records
    entry = FileEntry(output.name, output.stat().st_size, sha256_of_file(output), details)
    num_bad, num_not_kept = (
        counts.get(f"num_{what}", 0) for what in ("dropped_bad_records", "not_kept_for_comparison")
    )
    warnings = [*corpus.damages, *(f"left out, because it cannot be read: {what}" for what in writer.bad_records)]
    if num_bad > len(writer.bad_records):
        warnings.append(f"and {num_bad - len(writer.bad_records):,} more")
    if num_not_kept:
        warnings.append(
            f"more than {SeenDocuments.MOST:,} different documents: the last {num_not_kept:,} were checked for "
            "duplicates of the first ones only, not of each other"
        )
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr, flush=True)
    stage.complete(counts, {"documents": [entry]})
    return counts


def _clean_all(batch: Batch, *, clean: Callable[[Any], Any]) -> list[Any]:
    return [found if isinstance(found, (Dropped, BadRecord)) else clean(found) for found in batch.documents]


def _write_all(writer: Writer, corpus: Corpus, name: str, workers: Workers) -> None:
    # The batches being cleaned, without their documents.
    waiting: collections.deque[Batch] = collections.deque()

    def batches() -> Iterator[Batch]:
        for batch in corpus.batches(writer.place):
            waiting.append(batch._replace(documents=()))
            yield batch

    total_bytes = total_size(corpus.paths)
    with Progress(total=total_bytes, initial=writer.input_bytes, unit="B", description=f"formatting {name}") as bar:
        clean = functools.partial(_clean_all, clean=corpus.clean)
        results = workers.map_in_order(clean, batches(), _size_of_batch, _BYTES_IN_FLIGHT)
        with contextlib.closing(results):
            for documents, batch in corpus.join((cleaned, waiting.popleft()) for cleaned in results):
                writer.write(documents, batch)
                num_documents = writer.counts["num_documents"]
                bar.update(batch.input_bytes, "1 document" if num_documents == 1 else f"{num_documents:,} documents")


def _size_of_batch(batch: Batch) -> int:
    return batch.size or max(batch.input_bytes, sum(map(len, batch.documents)))


def total_size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)
