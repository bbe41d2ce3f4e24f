"""A long file that is written in pieces and, after a kill, from a checkpoint on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO


class ResumableFile:
    """A file being written as ``<name>.partial``, which gets its own name when it is whole.

    Attributes:
      num_bytes: how many it has so far.
      kept_bytes: how many it had at the last `sync`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._partial = path.with_name(path.name + ".partial")
        self._file: IO[bytes]
        self.num_bytes = self.kept_bytes = 0

    def has(self, num_bytes: int) -> bool:
        """Whether an earlier run has left at least `num_bytes`."""
        if not self._partial.exists() and self._path.exists():
            # That run was killed after finishing this file.
            os.replace(self._path, self._partial)
        return not num_bytes or self._partial.exists() and self._partial.stat().st_size >= num_bytes

    def open(self, num_bytes: int) -> IO[bytes]:
        """Opens it for writing after its first `num_bytes`, which can be read."""
        self._file = open(self._partial, "a+b")  # noqa: SIM115 - the caller's to close
        self._file.truncate(num_bytes)
        self._file.seek(0)
        self.num_bytes = self.kept_bytes = num_bytes
        return self._file

    def write(self, block: bytes) -> None:
        self._file.write(block)
        self.num_bytes += len(block)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self.kept_bytes = self.num_bytes

    def finish(self) -> None:
        self._file.close()
        os.replace(self._partial, self._path)

    def keep(self) -> None:
        """After a failure: closes it and keeps what was synchronised, or nothing where that is nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            if self.kept_bytes:
                os.truncate(self._partial, self.kept_bytes)
            else:
                self._partial.unlink()
