"""A micro-batch is tried in a process of its own: what its ends mean, and a run under a limit."""

import dataclasses
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pretraining_data import ROOMY, VOCAB_SIZE, write_dataset

from bert_tf.base.errors import UserError
from bert_tf.config import BertConfig, PretrainingConfig
from bert_tf.memory.plan import GIB, BatchSplit, Workload
from bert_tf.ranks.workers import Workers
from bert_tf.training import memory_trial
from bert_tf.training.memory_trial import SHORT_OF_MEMORY, _Trial, fit_into_memory, fit_split

ROOT = Path(__file__).resolve().parent.parent
SMALL = BertConfig(
    vocab_size=101,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=16,
)
WORK = Workload(SMALL, 16, 4, "off")


@pytest.fixture
def tried(monkeypatch):
    """Micro-batches that were tried; those of more than 5 are killed by the kernel."""
    sizes = []

    class Pretended:
        def __init__(self, work, optimizer_type, num_steps):
            assert (work.max_seq_length, optimizer_type) == (16, "lamb") and num_steps <= 2
            sizes.append(work.micro_batch_size)

        def run(self, show_progress):
            return 0 if sizes[-1] <= 5 else -9

        def end(self):
            return "its last words"

    monkeypatch.setattr(memory_trial, "_Trial", Pretended)
    return sizes


def test_the_size_is_halved_until_it_fits(tried, capsys):
    assert fit_split(BatchSplit(24, 2, True), WORK, "lamb", Workers()) == BatchSplit(3, 16, True)
    assert tried == [24, 12, 6, 3]
    assert "12 do not fit (rank 0's trial ended with SIGKILL): going on with 8 micro-batches of 6" in (
        capsys.readouterr().out
    )


def test_the_smallest_of_all_ranks_wins(tried):
    """The other rank's answers come from its mail: it has room for one row only."""

    class Other(Workers):
        size = 2

        def gather(self, vector):
            return np.array([vector, [SHORT_OF_MEMORY if tried[-1] > 1 else 0]])

    assert fit_split(BatchSplit(4, 1, True), WORK, "lamb", Other()) == BatchSplit(1, 4, True)
    assert tried == [4, 2, 1]


def test_where_not_even_one_row_fits(monkeypatch, tried):
    monkeypatch.setattr(memory_trial._Trial, "run", lambda *_, **__: SHORT_OF_MEMORY)
    with pytest.raises(UserError, match="for a micro-batch of 1 .*its last words.*--recompute"):
        fit_split(BatchSplit(2, 1, True), WORK, "lamb", Workers())


def trial_by_script(monkeypatch, tmp_path, script):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    trial = _Trial(WORK, "lamb", 2)
    try:
        return trial.run(show_progress=False), trial._process.poll()
    finally:
        trial.end()


@pytest.mark.parametrize(
    "script, code",
    [("kill -9 $$", -9), ("echo update 1; kill -SEGV $$", -11), ("kill -ABRT $$", -6), ("exit 3", SHORT_OF_MEMORY)],
)
def test_ends_that_mean_a_shortage(monkeypatch, tmp_path, script, code):
    assert trial_by_script(monkeypatch, tmp_path, script) == (code, code)


def test_one_that_fits_holds_its_memory(monkeypatch, tmp_path):
    assert trial_by_script(monkeypatch, tmp_path, "echo update 1; echo update 2; read") == (0, None)


@pytest.mark.parametrize("script", ["echo no such library >&2; exit 1", "echo no such library >&2; kill $$"])
def test_other_ends_are_errors_with_their_words(monkeypatch, tmp_path, script):
    with pytest.raises(RuntimeError, match="does not mean that memory is short:\nno such library"):
        trial_by_script(monkeypatch, tmp_path, script)


