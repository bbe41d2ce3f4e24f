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

from bert_tf.base.errors import BadRecords, UserError
from bert_tf.base.files import atomic_file
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry


class Table(NamedTuple):
    rows: Sequence[Sequence[str]]  # the header first
    counts: Mapping[str, int]  # each called num_...; "num_documents" among them


class TableDataset(NamedTuple):
    folder: str  # where the tables go, below the working directory
    find: Callable[[Path], list[Path]]  # the files in the folder of its download
    read: Callable[[Sequence[Path], BadRecords], dict[str, Table]]  # the tables, by name, of these files


def write_tables(stage: Stage, tables: Mapping[str, Table], bad: BadRecords) -> dict[str, Any]:
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
