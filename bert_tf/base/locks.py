"""A lock that one process at a time can hold, released when its holder ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import sys
import weakref
from pathlib import Path

from bert_tf.base.signals import register_clean_up

# The errors of flock on file systems without it: some NFS, Lustre without -o flock, FUSE.
NO_FLOCK_ERRORS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
# `is_locked`, called in another process, holds the lock for a moment.
_MOMENT_SECS = 0.2


class LockedError(Exception):
    """Another process holds the lock; the text says which."""


class FileLock:
    """Holds a lock on `path`, a file created for this purpose, until it is released or the process ends.

    Uses flock, which the kernel releases by itself. On a file system without flock the existence of a second file,
    ``<path>.held``, is the lock. If it was left by a process of this machine that was killed, newer versions of
    `filelock` take it over; whether a process of another machine has ended is unknown.

    Raises:
      LockedError: the lock is already held.
      OSError: the file cannot be created.
    """

    def __init__(self, path: Path):
        # Imported here, because the doctor, which needs no package, imports this module.
        import filelock

        held_path = _held_path(path)
        with open(path, "a+", encoding="utf-8") as file:
            fault = _flock_fault(file.fileno())
            file.seek(0)
            holder = file.read().strip() or "another process"
        if isinstance(fault, BlockingIOError):
            raise LockedError(holder)
        # Not a lock for each thread: whichever thread ends the program must release it.
        self._lock: filelock.BaseFileLock = filelock.FileLock(path, thread_local=False)
        if fault:
            print(
                f"warning: the file system of {path.parent} has no locks ({fault.strerror}); the file "
                f"{held_path.name} stands for one",
                file=sys.stderr,
                flush=True,
            )
            self._lock = filelock.SoftFileLock(held_path, thread_local=False)
            # If the file stayed, another machine could not tell that its process has ended.
            _soft_locks.add(self)
            register_clean_up(_release_all)
        try:
            self._lock.acquire(timeout=_MOMENT_SECS)
        except filelock.Timeout:
            raise LockedError(f"{holder} (if that has ended, delete {held_path})" if fault else holder) from None
        try:
            path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        except OSError as error:  # the error of a full disk names no file
            error.filename = str(path)
            raise

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_soft_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_soft_locks):
        lock.release()


def _held_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def _flock_fault(descriptor: int) -> OSError | None:
    """Why flock cannot lock a file now: another process holds it (BlockingIOError), or there is no flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (*NO_FLOCK_ERRORS, errno.EWOULDBLOCK):
            raise
        return error.with_traceback(None)  # a traceback would keep the callers, and so a lock, alive
    return None


def is_locked(path: Path) -> bool:
    """Whether a process now holds the `FileLock` of `path`."""
    try:
        with open(path, "rb") as file:
            fault = _flock_fault(file.fileno())
    except OSError:  # never locked
        return False
    return isinstance(fault, BlockingIOError) or (fault is not None and _held_path(path).exists())
