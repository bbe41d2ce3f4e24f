"""Between the start and the end of an update the host waits for no device, and nothing is compiled a second time.

There is no GPU here, so this is counted: what the host reads and makes while an update runs, what XLA compiles, whether
its program knows over how many micro-batches it loops, and which operations would send a batch through the host.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import Snapshot
from bert_tf.run.statistics import UpdateResult, UpdateStatistics
from tests import processes
from tests.training.test_packed_update import pack, short_batch
from tests.training.test_train_step import Rank, begin, global_batch, make_step, rows_of, traced_apply, traced_sums
from tests.training.test_trainer import Counter, make_trainer


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

    def stage(name, num_results):
        def noted(*given):
            """All that it is given is there already: features, tensors and, for its program, 2 micro-batches."""
            assert all(tf.is_tensor(each) or isinstance(each, (Unread, dict)) or each in (None, 2) for each in given)
            events.append(name)
            return [Unread() for _ in range(num_results)]

        return noted

    def make(*arguments, **options):
        events.append("made")
        return constant(*arguments, **options)

    monkeypatch.setattr(step, "_has_exchange", True)
    for name, num_results in (("_sum", 2), ("_reduce", 2), ("_apply", len(UpdateResult._fields) - 3)):
        monkeypatch.setattr(step, name, stage(name, num_results))
    monkeypatch.setattr(tf, "constant", make)
    assert isinstance(step(rows, 0, num_micro_batches=num_micro_batches).is_finite, Unread)
    made = len(events) - 3
    assert events == ["made"] * made + ["_sum", "_reduce", "_apply"] and made >= 4


def test_the_host_computes_nothing_with_results():
    """TensorFlow keeps int32 on the host, on GPU machines too: a sum of such numbers would fetch them."""
    concrete = traced_apply(make_step(Workers(), precision="fp16")[0])
    results = {tensor.ref() for tensor in concrete.graph.inputs if tensor.dtype in (tf.float32, tf.variant)}
    for operation in concrete.graph.get_operations():
        if results.intersection(tensor.ref() for tensor in operation.inputs):
            assert not {tf.int32, tf.string} & {output.dtype for output in operation.outputs}, operation
            results.update(tensor.ref() for tensor in operation.outputs)
    assert len(results) > 100


def num_made():
    """How many of Python's tensors there were so far: each has a number."""
    return tf.constant(0)._id


def test_an_update_makes_few_tensors_whatever_the_number_of_variables():
    step, *_ = begin()
    features = rows_of(global_batch(), 0, 2, 4)
    step(features, 0)
    before = num_made()
    step(features, 1)
    assert num_made() - before < 16 < len(step.variables)


# Operations whose kernels for GPUs have int32 in host memory: registered with HostMemory for all tensors where T is
# int32 ("A special GPU kernel for int32") in TensorFlow 2.15.1's tensorflow/core/kernels/.
HOST_INT32 = set(
    """Add AddN AddV2 ConcatV2 Equal ExpandDims Fill FloorDiv FloorMod Greater GreaterEqual Identity Less LessEqual Max
    Maximum Min Minimum Mul NotEqual Pack Range Reshape Squeeze StridedSlice StridedSliceGrad Sub Sum Unpack""".split()
)
LARGEST_SHAPE = 8  # elements: more than any tensor's dimensions, fewer than the values of any batch here


def operations_outside_xla(graph):
    """Of a graph and of the functions that it calls, but for those that XLA compiles."""
    for operation in graph.get_operations():
        yield operation
        for name in operation.node_def.attr:
            called = operation.node_def.attr[name].func.name
            if called and not is_compiled(graph, called):
                yield from operations_outside_xla(graph._get_function(called).graph)


def is_compiled(graph, name):
    return graph._get_function(name).cached_definition.attr["_XlaMustCompile"].b


def is_large_int32(tensor):
    size = tensor.shape.num_elements()
    return tensor.dtype == tf.int32 and (size is None or size > LARGEST_SHAPE)


def on_the_host(graph):
    return {
        (operation.type, operation.name)
        for operation in operations_outside_xla(graph)
        if operation.type in HOST_INT32 and any(map(is_large_int32, [*operation.inputs, *operation.outputs]))
    }


