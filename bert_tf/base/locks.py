"""A lock for one process at a time, released when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
from pathlib import Path

# What flock says on file systems that have none: some NFS, Lustre without -o flock, FUSE.
WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class LockedError(Exception):
    """Somebody else holds the lock; the text says who."""


class FileLock:
    """Holds a lock on `path`, a file made for it, until the context is left, or nobody refers to it any more.

    It is the kernel's (flock). On a file system that has none nothing is locked, and a warning says so.

    Raises:
      LockedError: it is held.
      OSError: the file cannot be made.
    """

    def __init__(self, path: Path):
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open for as long as the lock is held
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with self._file:
                self._file.seek(0)
                raise LockedError(self._file.read().strip() or "another process") from None
        except OSError as error:
            if error.errno not in WITHOUT_FLOCK:
                self._file.close()
                raise
            print(
                f"warning: the file system of {path.parent} has no locks ({error.strerror}), so nothing keeps two "
                "programs apart: never start a second one in that folder while one works there",
                file=sys.stderr,
                flush=True,
            )
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {platform.node()}")
        self._file.flush()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def is_locked(path: Path) -> bool:
    """Whether somebody holds the `FileLock` of `path` now; False where the file system has no locks."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked, or no flock
        pass
    return False
