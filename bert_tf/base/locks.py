"""A lock that one process at a time can hold; the kernel releases it when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import sys
import time
import weakref
from pathlib import Path

# The errors of flock on file systems without it: some NFS, Lustre without -o flock, FUSE.
WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
# Another process may hold the lock for the moment that `is_locked` takes.
_MOMENT_SECS = 0.2


class LockedError(Exception):
    """Another process holds the lock; the text says which."""


class FileLock:
    """Holds a lock on `path`, a file created for this purpose, until it is released or the process ends.

    On a file system without flock nothing is locked, and a warning says so.

    Raises:
      LockedError: the lock is already held.
      OSError: the file cannot be created.
    """

    def __init__(self, path: Path):
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        until = time.monotonic() + _MOMENT_SECS
        while not _can_lock(self._descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise LockedError(path.read_text(encoding="utf-8").strip() or "another process")
            time.sleep(_MOMENT_SECS / 10)
        path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")

    def release(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # also where a forked process has the descriptor, too
        self._close()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_locked(path: Path) -> bool:
    """Whether a process now holds the `FileLock` of `path`."""
    try:
        with open(path, "rb") as file:
            return not _can_lock(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:  # never locked
        return False


def _can_lock(descriptor: int, kind: int) -> bool:
    """Locks a file, unless another process holds it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_FLOCK:
            raise
        if kind == fcntl.LOCK_EX:
            warning = f"the file system has no locks ({error.strerror}): never start the same again before it has ended"
            print(f"warning: {warning}", file=sys.stderr, flush=True)
    return True
