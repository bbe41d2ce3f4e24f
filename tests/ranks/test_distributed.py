"""Two real Horovod ranks against one."""

import contextlib
import os
import platform
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.base.errors import LostRankError, UserError
from bert_tf.ranks import horovod_workers
from bert_tf.ranks import workers as ranks_workers
from bert_tf.ranks.connect import connect
from bert_tf.ranks.workers import Workers
from tests import processes
from tests.refusals import refused

HERE = Path(__file__).resolve().parents[1]
HOROVODRUN = shutil.which("horovodrun", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
needs_horovod = pytest.mark.skipif(HOROVODRUN is None, reason="Horovod is not installed")


def run(num_ranks, output, num_accumulation_steps, *kinds):
    command = [sys.executable, str(HERE / "two_ranks.py"), str(output), str(num_accumulation_steps), *kinds]
    return (processes.run_two_ranks if num_ranks > 1 else processes.run)(command, HOROVOD_FUSION_THRESHOLD="0")


def load(path):
    archive = np.load(path)
    return [archive[name] for name in archive.files]


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Metrics and weights after three updates, by type of the gradients' all-reduce: of one process, of two ranks."""
    folder = tmp_path_factory.mktemp("updates")
    for num_ranks, name, *arguments in ((1, "alone", 1, "float32"), (2, "two", 4, "float32", "float16")):
        done = run(num_ranks, folder / name, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    alone = load(folder / "alone.float32.0.npz")
    return {
        kind: (alone, load(folder / f"two.{kind}.0.npz"), load(folder / f"two.{kind}.1.npz"))
        for kind in ("float32", "float16")
    }


@needs_horovod
@pytest.mark.slow
def test_two_ranks_make_the_update_that_one_makes(updates):
    for one, left, right in zip(*updates["float32"]):
        np.testing.assert_array_equal(left, right)
        np.testing.assert_allclose(left, one, atol=3e-6)


@needs_horovod
@pytest.mark.slow
def test_compressed_gradients_make_nearly_the_same_update(updates):
    """Three updates at a rate of 0.01: masters stay float32, so only the gradients' rounding shows."""
    alone, first, second = updates["float16"]
    for one, left, right in zip(alone, first, second):
        np.testing.assert_array_equal(left, right)
        np.testing.assert_allclose(left, one, atol=3e-4)
    np.testing.assert_allclose(first[0][0], alone[0][0], rtol=1e-6)  # metrics of the first update travel uncompressed
    assert any((left != one).any() for one, left in zip(alone[1:], first[1:]))


@needs_horovod
@pytest.mark.slow
def test_ranks_with_other_data_are_stopped_and_named(tmp_path):
    done = run(2, tmp_path / "x", 1, "differ")
    assert done.returncode != 0
    host = platform.node()
    assert f"rank 1 on {host} has other data than rank 0 on {host}" in done.stdout + done.stderr


def test_buckets_keep_order_and_size(monkeypatch):
    monkeypatch.setattr(ranks_workers, "BUCKET_BYTES", 40)
    tensors = [*(tf.zeros([size]) for size in (4, 5, 1, 1, 30, 2)), tf.zeros([3], tf.float16)]
    sizes = [[int(tensor.shape[0]) for tensor in bucket] for bucket in ranks_workers._buckets(tensors)]
    assert sizes == [[4, 5, 1], [1], [30], [2], [3]], "neither too large nor of mixed types"


def ancestors(operation):
    found, waiting = set(), [operation]
    while waiting:
        current = waiting.pop()
        before = {*current.control_inputs, *(tensor.op for tensor in current.inputs)} - found
        found |= before
        waiting += before
    return found


def test_a_bucket_is_copied_only_after_the_one_before_it_has_been_reduced(monkeypatch):
    monkeypatch.setattr(ranks_workers, "BUCKET_BYTES", 64)
    tensors = [tf.random.normal([8]) for _ in range(8)]

    @tf.function(autograph=False)
    def reduce(*given):
        return ranks_workers.in_buckets(given, lambda number, flat: tf.multiply(flat, 2.0, name=f"reduced_{number}"))

    for tensor, reduced in zip(tensors, reduce(*tensors)):
        np.testing.assert_array_equal(reduced, 2 * tensor)
    graph = reduce.get_concrete_function(*tensors).graph
    reductions = [graph.get_operation_by_name(f"reduced_{number}") for number in range(4)]
    for previous, following in zip(reductions, reductions[1:]):
        (copy,) = (tensor.op for tensor in following.inputs if tensor.op.type == "ConcatV2")
        assert previous in ancestors(copy)


def test_one_process_is_the_identity():
    workers = connect(use_horovod=False)
    assert (workers.rank, workers.size, workers.is_chief) == (0, 1, True) and type(workers) is Workers
    tensor = tf.constant([1.0, 2.0])
    assert workers.mean([tensor])[0] is tensor
    np.testing.assert_array_equal(workers.gather(np.array([3.0])), [[3.0]])


def test_facts_that_differ_are_named_with_rank_and_host(monkeypatch):
    workers = Workers()
    workers.hosts = ("a", "b", "c")
    monkeypatch.setattr(workers, "gather", lambda vector: np.stack([vector, vector, vector + [0, 1]]))
    with pytest.raises(UserError, match="^rank 2 on c has other data than rank 0 on a; all ranks need"):
        workers.require_same({"settings": 1, "data": "x"})
    monkeypatch.setattr(workers, "gather", lambda vector: np.stack([vector] * 3))
    workers.require_same({"settings": 1, "data": "x"})


class PretendedHorovod:
    """Two ranks as seen by rank 0: the other one's vectors are scripted, and every wait is counted."""

    def __init__(self, others_states):
        self.others_states, self.gathered = iter(others_states), 0

    def rank(self):
        return 0

    local_rank = rank

    def size(self):
        return 2

    def allgather(self, mine, name):
        self.gathered += 1
        return tf.concat([mine, [[next(self.others_states)]]], axis=0)


def workers_beside(others_states):
    """Rank 0 of two, and the Horovod that it sees."""
    horovod = PretendedHorovod(others_states)
    return horovod_workers.HorovodWorkers(horovod), horovod


BUSY, DONE, FAILED = horovod_workers._BUSY, horovod_workers._DONE, horovod_workers._FAILED


def test_a_rank_waits_until_the_slowest_is_done_and_tells_that_it_is_alive(monkeypatch):
    monkeypatch.setattr(horovod_workers, "KEEP_ALIVE_SECS", 0.05)
    workers, horovod = workers_beside([BUSY, BUSY, DONE])
    with workers.keep_alive():
        pass
    assert horovod.gathered == 3
    workers, horovod = workers_beside([DONE] * 1000)
    with workers.keep_alive():
        time.sleep(0.3)
    assert horovod.gathered > 2, "a busy rank has to show that it is alive"


def test_a_failure_is_raised_here_and_named_there():
    workers, horovod = workers_beside([DONE])
    with pytest.raises(UserError, match="the disk is full"), workers.keep_alive():
        raise UserError("the disk is full")
    assert horovod.gathered == 1, "the others must hear of it"
    workers, _ = workers_beside([FAILED])
    with pytest.raises(UserError, match="rank 1 cannot go on; its log says why"), workers.keep_alive():
        pass


@pytest.mark.parametrize(
    "event, message", [(FAILED, "rank 1 cannot go on"), (None, "another rank has ended or does not answer")]
)
def test_a_rank_that_works_long_ends_soon_after_another_failed_or_is_lost(tmp_path, event, message):
    """It does not end its work first, which may take hours."""
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from tests.ranks.test_distributed import horovod_workers, tf, workers_beside\n"
        "horovod_workers.KEEP_ALIVE_SECS = 0.1\n"
        f"workers, horovod = workers_beside([{BUSY}, {event}])\n"
        "def lost(*_, **__): raise tf.errors.UnknownError(None, None, 'Connection closed by peer')\n"
        f"if not {event}: horovod.allgather = lost\n"
        "with workers.keep_alive():\n"
        "    time.sleep(600)\n"
    )
    done = processes.run([sys.executable, str(program)], timeout=100)
    assert done.returncode == (2 if event else 1) and message in done.stderr, done.stderr


def test_the_other_ranks_begin_when_the_chief_is_done(monkeypatch):
    for rank in range(2):
        workers, order = Workers(), []
        monkeypatch.setattr(workers, "rank", rank, raising=False)

        @contextlib.contextmanager
        def together(order=order):
            yield
            order.append("together")

        monkeypatch.setattr(workers, "keep_alive", together)
        assert workers.chief_first(lambda order=order: order.append("work") or 7) == 7
        assert order == (["work", "together", "together"] if rank == 0 else ["together", "work", "together"])


def test_a_lost_rank_is_one_line_and_anything_else_is_not():
    """What Horovod says of it, in the traceback of a graph, helps nobody."""
    workers = horovod_workers.HorovodWorkers(PretendedHorovod([]))
    with pytest.raises(LostRankError, match="rank 0 cannot go on: another rank") as raised, workers.expecting_all():
        raise tf.errors.UnknownError(None, None, "Horovod has been shut down. This was caused by")
    assert raised.value.exit_code == 1
    with pytest.raises(tf.errors.ResourceExhaustedError), workers.expecting_all():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")


@needs_horovod
@pytest.mark.slow
def test_work_of_one_rank_may_take_longer_than_the_stall_limit(tmp_path):
    program = tmp_path / "patience.py"
    program.write_text(
        "import time\n"
        "from bert_tf.ranks.connect import connect\n"
        "workers = connect(use_horovod=True)\n"
        "with workers.keep_alive():\n"
        "    time.sleep(12 if workers.is_chief else 0)\n"
        "print('together')\n"
    )
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    done = processes.run_two_ranks([sys.executable, str(program)], HOROVOD_CACHE_CAPACITY="0", **limits)
    assert done.returncode == 0 and done.stdout.count("together") == 2, done.stdout + done.stderr


def test_missing_horovod_is_a_user_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    refused("Horovod with TensorFlow support cannot be imported", connect, use_horovod=True)
