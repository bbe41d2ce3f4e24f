"""A lock that one process at a time can hold, released when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
import weakref
from pathlib import Path
from typing import IO

from bert_tf.base.leaving import before_leaving

# The errors of flock on file systems without it: some NFS, Lustre without -o flock, FUSE.
WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class LockedError(Exception):
    """Another process holds the lock; the text says which."""


class FileLock:
    """Holds a lock on `path`, a file created for this purpose, until it is released or the process ends.

    Uses flock, which the kernel releases by itself. On a file system without flock the existence of a second file,
    ``<path>.held``, is the lock. It is taken over from a process of this machine that was killed; whether a process of
    another machine has ended is unknown.

    Raises:
      LockedError: the lock is already held.
      OSError: the file cannot be created.
    """

    def __init__(self, path: Path):
        holder = f"process {os.getpid()} on {platform.node()}"
        file, held = open(path, "a+", encoding="utf-8"), None  # noqa: SIM115 - open as long as the lock is held
        fault = _flock_fault(file, fcntl.LOCK_EX)
        if isinstance(fault, BlockingIOError):
            file.seek(0)
            raise LockedError(file.read().strip() or "another process")
        if fault:
            held = _held_path(path)
            if _is_left_over(held):
                held.unlink()
            try:
                with open(held, "x", encoding="utf-8") as mark:
                    mark.write(holder)
            except FileExistsError:
                owner = held.read_text(encoding="utf-8").strip() or "another process"
                raise LockedError(f"{owner} (if that has ended, delete {held})") from None
            print(
                f"warning: the file system of {path.parent} has no locks ({fault.strerror}); the file {held.name} "
                "stands for one",
                file=sys.stderr,
                flush=True,
            )
        path.write_text(holder, encoding="utf-8")
        self.release = weakref.finalize(self, _release, file, held)
        if held:
            before_leaving(self.release)  # another machine could not tell that the file means nothing any more

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _release(file: IO[str], held: Path | None) -> None:
    file.close()
    if held:
        held.unlink(missing_ok=True)


def _held_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def _is_left_over(held: Path) -> bool:
    """Whether this file names a process of this machine that has ended."""
    words = held.read_text(encoding="utf-8").split() if held.exists() else []
    return words[2:] == ["on", platform.node()] and not Path("/proc", words[1]).exists()


def _flock_fault(file: IO, kind: int) -> OSError | None:
    """Why flock cannot lock a file now: another process holds it (BlockingIOError), or there is no flock."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (*WITHOUT_FLOCK, errno.EWOULDBLOCK):
            raise
        return error.with_traceback(None)  # which would keep the callers, and so a lock, alive
    return None


def is_locked(path: Path) -> bool:
    """Whether a process now holds the `FileLock` of `path`. For a moment this holds it, too."""
    try:
        with open(path, "rb") as file:
            fault = _flock_fault(file, fcntl.LOCK_SH)
    except OSError:  # never locked
        return False
    return isinstance(fault, BlockingIOError) or (fault is not None and _held_path(path).exists())
