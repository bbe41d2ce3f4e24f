"""The trainer: checkpoints written while it goes on, the time limit, halving; what it needs of the machine."""

import contextlib
import itertools
import os
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.batches.batches import Batch
from bert_tf.memory.split import TRIAL_UPDATES, halve
from bert_tf.model.backends import Plain
from bert_tf.model.losses import Objective
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run import device
from bert_tf.run.checkpoint import PREFIX, CheckpointFolder, SaveError
from bert_tf.run.device import has_fast_bf16
from bert_tf.run.run_folder import RunFolder
from bert_tf.run.statistics import UpdateResult
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import BatchSplit, TrainingConfig
from bert_tf.training import trainer
from bert_tf.training.record import describe_divergence
from bert_tf.training.step import GradientSums
from bert_tf.training.trainer import Trainer, Training
from tests.jobs import events
from tests.refusals import refused
from tests.training.test_train_step import CONFIG, begin, global_batch, make_step, rows_of, train


def test_bfloat16_wants_avx512_or_arms_bf16():
    assert has_fast_bf16({"flags": "fpu avx2 avx512f amx_bf16"}) and not has_fast_bf16({"flags": "fpu avx2"})
    assert has_fast_bf16({"Features": "fp asimd bf16"}) and not has_fast_bf16({"Features": "fp asimd"}), "ARM"
    assert not has_fast_bf16({}), "macOS, where TensorFlow has no oneDNN"


def test_bfloat16_is_refused_where_it_is_slower(monkeypatch):
    monkeypatch.setattr(device, "has_fast_bf16", lambda: False)
    device.prepare_device("fp32", "off")
    refused("--precision=bf16: this processor has no AVX-512", device.prepare_device, "bf16", "off")


def test_fp16_on_a_processor_that_lacks_it_is_said_to_be_slow(monkeypatch):
    flags = {"flags": "fpu avx2 avx512f"}
    assert device.slow_fp16("fp16", flags).endswith("hundred times as long as in fp32; use fp32 or bf16")
    assert device.slow_fp16("fp16", {"flags": "fpu avx2"}).endswith("use fp32")
    for precision, facts in (("fp32", flags), ("fp16", {"flags": "avx512f avx512_fp16"}), ("fp16", {})):
        assert device.slow_fp16(precision, facts) == ""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU"])
    assert device.slow_fp16("fp16", flags) == ""


@pytest.mark.parametrize("scope, gpus", [("off", 1), ("blocks", 1), ("step", 1), ("off", 0), ("blocks", 0)])
def test_tensorflows_kernels_add_in_one_order_on_gpus(monkeypatch, scope, gpus):
    """XLA's program of a whole step does so by itself."""
    calls = []
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU"] * gpus)
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: calls.append(scope))
    monkeypatch.setenv("TF_DETERMINISTIC_OPS", "1")
    device.prepare_device("fp32", scope)
    assert calls == [scope] * (gpus and scope != "step")
    assert ("TF_DETERMINISTIC_OPS" in os.environ) == (scope != "step")


# --- Checkpoints that are written while the updates go on -----------------------------------------


class Counter:
    """State and step of a training whose only weight counts the updates."""

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

    def broadcast(self, workers):
        pass

    def __call__(self, *_, **__):
        with self.made:
            self.weight.assign_add([1.0])
            self.made.notify_all()
        one = tf.ones([])
        return UpdateResult(False, 0.0, 0.0, tf.ones([1]), one, one > 0, one, one, tf.ones([1]), tf.ones([1, 3]))

    def wait_for_update(self, number):
        with self.made:
            assert self.made.wait_for(lambda: self.updates_applied >= number, timeout=300)


def make_trainer(
    monkeypatch, folder, num_updates=10, state_and_step=None, workers=None, backend=None, evaluation=None, **settings
):
    """A trainer of a step that need not have a model."""
    made = state_and_step or [Counter()] * 2
    monkeypatch.setattr(trainer, "make_step", lambda *_: made)
    monkeypatch.setattr(trainer, "run_record", lambda *_, **__: {})
    model = types.SimpleNamespace(config=CONFIG, backend=backend or Plain())
    batch = Batch({"input_ids": tf.zeros([2, 2, 1])})
    unused = dict(optimizer=None, warmup_steps=0, identity={}, flops_per_sequence=1.0, workload=None)
    used = dict(num_updates=num_updates, batches=lambda _: itertools.repeat(batch), evaluation=evaluation)
    training = Training("t", model, Objective(), **used, **unused)
    config = TrainingConfig(**{**dict(learning_rate=1.0, train_batch_size=2, num_accumulation_steps=2), **settings})
    telemetry = Telemetry(folder, is_chief=True)
    locked = RunFolder(folder)
    made = Trainer(config, training, workers or Workers(), folder=locked, telemetry=telemetry)
    fit = made.fit

    def fit_and_unlock(*arguments):
        with locked, telemetry:
            return fit(*arguments)

    made.fit = fit_and_unlock
    return made


