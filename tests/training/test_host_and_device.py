"""Between the start and the end of an update the host waits for no device, and nothing is compiled a second time.

There is no GPU here, so this is counted: what the host reads and makes while an update runs, what XLA compiles, and
whether its program knows over how many micro-batches it loops. What stays on a GPU: test_device_kernels.
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
from tests.training.test_train_step import Rank, global_batch, make_step, rows_of, traced_apply
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


@pytest.mark.parametrize("num_micro_batches", [None, 1])
def test_an_update_is_handed_over_before_anything_of_it_is_read(monkeypatch, num_micro_batches):
    """And nothing is made for a device after its work has begun: what goes there waits for that work."""
    step, *_ = make_step(Workers(), precision="fp16")
    rows, events, constant = rows_of(global_batch(), 0, 2, 4), [], tf.constant
    gradients, metric_sums = Unread(), Unread()

    def add_up(features, *arguments):
        assert all(tf.is_tensor(value) for value in arguments[:4])
        events.append("added up")
        return gradients, metric_sums

    def reduce(*sums):
        assert sums[0] is gradients and sums[1] is metric_sums
        events.append("reduced")
        return sums[:2]

    def apply(applied, *rest):
        assert applied is gradients and rest[0] is metric_sums and tf.is_tensor(rest[1])
        events.append("applied")
        return [Unread() for _ in range(len(UpdateResult._fields) - 3)]

    def make(*arguments, **options):
        events.append("made")
        return constant(*arguments, **options)

    monkeypatch.setattr(step, "_has_exchange", True)
    monkeypatch.setattr(step, "_sum", add_up)
    monkeypatch.setattr(step, "_reduce", reduce)
    monkeypatch.setattr(step, "_apply", apply)
    monkeypatch.setattr(tf, "constant", make)
    result = step(rows, 0, num_micro_batches=num_micro_batches)
    assert isinstance(result.is_finite, Unread)
    made = len(events) - 3
    assert events == ["made"] * made + ["added up", "reduced", "applied"] and made >= 4


class Alike(Rank):
    """Ranks that all send the same."""

    def gather(self, vector):
        return np.stack([vector] * self.size)


def test_the_host_computes_nothing_with_results():
    """TensorFlow keeps int32 on the host, on GPU machines too: a sum of such numbers would fetch them."""
    concrete = traced_apply(make_step(Workers(), precision="fp16")[0])
    results = {tensor.ref() for tensor in concrete.graph.inputs if tensor.dtype in (tf.float32, tf.variant)}
    for operation in concrete.graph.get_operations():
        if results.intersection(tensor.ref() for tensor in operation.inputs):
            assert not {tf.int32, tf.string} & {output.dtype for output in operation.outputs}, operation
            results.update(tensor.ref() for tensor in operation.outputs)
    assert len(results) > 100


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
    constants = dict(re.findall(r"(%constant\.\d+) = s32\[\] constant\((\d+)\)", program))
    bounds = re.findall(r"ROOT [^\n]*pred\[\] compare\([^\n]*, (?:s32\[\] )?(%[\w.]+)\)[^\n]*op_name=\"while/", program)
    assert [constants.get(bound) for bound in bounds] == ["8"]


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
        return {"total_loss": 0.0, "throughput_train": 1.0}, None

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
    # Where the run stands when it begins, three times, and then each log line: five results, and where it stands.
    assert reads[:-1] == [0, 0, 0, 5, 5, 5, 10]
    assert timed == 2 * [*[num_ranks > 1] * 2, False, False, False]
