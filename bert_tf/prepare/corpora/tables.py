"""Tables of labelled examples, for fine-tuning: what formatting makes of datasets that are no text to pre-train on."""

from __future__ import annotations

import csv
import hashlib
import io
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import atomic_file
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry

_NUM_NAMED = 20  # the closing warnings name at most this many bad lines


class Table(NamedTuple):
    rows: Sequence[Sequence[str]]  # the header first
    counts: Mapping[str, int]  # each called num_...; "num_documents" among them


class BadLines:
    """Counts lines that are left out, and names the first ones: at most so many as a user allows."""

    def __init__(self, most: int):
        self._most, self.num, self.named = most, 0, list[str]()

    def add(self, fault: str) -> None:
        """Raises: UserError, with the `fault` that names file and line, if there are now too many."""
        self.num += 1
        self.named += [fault] if self.num <= _NUM_NAMED else []
        if self.num > self._most:
            too_many = f"more than {self._most:,} bad lines, now " if self._most else ""
            raise UserError(f"{too_many}{fault}; correct the line, or leave such lines out with --max_bad_records")


class TableDataset(NamedTuple):
    folder: str  # where the tables go, below the working directory
    find: Callable[[Path], list[Path]]  # the files in the folder of its download
    read: Callable[[Sequence[Path], BadLines], dict[str, Table]]  # the tables, by name, of these files


def write_tables(stage: Stage, tables: Mapping[str, Table], bad: BadLines) -> dict[str, Any]:
    """Writes the tables by CSV's rules, with tabs, and completes the stage; returns the counts.

    Raises: UserError where a file of another origin has a table's name.
    """
    totals: Counter[str] = Counter(num_dropped_bad_records=bad.num)
    for name, table in tables.items():
        text = io.StringIO()
        csv.writer(text, delimiter="\t", lineterminator="\n").writerows(table.rows)
        content, path = text.getvalue().encode("utf-8"), stage.folder / name
        if not stage.manifest_path.exists() and path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} exists, and was not made by this stage: use it as it is, or move it away")
        with atomic_file(path) as file:
            file.write(content)
        stage.add(FileEntry(name, len(content), hashlib.sha256(content).hexdigest(), dict(table.counts)))
        totals.update(table.counts)
    for fault in bad.named:
        print(f"warning: left out: {fault}", file=sys.stderr, flush=True)
    stage.complete(dict(totals), {"tables": [stage.finished[name] for name in tables]})
    return dict(totals)