@pytest.fixture
def count(monkeypatch):
    """Counts with a checkpoint every second update, which `write` may write; returns whether the end was reached."""

    def run(folder, num_updates, write=None, **limits):
        counter = Counter()
        limits |= dict(save_checkpoint_steps=2, keep_checkpoints=2, display_loss_steps=1)
        counting = make_trainer(monkeypatch, folder, num_updates, [counter] * 2, **limits)
        checkpoints = counting._checkpoints
        if write:
            monkeypatch.setattr(checkpoints, "write", lambda snapshot: write(checkpoints, snapshot, counter))
        return counting.fit()

    return run


def stored(folder):
    """The counters of the checkpoints, by their updates."""
    return {
        int(path.name[-8:]): float(tf.train.load_checkpoint(str(path / PREFIX)).get_tensor("weight")[0])
        for path in sorted((folder / "checkpoints").glob("*ckpt-*"))
    }


def test_updates_go_on_while_a_checkpoint_is_written_and_do_not_change_it(tmp_path, count):
    threads = []

    def write(checkpoints, snapshot, counter):
        threads.append(threading.current_thread().name)
        if snapshot.update == 2:
            counter.wait_for_update(4)  # two updates are made meanwhile, and no third before this is written
            assert counter.updates_applied == 4
        return CheckpointFolder.write(checkpoints, snapshot)

    assert count(tmp_path, 5, write)
    assert len(threads) == 3 and len(set(threads)) == 1 and threads[0].startswith("checkpoints")
    assert stored(tmp_path) == {4: 4.0, 5: 5.0}, "the last one is waited for"
    saved = events(tmp_path, "checkpoint")
    assert [event["update"] for event in saved] == [2, 4, 5] and saved[2]["secs"] >= saved[2]["write_secs"]


def test_a_checkpoint_that_fails_is_a_warning_and_the_last_one_an_error(tmp_path, count):
    def write(checkpoints, snapshot, _):
        if snapshot.update != 2:
            raise SaveError(f"no room for {snapshot.update}")
        return CheckpointFolder.write(checkpoints, snapshot)

    with pytest.raises(SaveError, match="^no room for 6, and start again$"):
        count(tmp_path, 6, write)
    assert [event["message"] for event in events(tmp_path, "warning")] == [
        "no room for 4: the training goes on, and saves again at the next checkpoint"
    ]
    assert stored(tmp_path) == {2: 2.0}


