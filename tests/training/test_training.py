"""run_pretraining.py as a program: it learns, it resumes bit for bit after kill -9, and it says what is wrong."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import types

import pytest

from bert_tf.memory.plan import PROGRAM, Workload, predict
from bert_tf.ranks.workers import Workers
from bert_tf.run import checkpoint
from bert_tf.run.checkpoint import PREFIX
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.programs import PretrainingOptions
from bert_tf.settings.training import PretrainingConfig
from bert_tf.tasks.pretraining.evaluation import Scorer
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.task import Run
from bert_tf.training.step import TrainStep
from tests import processes
from tests.jobs import events, scores_in
from tests.pretraining_data import ROOMY, TINY, pretrain, write_dataset

SETTINGS = dict(num_train_steps=20, warmup_steps=2, learning_rate=0.01, train_batch_size=4)
SETTINGS |= dict(max_seq_length=16, max_predictions_per_seq=3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("records"))


def command(dataset, model_dir, **changes):
    files = dict(input_files=dataset / "training", eval_files=dataset / "test", model_dir=model_dir)
    files["bert_config_file"] = dataset / "bert_config.json"
    settings = dict(num_accumulation_steps=2, eval_batch_size=4, save_checkpoint_steps=5, display_loss_steps=2)
    flags = {**files, **SETTINGS, **settings, **changes}
    flags = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return [sys.executable, str(processes.ROOT / "run_pretraining.py"), *flags]


def run(dataset, model_dir, expect=0, **changes):
    done = processes.run(command(dataset, model_dir, **changes))
    assert done.returncode == expect, done.stdout + done.stderr
    return done


def losses_by_update(model_dir):
    return {record["update"]: record["total_loss"] for record in events(model_dir, "train")}


def weights(model_dir, update=20):
    folder = model_dir / "checkpoints" / f"ckpt-{update:08d}"
    return [(folder / f"{PREFIX}.{end}").read_bytes() for end in ("data-00000-of-00001", "index")]


@pytest.fixture(scope="module")
def finished(dataset, tmp_path_factory):
    """A run of 20 updates that nobody disturbed, of a program that is no fork."""
    model_dir = tmp_path_factory.mktemp("finished")
    done = subprocess.run(command(dataset, model_dir), capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, model_dir


def test_a_run_leaves_what_is_promised(finished, dataset):
    done, model_dir = finished
    for name in (
        *("config.json", "metrics.jsonl", "report.html", "eval_results.txt", "training_summary.txt"),
        *("bert_config.json", "vocab.txt", "pretrained/bert_config.json", "pretrained/vocab.txt"),
        "pretrained/bert_model.ckpt-1.index",
    ):
        assert (model_dir / name).stat().st_size > 0
    checkpoints = sorted(path.name for path in (model_dir / "checkpoints").iterdir())
    assert checkpoints == ["ckpt-00000010", "ckpt-00000015", "ckpt-00000020"]
    newest = model_dir / "checkpoints" / checkpoints[-1]
    assert (newest / "vocab.txt").read_text() == (dataset / "vocab.txt").read_text()
    assert "Throughput Average (sequences/sec) = " in done.stdout
    assert "evaluation: 4 of 4 batches" in done.stderr
    kinds = itertools.product(("masked_lm", "next_sentence"), ("accuracy", "loss"))
    assert set(scores_in(model_dir)) == {"loss", "global_step", *map("_".join, kinds)}
    for record in events(model_dir, "train"):
        shares = [record[f"{name}_share"] for name in ("input", "compute", "all_reduce", "host")]
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0
    settings = json.loads((model_dir / "config.json").read_text())
    assert settings["settings"]["learning_rate"] == 0.01 and settings["data"]["instances"] == 137
    assert {"python", "numpy"} <= {*settings["versions"]} and settings["processor"]
    work = Workload(TINY, 16, 3, settings["settings"]["xla_scope"], micro_batch_size=4)
    mebibytes = round((predict(work).total + PROGRAM) / 2**20)  # the peak of a CPU's run has the program in it
    assert settings["planned"] == {"num_parameters": work.num_parameters, "memory_mib": mebibytes}


def test_started_again_when_done_it_only_evaluates(finished, dataset):
    """And keeps its summary; what a kill in the last save's clean-up has left behind goes then."""
    _, model_dir = finished
    summary, leftover = model_dir / "training_summary.txt", model_dir / f"checkpoints/.ckpt-00000005.{32 * '0'}.tmp"
    before, summarised = weights(model_dir), summary.read_text()
    leftover.mkdir()
    assert "Throughput Average" not in run(dataset, model_dir).stdout, "nothing was trained, nothing measured"
    assert (weights(model_dir), summary.read_text()) == (before, summarised) and not leftover.exists()


