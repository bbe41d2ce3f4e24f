"""Data and trainings in a Python that lacks what macOS lacks, by tests/mac_python. (No Mac was at hand.)"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.launch.helpers import processes_of
from tests.preparation import documents
from tests.processes import ROOT, answer, wait_for

PATHS = os.pathsep.join([str(ROOT / "tests/mac_python"), str(ROOT)])


def start(folder, *words, **variables):
    """A program of the checkout, without Horovod, as it is on a Mac."""
    environ = {**os.environ, "PYTHONPATH": PATHS, "BERT_PREP_WORKING_DIR": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}
    streams = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env={**environ, **variables}, **streams)


def run(folder, *words, **variables):
    program = start(folder, *words, **variables)
    output, _ = program.communicate(timeout=540)
    assert program.returncode == 0, output
    return output


@pytest.mark.slow
def test_no_name_is_used_that_python_lacks_on_macos(tmp_path):
    """By the stubs that mypy has of the standard library for each system."""
    options = ("--platform", "darwin", "--no-site-packages", "--cache-dir", tmp_path)
    said = answer(sys.executable, "-m", "mypy", *options, cwd=ROOT).stdout
    assert ("checked" in said or "no issues" in said) and "has no attribute" not in said, said


def test_the_stand_in_lacks_what_macos_lacks():
    lacking = """
import ctypes, multiprocessing, os, pathlib, sys
assert sys.platform == "darwin" and multiprocessing.get_start_method() == "spawn"
assert not hasattr(os, "sched_getaffinity") and not hasattr(ctypes.CDLL(None), "prctl")
assert not pathlib.Path("/proc/self").exists()
open("/proc/cpuinfo")"""
    done = answer(sys.executable, "-c", lacking, PYTHONPATH=PATHS)
    assert done.returncode == 1 and "No such file or directory: '/proc/cpuinfo'" in done.stderr, done.stderr


@pytest.mark.slow
def test_data_are_prepared_and_a_killed_training_goes_on(tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join(documents(400, words=40)))
    vocabulary = f"--vocab_file {tmp_path}/vocab.txt"
    for action in (
        f"text_formatting --input_files {tmp_path}/text.txt",
        "sharding --n_training_shards 270 --n_test_shards 2",  # more than the files that may be open
        f"create_vocab --vocab_size 300 {vocabulary}",
        f"create_tfrecord_files --max_seq_length 128 --max_predictions_per_seq 20 {vocabulary}",
    ):
        run(tmp_path, "data/bertPrep.py", *f"--dataset custom --n_processes 2 --action {action}".split())

    results = tmp_path / "results"
    launcher = "-m bert_tf.launch pretraining_lamb_phase1 4 4 4 1e-3 1e-3 fp32 false 1 2 2 240 10 1 1 tiny".split()
    variables = {"DATASET": "custom", "RESULTS_DIR": str(results)}
    killed = start(tmp_path, *launcher, **variables)
    wait_for(lambda: list(results.glob("*/checkpoints/ckpt-*10")), killed)
    killed.kill()
    killed.communicate()
    # The system does not end its processes, as Linux does; they see that it is gone. Until then the folder is locked.
    wait_for(lambda: not processes_of(tmp_path))
    said = run(tmp_path, *launcher, **variables)
    assert "update 216 of 216" in said and "going on from" in said, said