def test_a_report_that_takes_long_is_made_less_often(tmp_path, count, monkeypatch):
    """It reads the whole log, so it takes longer and longer. Here it takes a second, and so does a checkpoint."""
    clock, made = [0.0], []

    def take_a_second(*_):
        clock[0] += 1.0
        return tmp_path

    def write_page(*_):
        made.append(clock[0])
        take_a_second()

    monkeypatch.setattr(trainer, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(trainer.report, "write_page", write_page)
    assert count(tmp_path, 2 * 50, take_a_second)
    assert made == [1.0, 21.0, 41.0, 53.0], "at the first checkpoint, in a twentieth of the time, and at the end"


def test_a_run_that_goes_on_with_changes_records_them(tmp_path, count, monkeypatch):
    """As config.json has only the settings of the last start; a run without a checkpoint only begins."""
    monkeypatch.setattr(RunFolder, "check", lambda *_: "seed: 1 there, 3 now")
    warning = "going on with other settings than before (seed: 1 there, 3 now)"
    for resumed_from, warnings in ((None, []), (tmp_path, [warning])):
        monkeypatch.setattr(Trainer, "_resume_or_initialise", lambda _, found=resumed_from: found)
        assert count(tmp_path, 2)
        assert [event["message"] for event in events(tmp_path, "warning")] == warnings


def test_what_is_being_written_is_finished_when_an_update_fails(tmp_path, monkeypatch, count):
    def fails(counter, *arguments, **options):
        if counter.updates_applied == 3:
            raise UserError("an update failed")
        return call(counter, *arguments, **options)

    call = Counter.__call__
    monkeypatch.setattr(Counter, "__call__", fails)
    refused("an update failed", count, tmp_path, 99)
    assert stored(tmp_path) == {2: 2.0}


def test_the_time_limit_stops_after_an_update_and_saves(tmp_path, count):
    assert not count(tmp_path, 99, max_hours=1e-9)
    assert stored(tmp_path) == {1: 1.0} and events(tmp_path, "end")[0]["reason"] == "max_hours"
    assert count(tmp_path / "other", 3, max_hours=1000.0)


# --- Out of memory in the first updates: half the micro-batch on all ranks, the same update --------


def test_halves_divide_the_rows():
    assert halve(BatchSplit(24, 2)) == BatchSplit(12, 4)
    assert halve(BatchSplit(6, 1, num_ranks=2, rank=1)) == BatchSplit(3, 2, num_ranks=2, rank=1)
    assert halve(BatchSplit(7, 1)) == BatchSplit(1, 7)


def limit_memory(monkeypatch, step, largest):
    """As on a device on which micro-batches of more than `largest` rows do not fit."""
    add_up = step._sum

    def limited(features, *arguments):
        if features["input_ids"].shape[1] > largest:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        return add_up(features, *arguments)

    monkeypatch.setattr(step, "_sum", limited)


def halving(monkeypatch, folder, step, rows, workers=None):
    """A trainer on trial, which begins with one micro-batch of so many rows, and the messages of its halvings."""
    settings = dict(train_batch_size=rows, num_accumulation_steps=1, may_split_more=True)
    settings["num_ranks"] = workers.size if workers else 1
    made = make_trainer(monkeypatch, folder, state_and_step=(None, step), workers=workers, **settings)
    said = []
    monkeypatch.setattr(made._telemetry, "warning", said.append)
    return made, said


def test_the_update_is_what_it_would_have_been(monkeypatch, tmp_path):
    _, expected = train(4, 2)
    step, model, *_ = begin()
    limit_memory(monkeypatch, step, 2)
    made, said = halving(monkeypatch, tmp_path, step, 8)
    for number in range(2):
        assert bool(made._make_update(rows_of(global_batch(seed=number), 0, 1, 8), number).is_finite)
    for variable, value in zip(model.variables, expected):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert ["4 micro-batches of 2 instead of 2 of 4" in line for line in said] == [False, True]


def test_a_shortage_on_one_rank_halves_it_on_all(monkeypatch, tmp_path):
    """The other rank's answers come from its mail: this one has room enough, and halves all the same."""

    class Other(Workers):
        size, num_asked = 2, 0

        def gather(self, vector):
            if len(vector) > 1:
                return np.stack([vector, vector])
            self.num_asked += 1
            return np.array([vector, [self.num_asked == 1]])

    workers = Other()
    step, *_ = make_step(workers)
    # All but the ranks' agreement computes nothing.
    monkeypatch.setattr(step, "sum_gradients", lambda update: GradientSums(tf.zeros([]), tf.zeros([4]), 0.0, 0.0))
    monkeypatch.setattr(step, "apply", lambda update, sums: update)
    made, said = halving(monkeypatch, tmp_path, step, 4, workers)
    for number in range(TRIAL_UPDATES):
        assert made._make_update(rows_of(global_batch(), 0, 1, 4), number).shape == (2, 2)
    assert len(said) == 1 and made._split == BatchSplit(2, 2, num_ranks=2)
    assert workers.num_asked == 1 + TRIAL_UPDATES
    made._make_update(rows_of(global_batch(), 0, 1, 4), TRIAL_UPDATES)
    assert workers.num_asked == 1 + TRIAL_UPDATES, "ranks compare notes in the first updates only"


def test_a_shortage_does_not_leave_keep_alive_as_an_error_while_there_is_a_half(monkeypatch, tmp_path):
    """It would end the other ranks."""
    workers, left = Workers(), []

    @contextlib.contextmanager
    def keep_alive():
        try:
            yield
        except UserError:
            left.append(made._split.micro_batch_size)
            raise

    monkeypatch.setattr(workers, "keep_alive", keep_alive)
    for largest, expected in ((2, []), (0, [1])):
        step, *_ = begin()
        limit_memory(monkeypatch, step, largest)
        made, _ = halving(monkeypatch, tmp_path / str(largest), step, 4, workers)
        with contextlib.nullcontext() if largest else pytest.raises(UserError, match="with a micro-batch of 1 "):
            made._make_update(rows_of(global_batch(), 0, 1, 4), 0)
        assert left == expected


# --- Why a run gives up ---------------------------------------------------------------------------


def test_only_where_records_are_known_a_divergence_names_them_and_the_replay(tmp_path):
    """Fine-tuning has neither; its programs would refuse the flag."""
    model = types.SimpleNamespace(trainable_variables=[tf.Variable([0.0], name="weight")])
    of_updates = dict(batches_consumed=9, updates_applied=5)
    state = types.SimpleNamespace(model=model, loss_scale=LossScale(enabled=False), **of_updates)
    checkpoints = CheckpointFolder(tmp_path, keep=1, vocab_size=1, companions={})
    norms, end = np.array([np.nan]), "there is no sound checkpoint. {}a lower learning rate, "
    said = describe_divergence(state, norms, [], checkpoints)
    assert "first that of weight (1 of 1 variables) is not finite; " + end.format("") in said
    said = describe_divergence(state, norms, ["a 1 to 64"], checkpoints)
    assert ": a 1 to 64; " + end.format("--replay_update=6 examines that update; ") in said


# --- What the backend has to say of a step --------------------------------------------------------


class Remarking(Counter):
    """A step whose backend has a remark from the first update on, and one more from the third on; all are long."""

    LINES = ("kernels of our own: AddNorm", "no kernels of our own for BiasGelu: there is no GPU")

    @property
    def remarks(self):
        return self.LINES[: 1 if self.updates_applied < 3 else 2]

    def __call__(self, *arguments, **options):
        return super().__call__(*arguments, **options)._replace(own_secs=2 * trainer.LONG_UPDATE_SECS)


def test_each_remark_is_told_once(tmp_path, monkeypatch, capsys):
    step = Remarking()
    assert make_trainer(monkeypatch, tmp_path, 5, [step] * 2, backend=step).fit()
    said = capsys.readouterr().out
    assert [said.count(line) for line in Remarking.LINES] == [1, 1]