def test_the_encoder_is_written_when_no_other_rank_waits(tmp_path, monkeypatch):
    """A slow disk would take the chief longer than ranks wait for one of which they hear nothing."""
    done = []
    monkeypatch.setattr(checkpoint, "save_encoder", lambda *_: done.append("encoder"))
    task = PretrainingTask(no_next_sentence=False, dropout=None)
    task.bert_config = TINY
    scorer = Scorer(types.SimpleNamespace(variables=[]), lambda *_: done.append("scores") or {})
    task.finish(scorer, Telemetry(tmp_path, is_chief=True), 1)
    assert done == ["scores", "encoder"]


# Is killed where it has written the files of its third checkpoint, and not yet their hashes.
KILLED = """
import os, signal
from bert_tf.run import checkpoint
hash_file, known = checkpoint.sha256_of_file, set()

def hash_or_die(path):
    known.add(path.parent)
    if len(known) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return hash_file(path)

checkpoint.sha256_of_file = hash_or_die
"""


def run_by(text, folder, started):
    """The command of a program of which `text` changes something."""
    start = 'import runpy, sys\nsys.argv.pop(0)\nrunpy.run_path(sys.argv[0], run_name="__main__")\n'
    (folder / "changed.py").write_text(text + start)
    python, *arguments = started
    return [python, str(folder / "changed.py"), *arguments]


def test_killed_with_9_and_started_again_it_ends_with_the_same_bits_also_if_scored(finished, dataset, tmp_path):
    """The kill comes while a checkpoint is written, so that updates are really repeated."""
    model_dir = tmp_path / "run"
    killed = processes.run(run_by(KILLED, tmp_path, command(dataset, model_dir, eval_steps=4)))
    assert killed.returncode == -signal.SIGKILL
    left = sorted(path.name for path in (model_dir / "checkpoints").glob("*ckpt-*"))
    assert left[1:] == ["ckpt-00000004", "ckpt-00000005"], "of each evaluation, too"
    assert left[0].startswith(".ckpt-00000008.") and left[0].endswith(".tmp")
    done = run(dataset, model_dir, eval_steps=4)
    assert "going on from" in done.stdout
    assert weights(model_dir) == weights(finished[1])
    scores = {event["update"]: event for event in reversed(events(model_dir, "evaluation"))}
    assert sorted(scores) == [4, 8, 12, 16, 20]
    # Of the last update the scores are those of a run that is scored at its end only.
    last = {name: value for name, value in events(finished[1], "evaluation")[-1].items() if name.endswith("loss")}
    assert last and last.items() <= scores[20].items()


def test_a_packed_run_goes_on_with_the_same_bits(tmp_path):
    """On token files; as after a kill that came when update 10 was saved and the ones after it were not."""
    tokens = write_dataset(tmp_path / "tokens", data_format="tokens", schema=ROOMY)
    packed = dict(packing=True, max_seq_length=ROOMY.sequence_length, train_batch_size=2, num_accumulation_steps=8)
    run(tokens, tmp_path / "whole", **packed)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for update in (15, 20):
        shutil.rmtree(tmp_path / f"run/checkpoints/ckpt-{update:08d}")
    assert "going on from" in run(tokens, tmp_path / "run", **packed, eval_files=None).stdout
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    for record in events(tmp_path / "whole", "train"):
        assert 1.0 < record["instances_per_row"] < 3.0 and 0.0 < record["padding_share"] < 0.5
        assert record["tokens_per_sec"] > record["throughput_train"]


def test_one_process_finishes_the_update_in_which_a_signal_comes_and_no_more(dataset, tmp_path, monkeypatch):
    update, num_updates = TrainStep.__call__, []

    def signalled_in_the_third(step, *arguments, **options):
        num_updates.append(1)
        if len(num_updates) == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return update(step, *arguments, **options)

    monkeypatch.setattr(TrainStep, "__call__", signalled_in_the_third)
    files = dict(input_files=str(dataset / "training"), bert_config_file=str(dataset / "bert_config.json"))
    assert pretrain(PretrainingConfig(**SETTINGS), tmp_path, **files) is False
    assert os.listdir(tmp_path / "checkpoints") == ["ckpt-00000003"]


def test_held_out_files_that_are_trained_on_are_told(dataset, tmp_path, capsys):
    (tmp_path / "linked").symlink_to(dataset)
    files = dict(input_files=str(dataset / "training"), bert_config_file=str(dataset / "bert_config.json"))
    for split, is_told in ("training", True), ("test", False):
        options = PretrainingOptions(**files, eval_files=str(tmp_path / "linked" / split))
        PretrainingTask(False, None).open(Run(PretrainingConfig(**SETTINGS), options, Workers(), tmp_path))
        assert ("--eval_files names 3 of the files of --input_files" in capsys.readouterr().out) == is_told


