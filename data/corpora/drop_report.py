"""The report of --keep_report: what text_formatting dropped from a corpus, and why.

Each line holds the reason, the article's title and the dropped text, separated by tabs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO


def report_line(reason: str, title: str, text: str = "") -> str:
    return "\t".join((reason, title, " ".join(text.split())))


class DropReport:
    """A report being written; after a kill it is resumed together with the formatted text."""

    def __init__(self, path: Path):
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._file: IO[bytes]

    def has(self, num_bytes: int) -> bool:
        """Whether an earlier run has left at least `num_bytes`."""
        if not self._partial.exists() and self._path.exists():
            # That run was killed after finishing the report.
            os.replace(self._path, self._partial)
        return self._partial.exists() and self._partial.stat().st_size >= num_bytes

    def open(self, num_bytes: int) -> IO[bytes]:
        """Opens the report for writing after its first `num_bytes`."""
        self._file = open(self._partial, "ab")  # noqa: SIM115
        self._file.truncate(num_bytes)
        self._file.seek(0, os.SEEK_END)
        return self._file

    def write(self, lines: Iterable[str]) -> None:
        self._file.writelines(line.encode("utf-8", "replace") + b"\n" for line in lines)

    def sync(self) -> int:
        """Flushes to disk; returns the size in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def finish(self) -> None:
        self._file.close()
        os.replace(self._partial, self._path)

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        self._partial.unlink(missing_ok=True)
