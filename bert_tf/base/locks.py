"""A lock that one process at a time can hold, released when its holder ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bert_tf.base.leaving import before_leaving

# The errors of flock on file systems without it: some NFS, Lustre without -o flock, FUSE.
WITHOUT_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
# Files that stand for locks held by this process.
_held: set[Path] = set()


class LockedError(Exception):
    """Another process holds the lock; the text says which."""


class FileLock:
    """Holds a lock on `path`, a file created for this purpose, until it is released or the process ends.

    Uses flock, which the kernel releases by itself. On a file system without flock a second file,
    ``<path>.held``, is the lock: created if absent, and removed at the end. If it was left by a process of
    this machine that has ended, it is taken over; whether a process of another machine has ended is unknown.

    Raises:
      LockedError: the lock is already held.
      OSError: the file cannot be created.
    """

    def __init__(self, path: Path):
        self._held_path = _held_path(path)
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - open for as long as the lock is held
        try:
            self._acquire()
        except BaseException:
            self._file.close()
            raise

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            raise LockedError(self._file.read().strip() or "another process") from None
        except OSError as error:
            if error.errno not in WITHOUT_FLOCK:
                raise
            print(
                f"warning: the file system of {self._held_path.parent} has no locks ({error.strerror}); "
                f"the file {self._held_path.name} stands for one",
                file=sys.stderr,
                flush=True,
            )
            self._create_held_file()
        self._file.truncate(0)
        self._file.write(_myself())
        self._file.flush()

    def _create_held_file(self) -> None:
        with _alone_on_this_machine(self._held_path):
            with contextlib.suppress(FileNotFoundError):
                holder = self._held_path.read_text(encoding="utf-8")
                if not _has_ended(holder):
                    raise LockedError(f"{holder or 'another process'} (if that has ended, delete {self._held_path})")
                self._held_path.unlink()
            try:
                descriptor = os.open(self._held_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:  # created by another machine in the meantime
                raise LockedError(f"another machine (if it has ended, delete {self._held_path})") from None
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(_myself())
        _held.add(self._held_path)
        before_leaving(release_all)

    def release(self) -> None:
        if not self._file.closed:
            self._file.close()
            _remove(self._held_path)

    __del__ = release

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def release_all() -> None:
    """Removes the files that stand for locks; the kernel releases the other locks."""
    for path in list(_held):
        _remove(path)


def _remove(held_path: Path) -> None:
    if held_path in _held:
        _held.remove(held_path)
        held_path.unlink(missing_ok=True)


def _held_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.held")


def is_locked(path: Path) -> bool:
    """Whether a process now holds the `FileLock` of `path`."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never locked, or no flock on this file system
        with contextlib.suppress(OSError):
            return not _has_ended(_held_path(path).read_text(encoding="utf-8"))
    return False


def _myself() -> str:
    return f"process {os.getpid()} on {platform.node()}"


def _has_ended(holder: str) -> bool:
    """Whether `holder`, as `_myself` writes it, was a process of this machine and has ended."""
    words = holder.split()
    if len(words) != 4 or words[3] != platform.node() or not words[1].isdigit():
        return False
    try:
        os.kill(int(words[1]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it runs, under another user
        pass
    return False


@contextlib.contextmanager
def _alone_on_this_machine(path: Path) -> Iterator[None]:
    """Excludes other processes of this machine, the only ones that may take over a lock left on it."""
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    with open(Path(tempfile.gettempdir()) / f"bert_tf-{os.getuid()}-{name}.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
