"""Data and trainings in a Python that lacks what macOS lacks, by tests/mac_python. (No Mac was at hand.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.preparation import documents

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join([str(ROOT / "tests/mac_python"), str(ROOT)])


def start(folder, *words, **variables):
    """A program of the checkout, without Horovod, as it is on a Mac."""
    environ = {**os.environ, "PYTHONPATH": PATHS, "BERT_PREP_WORKING_DIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder, *words, **variables):
    program = start(folder, *words, **variables)
    output, _ = program.communicate(timeout=540)
    assert program.returncode == 0, output
    return output


@pytest.mark.slow
def test_no_name_is_used_that_python_lacks_on_macos(tmp_path):
    """By the stubs that mypy has of the standard library for each system."""
    command = [sys.executable, "-m", "mypy", "--platform", "darwin", "--cache-dir", str(tmp_path)]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "checked" in answer or "no issues" in answer, answer
    assert "has no attribute" not in answer, answer


def test_the_stand_in_lacks_what_macos_lacks():
    lacking = """
import ctypes, multiprocessing, os, pathlib, select, sys
assert sys.platform == "darwin" and multiprocessing.get_start_method() == "spawn"
assert not hasattr(os, "sched_getaffinity") and not hasattr(select, "epoll")
assert not hasattr(ctypes.CDLL(None), "prctl") and not pathlib.Path("/proc/self").exists()
open("/proc/cpuinfo")"""
    done = subprocess.run([sys.executable, "-c", lacking], env={**os.environ, "PYTHONPATH": PATHS}, capture_output=True)
    assert done.returncode == 1 and b"No such file or directory: '/proc/cpuinfo'" in done.stderr, done.stderr


@pytest.mark.slow
def test_data_are_prepared_and_a_killed_training_goes_on(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(documents(400, words=40)))
    vocabulary = tmp_path / "vocab.txt"
    for action, *options in (
        ("text_formatting", "--input_files", tmp_path / "text.txt"),
        ("sharding", "--n_training_shards", 270, "--n_test_shards", 2),  # more than the files that may be open
        ("create_vocab", "--vocab_size", 300, "--vocab_file", vocabulary),
        ("create_tfrecord_files", "--max_seq_length", 128, "--max_predictions_per_seq", 20, "--vocab_file", vocabulary),
    ):
        words = ("data/bertPrep.py", "--dataset", "custom", "--action", action, "--n_processes", 2, *options)
        run(tmp_path, *words)

    results = tmp_path / "results"
    launcher = "-m bert_tf.launch pretraining_lamb_phase1 4 4 4 1e-3 1e-3 fp32 false 1 2 2 100 10 1 1 tiny".split()
    variables = {"DATASET": "custom", "RESULTS_DIR": str(results)}
    killed = start(tmp_path, *launcher, **variables)
    deadline = time.monotonic() + 300
    while not list(results.glob("*/checkpoints/ckpt-*10")) and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    said, _ = killed.communicate()
    # The system does not end its processes, as Linux does; they see that it is gone. Until then the folder is locked.
    while b"bert_tf.launch.rank" in processes(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes(tmp_path) == b"", said
    said = run(tmp_path, *launcher, **variables)
    assert "update 90 of 90" in said and "going on from" in said, said


def processes(folder) -> bytes:
    """The command lines that name `folder`."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, check=True).stdout.splitlines()
    return b"\n".join(line for line in lines if str(folder).encode() in line)
