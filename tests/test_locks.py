"""One process at a time, where the file system has flock."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import subprocess
import sys

import pytest

from bert_tf.base import locks
from bert_tf.base.locks import FileLock, LockedError, is_locked

HOLDER = """
import sys
from pathlib import Path
from bert_tf.base.locks import FileLock
lock = FileLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with FileLock(path):
        assert is_locked(path)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on {platform.node()}"):
            FileLock(path)
    assert not is_locked(path)
    with FileLock(path):
        pass


def test_a_lock_that_nobody_refers_to_any_more_is_released(tmp_path):
    FileLock(tmp_path / "lock")
    FileLock(tmp_path / "lock")


def test_a_killed_process_holds_no_lock(tmp_path):
    path, pipe = tmp_path / "lock", subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid} on"):
            FileLock(path)
        holder.kill()
    FileLock(path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_flock_nothing_is_locked_which_is_said(tmp_path, monkeypatch, capfd, number):
    def without(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locks.fcntl, "flock", without)
    with FileLock(tmp_path / "lock"):
        assert f"warning: the file system of {tmp_path} has no locks ({os.strerror(number)})" in capfd.readouterr().err
        assert not is_locked(tmp_path / "lock")


def test_other_errors_are_raised(tmp_path, monkeypatch):
    def failing(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(OSError, match="Input/output error"):
        FileLock(tmp_path / "lock")
