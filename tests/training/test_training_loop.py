"""The loop: checkpoints written while it goes on, the time limit; what it needs of the machine."""

import dataclasses
import os
import threading

import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import PREFIX, CheckpointFolder, SaveError
from bert_tf.run.statistics import UpdateResult
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import PretrainingConfig
from bert_tf.training import loop
from bert_tf.training.loop import LoopSettings, Run, Training, has_fast_bf16, make_blocks, run_updates
from bert_tf.training.pretraining import PretrainingInputs, pretrain
from tests.pretraining_data import TINY, open_dataset
from tests.tasks.test_finetuning import settings
from tests.training.test_training import dataset as dataset  # a fixture
from tests.training.test_training import lines

PHASE = dict(num_train_steps=20, max_seq_length=16, max_predictions_per_seq=3)


def test_bfloat16_wants_avx512(tmp_path):
    def found(text, **environ):
        (tmp_path / "cpuinfo").write_text(text)
        return has_fast_bf16(environ, tmp_path / "cpuinfo")

    assert found("flags : fpu avx2 avx512f amx_bf16\n") and found("flags : avx512f\n", ONEDNN_MAX_CPU_ISA="DEFAULT")
    assert not found("flags : fpu avx2\n") and not found("flags : avx512f\n", ONEDNN_MAX_CPU_ISA="avx2")
    assert found("Features : fp asimd bf16\n"), "not x86: left to the library"


def test_bfloat16_is_refused_where_it_is_slower(monkeypatch):
    monkeypatch.setattr(loop, "has_fast_bf16", lambda: False)
    assert make_blocks(settings()).compute_dtype == "float32"
    with pytest.raises(UserError, match="--precision=bf16: this processor has no AVX-512"):
        make_blocks(dataclasses.replace(settings(), precision="bf16"))


# --- Checkpoints that are written while the updates go on -----------------------------------------


class Counter:
    """A training whose only weight counts the updates."""

    loss_scale, batches_consumed = LossScale(enabled=False), 0

    def __init__(self):
        self.weight = tf.Variable([0.0], name="weight")
        self.variables = [self.weight]
        self.made = threading.Condition()

    @property
    def updates_applied(self):
        return int(self.weight.numpy()[0])

    def copy(self, checkpoints, _):
        return checkpoints.copy(self.updates_applied, self.variables, {})

    def __call__(self, *_, **__):
        with self.made:
            self.weight.assign_add([1.0])
            self.made.notify_all()
        one = tf.ones([])
        return UpdateResult(False, 0.0, tf.ones([1]), one, one > 0, one, one, tf.ones([1]), tf.ones([1, 3]), 0.0 * one)

    def wait_for_update(self, number):
        with self.made:
            assert self.made.wait_for(lambda: self.updates_applied >= number, timeout=300)


class Batch:
    features, num_micro_batches, num_rows = {}, None, 0


def write_plainly(checkpoints, snapshot, _):
    return CheckpointFolder.write(checkpoints, snapshot)


def count(folder, num_updates, write=write_plainly, **limits):
    """Counts with a checkpoint every second update, which `write` writes; returns the counter."""
    counter = Counter()
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=2, vocab_size=8, companions={})
    checkpoints.write = lambda snapshot: write(checkpoints, snapshot, counter)
    training = Training(counter, counter, lambda _: iter([Batch()] * 99), lambda _: {"total_loss": 1.0})
    with Telemetry(folder, is_chief=True, total_updates=num_updates) as telemetry:
        config = settings(save_checkpoint_steps=2, display_loss_steps=1, **limits)
        loop_settings = LoopSettings(config, num_updates, identity={})
        counter.stopped_by = run_updates(training, Run(Workers(), checkpoints, telemetry), loop_settings)
    return counter


def stored(folder):
    return {
        int(path.name[-8:]): float(tf.train.load_checkpoint(str(path / PREFIX)).get_tensor("weight")[0])
        for path in sorted((folder / "checkpoints").iterdir())
    }


def test_updates_go_on_while_a_checkpoint_is_written_and_do_not_change_it(tmp_path):
    threads = []

    def write(checkpoints, snapshot, counter):
        threads.append(threading.current_thread().name)
        if snapshot.update == 2:
            counter.wait_for_update(4)  # two updates are made meanwhile, and no third before this is written
            assert counter.updates_applied == 4
        return CheckpointFolder.write(checkpoints, snapshot)

    assert count(tmp_path, 5, write).stopped_by is None
    assert len(threads) == 3 and len(set(threads)) == 1 and threads[0].startswith("checkpoints")
    assert stored(tmp_path) == {4: 4.0, 5: 5.0}, "the last one is waited for"
    events = lines(tmp_path, "checkpoint")
    assert [event["update"] for event in events] == [2, 4, 5]
    assert events[2]["secs"] >= events[2]["write_secs"]


def test_a_checkpoint_that_fails_is_a_warning_and_the_last_one_an_error(tmp_path):
    def write(checkpoints, snapshot, _):
        if snapshot.update != 2:
            raise SaveError(f"no room for {snapshot.update}")
        return CheckpointFolder.write(checkpoints, snapshot)

    with pytest.raises(SaveError, match="no room for 6"):
        count(tmp_path, 6, write)
    assert [event["message"] for event in lines(tmp_path, "warning")] == ["no room for 4"]
    assert stored(tmp_path) == {2: 2.0}


def test_a_bug_in_the_writer_is_not_swallowed(tmp_path):
    def write(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        count(tmp_path, 99, write)


def test_what_is_being_written_is_finished_when_an_update_fails(tmp_path, monkeypatch):
    def fails(counter, *arguments, **options):
        if counter.updates_applied == 3:
            raise UserError("an update failed")
        return call(counter, *arguments, **options)

    call = Counter.__call__
    monkeypatch.setattr(Counter, "__call__", fails)
    with pytest.raises(UserError, match="an update failed"):
        count(tmp_path, 99)
    assert stored(tmp_path) == {2: 2.0}


def test_the_time_limit_stops_after_an_update_and_saves(tmp_path):
    assert count(tmp_path, 99, max_hours=1e-9).stopped_by == "max_hours"
    assert stored(tmp_path) == {1: 1.0}
    assert count(tmp_path / "other", 3, max_hours=1000.0).stopped_by is None


def test_a_phase_stops_at_max_hours_saved(dataset, tmp_path):
    config = PretrainingConfig(0.01, 4, 1, 1, max_hours=1e-9, **PHASE)
    inputs = PretrainingInputs(TINY, {}, open_dataset(dataset), None, None)
    assert pretrain(config, inputs, tmp_path, Workers()) is False
    assert os.listdir(tmp_path / "checkpoints") == ["ckpt-00000001"]
    assert [event["reason"] for event in lines(tmp_path, "end")] == ["max_hours"]
    with pytest.raises(UserError, match="max_hours=0: must be positive"):
        dataclasses.replace(config, max_hours=0)
