"""Between the start and the end of an update the host waits for no device, and nothing is compiled a second time.

There is no GPU here, so this is counted: what the host reads and makes while an update runs, what its functions call
back, what XLA compiles, and whether its program knows over how many micro-batches it loops.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import Snapshot
from bert_tf.run.statistics import UpdateResult, UpdateStatistics
from tests import processes
from tests.training.test_packed_update import pack, short_batch
from tests.training.test_train_step import Rank, global_batch, make_step, rows_of
from tests.training.test_trainer import make_trainer


class Unread:
    """A result that must stay where it is."""

    def _complain(self, *_):
        raise AssertionError("the host has read a result")

    numpy = __bool__ = __float__ = __array__ = _complain


def packed_rows(number):
    """Features [8, 1, ...] of an update, and how many of its micro-batches count."""
    batch, num_micro_batches = pack(short_batch(number), 1)
    return rows_of(batch, 0, 8, 1), num_micro_batches


class Alike(Rank):
    """Ranks that all send the same."""

    def gather(self, vector):
        return np.stack([vector] * self.size)


UPDATES = """
import sys
sys.path[:0] = [{tests!r}, {checkout!r}]
from tests.training.test_host_and_device import num_compiled, packed_rows
from tests.training.test_trainer import make_trainer
from tests.training.test_train_step import Workers, make_step, tf
step, *_ = make_step(Workers(), scope="step", precision="fp16", dtype="float16")
step_of_variable_rows = [packed_rows(number) for number in range(6)]
assert len({{count for _, count in step_of_variable_rows}}) > 1
for number, (rows, count) in enumerate(step_of_variable_rows):
    step(rows, number, num_micro_batches=count).metrics.numpy()
    print(num_compiled({dump!r}))
assert step._accumulate.experimental_get_tracing_count() == step._apply.experimental_get_tracing_count() == 1
"""


def num_compiled(folder):
    """Programs that XLA was given; it is told to write down each of them."""
    return len(list(Path(folder).glob("*before_optimizations.txt")))


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_update(tmp_path):
    """In a process of its own, because XLA reads its flags once."""
    tests, dump = Path(__file__).parents[1], str(tmp_path / "dump")
    program = tmp_path / "program.py"
    program.write_text(UPDATES.format(tests=str(tests), checkout=str(tests.parent), dump=dump))
    # What is compiled is not looked at, so it need not be good.
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
    done = processes.run([sys.executable, str(program)], XLA_FLAGS=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 6 and counts[0] >= 10 and set(counts) == {counts[0]}, counts


def test_the_compiled_loop_knows_how_often_it_runs():
    """So that on a GPU the host need not ask after each micro-batch whether there is another one."""
    step, *_ = make_step(Workers(), scope="step")
    program = step._accumulate.experimental_get_compiler_ir(
        rows_of(global_batch(), 0, 8, 1),
        tf.zeros([2]),
        tf.constant(1.0),
        tf.constant(1, tf.uint64),
        tf.constant(0, tf.int64),
        None,
    )(stage="optimized_hlo")
    conditions = re.findall(r"constant\((\d+)\)[^\n]*\n\s*ROOT [^\n]*pred\[\] compare\([^\n]*op_name=\"while/", program)
    assert conditions == ["8"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_results_are_read_only_where_they_are_logged(monkeypatch, tmp_path, num_ranks):
    """And of several ranks the first two updates after a line wait for the device, to be timed."""
    reads, timed = [], []

    class State:
        """Applied updates are a variable on the device."""

        loss_scale, batches_consumed = LossScale(enabled=False), 0

        @property
        def updates_applied(self):
            reads.append(self.batches_consumed)
            return self.batches_consumed

        def copy(self, *_):
            return Snapshot(10, {}, {})

        def broadcast(self, _):
            pass

    def read(interval, _):
        reads.append(len(interval._results))
        interval._clear()
        return {"means": [0.0], "skipped": 0, "own_secs": 1.0, "norm_by_variable": None}

    def step(features, number, *, is_timed, **_):
        timed.append(is_timed)
        return UpdateResult(False, 0.0, 0.0, *[Unread()] * (len(UpdateResult._fields) - 3))

    monkeypatch.setattr(UpdateStatistics, "read", read)
    settings = dict(num_ranks=num_ranks, save_checkpoint_steps=10, display_loss_steps=5)
    workers = Alike(0, num_ranks, {})
    made = make_trainer(monkeypatch, tmp_path, 10, (State(), step), workers, **settings)
    monkeypatch.setattr(made._checkpoints, "write", lambda _: tmp_path)
    reads.clear()
    assert made.fit()
    # Where the run stands when it begins, twice, and then each log line: five results, and where it stands.
    assert reads[:-1] == [0, 0, 5, 5, 5, 10]
    assert timed == 2 * [*[num_ranks > 1] * 2, False, False, False]
