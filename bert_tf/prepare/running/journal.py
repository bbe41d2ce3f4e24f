"""The journal of an unfinished stage: a JSON line for each finished step, beside the manifest to be."""

from __future__ import annotations

import functools
import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import CHECKOUT
from bert_tf.records.manifest import FileEntry, Header

# The code that decides which bytes a stage writes.
_CODE = ("bert_tf/prepare", "bert_tf/base", "bert_tf/text", "bert_tf/records", "bert_tf/batches")


@functools.cache
def code_digest() -> str:
    """sha256 of the code that prepares data, at the time of the first call."""
    digest = hashlib.sha256()
    paths = (path for folder in _CODE for path in CHECKOUT.joinpath(folder).rglob("*"))
    for path in sorted(path for path in paths if path.suffix in (".py", ".cpp")):
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def program_version() -> dict[str, str]:
    """The versions that decide a stage's bytes: of our code, and of Python's Unicode tables."""
    return {"code": code_digest(), "unicode": unicodedata.unidata_version}


class Journal(NamedTuple):
    """The notes of an unfinished stage: its header, start time and program versions, then its steps."""

    header: Header
    time: float  # seconds since 1970
    program: dict[str, str]  # as `program_version`
    # Each has "finished", a file's entry, or "checkpoint", a position in a single long file; and "time", unless it was
    # copied from an earlier run's journal.
    steps: list[dict[str, Any]]

    @property
    def finished(self) -> dict[str, FileEntry]:
        entries = (FileEntry.from_json(step["finished"]) for step in self.steps if "finished" in step)
        return {entry.file: entry for entry in entries}

    @property
    def checkpoint(self) -> dict[str, Any] | None:
        return next((step["checkpoint"] for step in reversed(self.steps) if "checkpoint" in step), None)


def read_journal(path: Path) -> Journal | None:
    """The journal at `path`, or None if there is none or it holds no finished step.

    Raises: UserError where the journal is damaged.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    try:
        # The last piece is empty, or a line cut short when the run was killed.
        contents = list(map(json.loads, lines[:-1]))
        # A run that ended before its first finished step does not restrict the arguments of the next one.
        if len(contents) < 2:
            return None
        first, *steps = contents
        journal = Journal(Header.from_json(first), first["time"], first["program"], steps)
        journal.finished  # noqa: B018 - reads all entries
        return journal
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # or it is of an earlier version
        raise UserError(f"{path} is damaged ({error}): delete it to begin this stage anew") from error
