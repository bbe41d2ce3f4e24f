"""Writes a corpus as one document per line: in order, without duplicates, resumable.

Lines are written in the order of the batches that a corpus is read in (`documents`), so that an interrupted run can
resume after any batch and produces the same bytes.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import IO, Any, Callable

import numpy as np

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import sha256_of_file, sync
from bert_tf.base.progress import Progress, print_beside_bars
from bert_tf.prepare.corpora.documents import BadRecord, Batch, Cleaned, Corpus, Damage, Document, Dropped
from bert_tf.prepare.corpora.text_files import total_size
from bert_tf.prepare.running.stage import Stage, StageResult, counts_in_words
from bert_tf.prepare.running.workers import TaskPool
from bert_tf.records.manifest import FileEntry

# At most this much output has to be written again after a kill.
CHECKPOINT_BYTES = 16 << 20
# Input held by workers or waiting to be written in order.
_BYTES_IN_FLIGHT = 1 << 27


class SeenDocuments:
    """The documents so far as 64-bit hashes, in an array (8 bytes each), the newest ones in a set (90 bytes each).

    Once it holds `MAX_DOCUMENTS`, which take half a gigabyte, no more are added: later documents are compared with
    these only.
    """

    MAX_DOCUMENTS = 50_000_000
    _NEWEST = 1 << 20

    def __init__(self) -> None:
        self._sorted = np.zeros(0, np.uint64)
        self._newest: set[int] = set()

    @property
    def is_full(self) -> bool:
        return len(self._sorted) + len(self._newest) >= self.MAX_DOCUMENTS

    def add(self, document: bytes) -> bool:
        """Adds a document; returns False if it was there before."""
        key = int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "little")
        # `data` yields Python's integers; numpy would compare its own large integers with Python's as floats.
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
    """Writes the text, to a file called ``<name>.partial`` until it is complete.

    Its checkpoint holds the position after the last batch, how many bytes of the input and of the text that is, counts,
    and what is wrong with damaged files and bad records.
    """

    def __init__(self, stage: Stage, output: Path, *, keep_duplicates: bool, max_bad_records: int):
        self.stage, self.output = stage, output
        self._partial = output.with_name(output.name + ".partial")
        self._seen = None if keep_duplicates else SeenDocuments()
        self._bad_records = BadRecords(max_bad_records, "record")
        self.counts = Counter(num_read=0, num_documents=0)
        self.checkpoint: dict[str, Any] = {"position": {}, "input_bytes": 0, "bytes": 0, "damages": []}

    def open(self) -> IO[bytes]:
        earlier = self.stage.checkpoint
        if earlier and self._partial.exists() and self._partial.stat().st_size >= earlier["bytes"]:
            self.checkpoint, self.counts = earlier, Counter(earlier["counts"])
            self._bad_records.faults = earlier["bad_records"]
            self._bad_records.num_left_out = self.counts["num_dropped_bad_records"]
            num_read = self.counts["num_read"]
            print(f"going on where an earlier run stopped, after {num_read:,} documents", flush=True)
        self.checkpoint.update(counts=self.counts, bad_records=self._bad_records.faults)
        self._file = open(self._partial, "a+b")  # noqa: SIM115 - the caller's to close
        self._file.truncate(self.checkpoint["bytes"])
        if self._seen:
            self._file.seek(0)
            for line in self._file:
                self._seen.add(line)
        self._file.seek(self.checkpoint["bytes"])
        return self._file

    def write(self, batch: Batch) -> None:
        """Writes a batch of cleaned documents. Raises: UserError where there are now too many bad records."""
        for document in batch.documents:
            if isinstance(document, Damage):
                self.checkpoint["damages"].append(document.sentence)
                continue
            self.counts["num_read"] += 1
            if isinstance(document, BadRecord):
                self.counts["num_dropped_bad_records"] += 1
                self._bad_records.add(f"{batch.path}, {document.fault}")
            elif isinstance(document, Dropped):
                self.counts[f"num_dropped_{document.reason}"] += 1
            else:
                self.counts.update({f"num_removed_{reason}": num for reason, num in document.num_removed.items()})
                self._write_line(document.line)
        self.checkpoint["input_bytes"] += batch.input_bytes
        self.checkpoint["position"] = batch.next_position
        if self._file.tell() - self.checkpoint["bytes"] >= CHECKPOINT_BYTES:
            self._save_checkpoint()

    def _write_line(self, line: str) -> None:
        if not line:
            self.counts["num_dropped_without_sentence"] += 1
            return
        encoded = line.encode("utf-8", "replace") + b"\n"
        if self._seen and self._seen.is_full:
            self.counts["num_not_kept_for_comparison"] += 1
        if self._seen and not self._seen.add(encoded):
            self.counts["num_dropped_duplicates"] += 1
        else:
            self._file.write(encoded)
            self.counts["num_documents"] += 1

    def _save_checkpoint(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self.checkpoint["bytes"] = self._file.tell()
        self.stage.add_checkpoint(self.checkpoint)

    def finish(self) -> StageResult:
        """Gives the text its final name; returns its counts and its entry."""
        self._save_checkpoint()
        self._file.close()
        sha256 = sha256_of_file(self._partial)
        os.replace(self._partial, self.output)
        sync(self.output.parent)
        damages, bad_records = self.checkpoint["damages"], self._bad_records.faults
        for warning in (*damages, *(f"left out, because it cannot be read: {fault}" for fault in bad_records)):
            print_beside_bars(f"warning: {warning}")
        details = {"num_documents": self.counts["num_documents"], "damages": damages, "bad_records": bad_records}
        details = {name: detail for name, detail in details.items() if detail}
        entry = FileEntry(self.output.name, self.checkpoint["bytes"], sha256, details)
        return dict(self.counts), {"documents": [entry]}

    def discard(self) -> None:
        """After a failure: removes the output if there is no checkpoint to resume from."""
        if not self.checkpoint["bytes"]:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)
                self.stage.remove_journal()


def format_corpus(writer: Writer, corpus: Corpus, workers: TaskPool) -> StageResult:
    """Writes a corpus with `writer`; returns the counts and the entry of the text.

    Raises:
      UserError: damaged input, a corpus without a document, a full disk, killed or missing workers.
        The next run resumes at the last checkpoint.
    """
    stage, output = writer.stage, writer.output
    if output.exists() and stage.checkpoint is None and not stage.manifest_path.exists():
        raise UserError(
            f"{output} exists, but was not made by this stage (no manifest beside it): continue with "
            "--action=sharding to use it as it is, or delete it to make it again"
        )
    try:
        with writer.open():
            _write_all(writer, corpus, workers)
            if not writer.counts["num_documents"]:
                raise UserError(
                    f"no document is left of the input ({counts_in_words(writer.counts)}): are these the right files "
                    "(of articles with licences, the right --license_groups), and not empty?"
                )
            return writer.finish()
    except (UserError, OSError):
        writer.discard()
        raise


def clean_batch(
    batch: Batch, *, clean: Callable[[Any], Cleaned | list[Cleaned]], is_document: Callable[[str], bool]
) -> Batch:
    """The batch with its documents cleaned; a line that is no document becomes empty. Runs in a worker."""
    results: list[Cleaned] = []
    for document in batch.documents:
        cleaned = document if isinstance(document, (Dropped, BadRecord, Damage)) else clean(document)
        for result in cleaned if isinstance(cleaned, list) else [cleaned]:
            if isinstance(result, Document) and not is_document(result.line):
                result = result._replace(line="")
            results.append(result)
    return batch._replace(documents=results)


def _write_all(writer: Writer, corpus: Corpus, workers: TaskPool) -> None:
    batches = workers.map_in_order(
        functools.partial(clean_batch, clean=corpus.clean, is_document=corpus.is_document),
        corpus.batches(writer.checkpoint["position"]),
        lambda batch: max(batch.input_bytes, batch.size),
        _BYTES_IN_FLIGHT,
    )
    bar = Progress(
        total=total_size(corpus.paths),
        initial=writer.checkpoint["input_bytes"],
        unit="B",
        description=f"formatting {writer.output.name}",
    )
    with bar, contextlib.closing(batches):
        for batch in batches:
            writer.write(batch)
            bar.update(batch.input_bytes, f"{writer.counts['num_documents']:,} documents")
