"""One process at a time, on file systems with flock; a warning on others."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys

import pytest

from bert_tf.base import locks
from bert_tf.base.errors import UserError
from bert_tf.base.locks import FileLock, LockedError, is_locked
from bert_tf.run.run_folder import RunFolder


def test_one_holder_at_a_time(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with FileLock(path):
        assert is_locked(path)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on {platform.node()}"):
            FileLock(path)
    assert not is_locked(path)
    FileLock(path)
    FileLock(path)  # nobody refers to the first one any more


def test_a_run_folder_has_one_holder(tmp_path):
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match=f"is in use by process {os.getpid()}"):
        RunFolder(tmp_path)
    del folder


@pytest.mark.parametrize("error_number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, capfd, error_number):
    def refuse(*_):
        raise OSError(error_number, os.strerror(error_number))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with FileLock(tmp_path / "lock"):
        assert not is_locked(tmp_path / "lock")
    assert "warning: the file system has no locks" in capfd.readouterr().err


def test_a_killed_holder_lets_go(tmp_path):
    path = tmp_path / "lock"
    program = (
        "import pathlib, signal; from bert_tf.base.locks import FileLock\n"
        f"lock = FileLock(pathlib.Path({str(path)!r}))\nprint('held', flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid} on {platform.node()}"):
            FileLock(path)
        holder.kill()
    FileLock(path).release()