def test_phase_2_starts_from_all_weights_of_phase_1_and_loses_nothing(finished, dataset, tmp_path):
    """Nor does it need to be told the model again. It evaluates, as where there are many, a part of the held-out
    instances. A refused start does not block it, not even one that is refused late: weights of another size are noticed
    when they are loaded.
    """
    _, model_dir = finished
    other = tmp_path / "bert_config.json"
    other.write_text(dataclasses.replace(TINY, intermediate_size=16).to_json())
    flags = dict(num_train_steps=2, learning_rate=1e-9, warmup_steps=0, max_eval_steps=2, init_checkpoint=model_dir)
    done = run(dataset, tmp_path / "run", expect=2, bert_config_file=other, **flags)
    assert "another model size" in done.stderr and not (tmp_path / "run" / "config.json").exists()
    done = run(dataset, tmp_path / "run", bert_config_file=None, **flags)
    assert json.loads((tmp_path / "run/bert_config.json").read_text()) == TINY.to_dict()
    assert "2 updates of 8 sequences on 1 rank (CPU)" in done.stdout
    assert "evaluating 8 of 13 held-out instances (--max_eval_steps)" in done.stdout
    assert "evaluation: 2 of 2 batches" in done.stderr
    assert "variables loaded" in done.stdout and "left as initialised" not in done.stdout
    first, last = events(tmp_path / "run", "train")[0], events(model_dir, "train")[-1]
    assert abs(first["mlm_loss"] - last["mlm_loss"]) < 0.3


TWO = dict(num_accumulation_steps=1, learning_rate=0.005, use_horovod=True)  # ranks; the same global batch and rate


@pytest.mark.slow
def test_two_ranks_that_are_killed_with_9_end_with_the_same_bits_and_near_those_of_one(finished, dataset, tmp_path):
    """As when a machine loses its power."""
    whole, killed = (command(dataset, tmp_path / name, **TWO, eval_steps=4) for name in ("whole", "killed"))
    with processes.two_ranks(killed) as ranks:
        processes.wait_for((tmp_path / "killed/checkpoints/ckpt-00000010").exists, ranks[0])
        for rank in ranks:
            rank.kill()
    done, others = processes.run_two_ranks(killed), processes.run_two_ranks(whole)
    assert (done.returncode, others.returncode) == (0, 0), done.stderr + others.stderr
    assert "going on from" in done.stdout and weights(tmp_path / "killed") == weights(tmp_path / "whole")
    for name in ("checkpoints/evaluations.json", "eval_results.txt"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    # One rank with the same global batch: the same examples and masks, so the same losses.
    alone = [record["total_loss"] for record in events(finished[1], "train")]
    assert [record["total_loss"] for record in events(tmp_path / "whole", "train")] == pytest.approx(alone, rel=1e-4)


SIGNALLED = """
import itertools, os, signal
from bert_tf.base.machine.hardware import rank_number
from bert_tf.training.step import TrainStep
work, number = TrainStep.sum_gradients, itertools.count(1)

def signalled(*arguments):
    if next(number) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return work(*arguments)

if rank_number(os.environ) == 1:
    TrainStep.sum_gradients = signalled
"""


@pytest.mark.slow
def test_one_rank_then_two_then_one_again_see_the_same_examples(finished, dataset, tmp_path):
    """The first one ends at update 10, the two, of which the second gets a signal in update 13, with 75 after 14."""
    model_dir = tmp_path / "run"
    shutil.copytree(finished[1], model_dir)
    for update in (15, 20):
        shutil.rmtree(model_dir / "checkpoints" / f"ckpt-{update:08d}")
    metrics = model_dir / "metrics.jsonl"
    until_10 = [line for line in metrics.read_text().splitlines() if json.loads(line)["update"] <= 10]
    metrics.write_text("\n".join(until_10) + "\n")
    with processes.two_ranks(run_by(SIGNALLED, tmp_path, command(dataset, model_dir, **TWO))) as ranks:
        assert [rank.wait(timeout=300) for rank in ranks] == [75, 75]
    run(dataset, model_dir, eval_files=None)
    starts = events(model_dir, "start")
    assert [(start["num_ranks"], start["update"]) for start in starts] == [(1, 0), (2, 10), (1, 14)]
    assert losses_by_update(model_dir) == pytest.approx(losses_by_update(finished[1]), rel=1e-3)