def test_a_real_trial_makes_its_updates_and_ends_with_its_parent():
    trial = _Trial(dataclasses.replace(WORK, num_ranks=2), "lamb", 2)
    try:
        assert trial.run(show_progress=False) == 0 and trial._process.poll() is None
        assert Path(f"/proc/{trial._process.pid}/oom_score_adj").read_text() == "1000\n"
        trial._process.stdin.close()  # as when the parent is killed
        assert trial._process.wait(timeout=60) == 0
    finally:
        trial.end()


CONFIG = PretrainingConfig(
    num_train_steps=4,
    warmup_steps=0,
    learning_rate=0.01,
    train_batch_size=4,
    num_accumulation_steps=2,
    num_ranks=1,
    max_seq_length=16,
    max_predictions_per_seq=4,
    may_split_more=True,
)


def test_a_size_given_by_hand_is_not_tried(tried, tmp_path):
    config = dataclasses.replace(CONFIG, may_split_more=False, train_batch_size=24)
    assert fit_into_memory(config, WORK, "lamb", tmp_path, Workers()) == config and tried == []


def test_what_has_trained_here_is_not_tried_again(tried, tmp_path):
    checkpoint = tmp_path / "checkpoints" / "ckpt-00000002"
    checkpoint.mkdir(parents=True)

    def sizes(*, checkpoint_is_newer=True, settings=None, **changes):
        record = {
            "settings": {
                **dataclasses.asdict(CONFIG),
                "train_batch_size": 2,
                "num_accumulation_steps": 4,
                **(settings or {}),
            },
            "bert_config": SMALL.to_dict(),
            "host": platform.node(),
        }
        (tmp_path / "config.json").write_text(json.dumps({**record, **changes}))
        os.utime(checkpoint, (2e9, 2e9) if checkpoint_is_newer else (1e9, 1e9))
        tried.clear()
        fitted = fit_into_memory(CONFIG, WORK, "lamb", tmp_path, Workers())
        assert fitted.global_batch_size == 8
        return fitted.train_batch_size, tried

    assert sizes() == (2, [])
    for changes in (
        dict(checkpoint_is_newer=False),
        dict(host="elsewhere"),
        dict(bert_config={}),
        dict(settings={"precision": "bf16"}),
        dict(settings={"train_batch_size": 8}),
    ):
        assert sizes(**changes) == (4, [4]), changes


# Runs a program and prints at its end what the kernel says about its memory.
WITH_STATUS = """
import atexit, runpy, sys
atexit.register(lambda: print(open("/proc/self/status").read()))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_under_a_limit_goes_on_with_what_fits(tmp_path):
    """The plan is told of memory that is not there. Two layers of 128 keep some 1.9 GB for 1024 rows of 40."""
    records = write_dataset(tmp_path / "records", shards=(1024,), schema=ROOMY)
    (records / "bert_config.json").write_text(BertConfig.preset("tiny", VOCAB_SIZE).to_json())

    flags = [
        f"--bert_config_file={records / 'bert_config.json'}",
        f"--input_files={records / 'training'}",
        "--max_seq_length=40",
        "--max_predictions_per_seq=3",
        "--num_train_steps=2",
        "--display_loss_steps=1",
    ]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        **one_thread,
    }

    def losses(name, limit, *split):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                WITH_STATUS,
                str(ROOT / "run_pretraining.py"),
                *flags,
                *split,
                f"--model_dir={tmp_path / name}",
            ],
            env=environment,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        events = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return done.stdout, [event["total_loss"] for event in events if event["event"] == "train"]

    said, expected = losses("by_hand", resource.RLIM_INFINITY, "--train_batch_size=64", "--num_accumulation_steps=16")
    enough_for_64 = 1024 * int(said.split("VmPeak:")[1].split()[0])
    said, found = losses(
        "auto",
        enough_for_64 + int(1.5 * GIB),
        "--train_batch_size=auto",
        "--global_batch_size=1024",
        "--gpu_memory_gib=1000",
    )
    assert "trying micro-batches of 1024" in said and "1024 do not fit (rank 0's trial ended with " in said
    assert " on each rank fit\n" in said
    assert found == pytest.approx(expected, rel=1e-5)
