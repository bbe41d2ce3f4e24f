"""One process at a time, on file systems with flock and without."""

import errno
import os
import platform
import resource
import subprocess
import sys
from unittest import mock

import pytest

from bert_tf.base import locks
from bert_tf.base.errors import as_user_error
from bert_tf.base.locks import FileLock, LockedError, is_locked


def refuse_flock(monkeypatch, error_number):
    error = OSError(error_number, os.strerror(error_number))
    monkeypatch.setattr(locks.fcntl, "flock", mock.Mock(side_effect=error))


@pytest.fixture(params=["flock", errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def path(request, tmp_path, monkeypatch):
    """A lock's file; with an error number, where flock answers with that."""
    if request.param != "flock":
        refuse_flock(monkeypatch, request.param)
    return tmp_path / "lock"


def test_one_holder_at_a_time(path, capfd):
    assert not is_locked(path)
    with FileLock(path):
        assert ("warning: the file system of" in capfd.readouterr().err) == (path.parent / "lock.held").exists()
        assert is_locked(path)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on {platform.node()}"):
            FileLock(path)
    assert not is_locked(path)
    for _ in range(2):  # one that nobody refers to any more is released
        FileLock(path)


def test_a_lock_on_a_full_disk_is_named(tmp_path):
    """Here by a limit of all files' sizes."""
    path, limits = tmp_path / "lock", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError) as raised:
            FileLock(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert as_user_error(raised.value).args[0].startswith(f"{path} cannot be written (File too large); make room")


@pytest.mark.parametrize("holder", ["1\nelsewhere\n", "", f"1\n{platform.node()}\n"])
def test_what_may_be_held_is_not_taken_and_the_way_out_is_told(tmp_path, monkeypatch, holder):
    refuse_flock(monkeypatch, errno.ENOLCK)
    held = tmp_path / "lock.held"
    held.write_text(holder)
    with pytest.raises(LockedError, match=f"if that has ended, delete {held}"):
        FileLock(tmp_path / "lock")
    assert held.read_text() == holder


HOLDER = """
import os, signal, sys
from pathlib import Path
from unittest import mock
from bert_tf.base import locks
from bert_tf.base.errors import UserError, exit_on_user_error
@exit_on_user_error
def main(argv):
    if argv[2] == "without flock":
        locks.fcntl.flock = mock.Mock(side_effect=OSError(locks.errno.ENOLCK, "no locks"))
    lock = locks.FileLock(Path(argv[1]))
    exec(argv[3])
main(sys.argv)
"""


@pytest.mark.parametrize(
    "end, code", [("pass", 0), ("raise UserError('x')", 2), ("os.kill(os.getpid(), signal.SIGUSR1)", 75)]
)
def test_however_a_program_ends_it_leaves_no_file_that_stands_for_a_lock(tmp_path, end, code):
    """Another machine could not tell that it means nothing any more."""
    arguments = [str(tmp_path / "lock"), "without flock", f"assert Path(argv[1] + '.held').exists(); {end}"]
    done = subprocess.run([sys.executable, "-c", HOLDER, *arguments], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


def test_a_killed_holder_lets_go(tmp_path):
    path = tmp_path / "lock"
    arguments = [str(path), "with flock", "print('held', flush=True); signal.pause()"]
    with subprocess.Popen([sys.executable, "-c", HOLDER, *arguments], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockedError, match=f"process {holder.pid} on {platform.node()}"):
            FileLock(path)
        holder.kill()
    FileLock(path).release()
