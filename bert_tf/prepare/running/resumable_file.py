"""A long file that is written in pieces and, after a kill, from a checkpoint on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO


class ResumableFile:
    """A file that is written as ``<name>.partial`` and gets its own name when it is complete."""

    def __init__(self, path: Path):
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self.file: IO[bytes]

    def has(self, num_bytes: int) -> bool:
        """Whether an earlier run has left at least `num_bytes`."""
        if not self._partial.exists() and self._path.exists():
            # That run was killed after finishing this file.
            os.replace(self._path, self._partial)
        return not num_bytes or self._partial.exists() and self._partial.stat().st_size >= num_bytes

    def open(self, num_bytes: int) -> IO[bytes]:
        """Opens it to continue writing after its first `num_bytes`, which can also be read."""
        self.file = open(self._partial, "a+b")  # noqa: SIM115 - the caller's to close
        self.file.truncate(num_bytes)
        self.file.seek(num_bytes)
        return self.file

    def sync(self) -> int:
        """Waits until all of it is on the disk; returns its number of bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return self.file.tell()

    def finish(self) -> None:
        self.file.close()
        os.replace(self._partial, self._path)

    def discard(self) -> None:
        self._partial.unlink(missing_ok=True)
