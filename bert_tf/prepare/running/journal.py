"""The journal of an unfinished stage: a JSON line for each finished step, beside the manifest to be."""

from __future__ import annotations

import functools
import hashlib
import json
import unicodedata
from collections.abc import Mapping
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


class JournalEntry(NamedTuple):
    """One step: a finished file, or a checkpoint in a single long file."""

    finished: FileEntry | None
    checkpoint: dict[str, Any] | None
    time: float | None  # seconds since 1970; None if copied from an earlier run's journal

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> JournalEntry:
        finished = FileEntry.from_json(content["finished"]) if "finished" in content else None
        return cls(finished, content.get("checkpoint"), content.get("time"))


class Journal(NamedTuple):
    """The notes of an unfinished stage: its header, start time and program versions, then its finished steps."""

    header: Header
    time: float
    program: dict[str, str]  # as `program_version`
    entries: list[JournalEntry]


def read_damaged(path: Path) -> list[str]:
    """The names of damaged files in a note beside a manifest. Raises: UserError if it is not such a note."""
    try:
        return list(map(str, json.loads(path.read_bytes())))
    except (ValueError, TypeError, RecursionError):
        raise UserError(
            f"{path} is damaged: delete it, and let --action verify --repair find the damaged files again"
        ) from None


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
        return Journal(
            Header.from_json(first), first["time"], first["program"], list(map(JournalEntry.from_json, steps))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # or it is of an earlier version
        raise UserError(f"{path} is damaged ({error}): delete it to begin this stage anew") from error