@pytest.mark.parametrize("scope", ["off", "blocks"])
def test_no_batch_goes_through_the_host(scope):
    """Outside XLA; and nothing is called back to it. A TensorFlow for CPUs knows no GPU kernels, so they are listed."""
    step, *_ = make_step(Workers(), scope=scope)
    batch, num_micro_batches = pack(short_batch(0), 2)
    packed = traced_sums(step, rows_of(batch, 0, 4, 2), tf.constant(num_micro_batches))
    for concrete in packed, traced_sums(step, rows_of(global_batch(), 0, 2, 4)), traced_apply(step):
        seen = [operation.type for operation in operations_outside_xla(concrete.graph)]
        assert len(seen) > 100 and not on_the_host(concrete.graph)
        assert not {"PyFunc", "PyFuncStateless", "EagerPyFunc"} & set(seen)


UPDATES = """
import sys
from tests.training.test_host_and_device import num_compiled, packed_rows
from tests.training.test_train_step import Workers, make_step
step, *_ = make_step(Workers(), scope="step", precision="fp16", dtype="float16")
updates = [packed_rows(number) for number in range(6)]
assert len({count for _, count in updates}) > 1
for number, (rows, count) in enumerate(updates):
    step(rows, number, num_micro_batches=count).metrics.numpy()
    print(num_compiled(sys.argv[1]))
assert step._accumulate.experimental_get_tracing_count() == step._apply.experimental_get_tracing_count() == 1
"""


def num_compiled(folder):
    """Programs that XLA was given; it is told to write down each of them."""
    return len(list(Path(folder).glob("*before_optimizations.txt")))


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_update(tmp_path):
    """In a process of its own, because XLA reads its flags once."""
    dump, program = tmp_path / "dump", tmp_path / "program.py"
    program.write_text(UPDATES)
    # What is compiled is not looked at, so it need not be good.
    flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_backend_optimization_level=0"
    done = processes.run([sys.executable, str(program), str(dump)], XLA_FLAGS=flags)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 6 and counts[0] >= 10 and set(counts) == {counts[0]}, counts


def test_the_compiled_loop_knows_how_often_it_runs():
    """So that on a GPU the host need not ask after each micro-batch whether there is another one."""
    step, *_ = make_step(Workers(), scope="step")
    arguments = tf.zeros([2]), tf.constant(1.0), tf.constant(1, tf.uint64), tf.constant(0, tf.int64), None
    accumulate = step._accumulate.experimental_get_compiler_ir(rows_of(global_batch(), 0, 8, 1), *arguments)
    program = accumulate(stage="optimized_hlo")
    constants = dict(re.findall(r"(%constant\.\d+) = s32\[\] constant\((\d+)\)", program))
    bounds = re.findall(r"ROOT [^\n]*pred\[\] compare\([^\n]*, (?:s32\[\] )?(%[\w.]+)\)[^\n]*op_name=\"while/", program)
    assert [constants.get(bound) for bound in bounds] == ["8"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_results_are_read_only_where_they_are_logged(monkeypatch, tmp_path, num_ranks):
    """And of several ranks the first two updates after a line wait for the device, to be timed."""
    reads, timed = [], []

    class Unwatched(Counter):
        """Applied updates are a variable on the device."""

        @property
        def updates_applied(self):
            reads.append(self.batches_consumed)
            return self.batches_consumed

        def copy(self, *_):
            return Snapshot(10, {}, {})

        def __call__(self, *_, is_timed, **__):
            timed.append(is_timed)
            return UpdateResult(False, 0.0, 0.0, *[Unread()] * (len(UpdateResult._fields) - 3))

    def read(interval, _):
        reads.append(len(interval._results))
        interval._clear()
        return {"total_loss": 0.0, "throughput_train": 1.0}, None

    monkeypatch.setattr(UpdateStatistics, "read", read)
    monkeypatch.setattr(UpdateStatistics, "last_loss", lambda interval: reads.append("loss") or 0.5)
    settings = dict(num_ranks=num_ranks, save_checkpoint_steps=10, display_loss_steps=5)
    workers = Rank(0, num_ranks, {})
    workers.gather = lambda vector: np.stack([vector] * num_ranks)  # all send the same
    made = make_trainer(monkeypatch, tmp_path, 10, [Unwatched()] * 2, workers, **settings)
    monkeypatch.setattr(made._checkpoints, "write", lambda _: tmp_path)
    reads.clear()
    assert made.fit()
    # Where the run stands when it begins, twice, the loss of the first update, and then each log line: five results,
    # and where it stands; at last which checkpoint stands for it.
    assert reads == [0, 0, "loss", 5, 5, 5, 10, 10, 10]
    assert timed == 2 * [*[num_ranks > 1] * 2, False, False, False]
