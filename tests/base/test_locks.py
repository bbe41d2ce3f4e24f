"""One process at a time, on file systems with flock and without."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import platform
import subprocess
import sys

import pytest

from bert_tf.base import locks
from bert_tf.base.errors import UserError
from bert_tf.base.locks import FileLock, LockedError, is_locked
from bert_tf.run.run_folder import RunFolder


@pytest.fixture(params=["flock", errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def path(request, tmp_path, monkeypatch):
    """A lock's file; with an error number, where flock answers with that."""
    if request.param != "flock":
        flock = fcntl.flock

        def without(file, operation):
            if file.name.startswith(str(tmp_path)):
                raise OSError(request.param, os.strerror(request.param))
            flock(file, operation)

        monkeypatch.setattr(locks.fcntl, "flock", without)
    return tmp_path / "lock"


def test_one_holder_at_a_time(path):
    assert not is_locked(path)
    with FileLock(path):
        assert is_locked(path)
        with pytest.raises(LockedError, match=f"process {os.getpid()} on {platform.node()}"):
            FileLock(path)
    assert not is_locked(path)
    FileLock(path).release()


def test_a_lock_that_nobody_refers_to_any_more_is_released(path):
    FileLock(path)
    FileLock(path)


@pytest.fixture
def without_flock(tmp_path, monkeypatch):
    def without(file, _):
        if file.name.startswith(str(tmp_path)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(locks.fcntl, "flock", without)
    return tmp_path / "lock"


def ended_process():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_it_is_said_and_the_file_goes(without_flock, capfd):
    with FileLock(without_flock):
        assert (without_flock.parent / "lock.held").exists()
    assert not (without_flock.parent / "lock.held").exists()
    assert "warning: the file system of" in capfd.readouterr().err


def test_what_a_dead_process_of_this_machine_has_left_is_taken_over(without_flock):
    held = without_flock.parent / "lock.held"
    held.write_text(f"process {ended_process()} on {platform.node()}")
    with FileLock(without_flock):
        assert held.read_text() == f"process {os.getpid()} on {platform.node()}"


@pytest.mark.parametrize("holder", ["process 1 on elsewhere", "", f"process 1 on {platform.node()}"])
def test_what_may_be_held_is_not_taken_and_the_way_out_is_told(without_flock, holder):
    held = without_flock.parent / "lock.held"
    held.write_text(holder)
    with pytest.raises(LockedError, match=f"if that has ended, delete {held}"):
        FileLock(without_flock)
    assert held.read_text() == holder


def _try(number, folder, results):
    """In a process of its own: takes the lock, and keeps it until the process ends."""
    locks.fcntl.flock = _only_outside(folder, fcntl.flock)
    try:
        _try.lock = FileLock(folder / "lock")
        results.put((number, True))
    except LockedError:
        results.put((number, False))
    results.close()
    results.join_thread()
    while not (folder / "end").exists():
        pass
    os._exit(0)


def _only_outside(folder, flock):
    def call(file, operation):
        if file.name.startswith(str(folder)):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        flock(file, operation)

    return call


def test_of_several_that_would_take_over_one_does(tmp_path):
    (tmp_path / "lock.held").write_text(f"process {ended_process()} on {platform.node()}")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_try, args=(number, tmp_path, results)) for number in range(4)]
    for process in processes:
        process.start()
    taken = [results.get(timeout=300)[1] for _ in processes]
    (tmp_path / "end").touch()
    for process in processes:
        process.join()
    assert sum(taken) == 1


def test_a_run_folder_without_flock_has_one_holder(without_flock):
    folder = RunFolder(without_flock.parent)
    with pytest.raises(UserError, match=f"is in use by process {os.getpid()}"):
        RunFolder(without_flock.parent)
    del folder


PROGRAM = """
import errno, sys
from pathlib import Path
from bert_tf.base import locks
from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.base.signals import leave_on_stop_signals
def without(file, _):
    if file.name.startswith(sys.argv[1]):
        raise OSError(errno.ENOLCK, "no locks")
locks.fcntl.flock = without
@exit_on_user_error
def main(argv):
    leave_on_stop_signals()
    lock = locks.FileLock(Path(argv[1]) / "lock")
    assert (Path(argv[1]) / "lock.held").exists()
    exec(argv[2])
main(sys.argv)
"""


@pytest.mark.parametrize(
    "end, code",
    [
        ("raise UserError('x')", 2),
        ("raise KeyboardInterrupt", 130),
        ("import os, signal; os.kill(os.getpid(), signal.SIGUSR1)", 75),
        ("sys.exit(7)", 7),
    ],
)
def test_however_a_program_ends_it_leaves_no_file_that_stands_for_a_lock(tmp_path, end, code):
    """Another machine could not tell that it means nothing any more."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), end], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]
