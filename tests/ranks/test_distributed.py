"""Two real Horovod ranks against one.

As a program, started alone and as two ranks, this file makes three updates of one global batch each. Arguments: output,
accumulation steps, then the types that gradients travel in, for each of which the updates are made.
"""

import contextlib
import sys

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
from tests.training.test_train_step import global_batch, make_step, rows_of


def make_updates(workers, num_accumulation_steps, reduce_dtype):
    """The metrics of each update, and the weights by name after the last one."""
    micro_batch = 8 // num_accumulation_steps // workers.size
    scope = "blocks" if reduce_dtype == "float32" else "off"  # the other one is about what travels
    # Ranks begin with different weights, so that the broadcast is needed.
    precision, seed = "fp16" if reduce_dtype == "float16" else "fp32", 1 + workers.rank
    step, model, *_ = make_step(workers, scope, precision=precision, seed=seed, reduce_dtype=reduce_dtype)
    workers.broadcast(model.variables)
    metrics = []
    for number in range(3):
        rows = rows_of(global_batch(seed=number), workers.rank, num_accumulation_steps, micro_batch)
        result = step(rows, number, stop_requested=number == 2 and workers.rank == workers.size - 1)
        metrics.append(result.metrics.numpy())
    assert result.stop_requested, "what one rank asks for, all ranks must hear"
    return {"metrics": metrics, **{variable.name: variable.numpy() for variable in model.variables}}


def main(output, num_accumulation_steps, *kinds):
    workers = connect(use_horovod=True)
    for kind in kinds:
        workers.require_same({"kind": kind})
        found = make_updates(workers, int(num_accumulation_steps), kind)
        np.savez(f"{output}.{kind}.{workers.rank}.npz", **found)


def load(path):
    archive = np.load(path)
    return [archive[name] for name in archive.files]


@pytest.fixture(scope="module")
def updates(tmp_path_factory):
    """Metrics and weights after three updates, by type of the gradients' all-reduce: of one process, of two ranks."""
    folder = tmp_path_factory.mktemp("updates")
    for run, name, *arguments in (
        (processes.run_two_ranks, "two", "4", "float32", "float16"),  # which skips without Horovod
        (processes.run, "alone", "1", "float32"),
    ):
        done = run([sys.executable, __file__, str(folder / name), *arguments], HOROVOD_FUSION_THRESHOLD="0")
        assert done.returncode == 0, done.stdout + done.stderr
    alone = load(folder / "alone.float32.0.npz")
    kinds = "float32", "float16"
    return {kind: (alone, *(load(folder / f"two.{kind}.{rank}.npz") for rank in range(2))) for kind in kinds}


@pytest.mark.slow
def test_two_ranks_make_the_update_that_one_makes(updates):
    for one, left, right in zip(*updates["float32"]):
        np.testing.assert_array_equal(left, right)
        np.testing.assert_allclose(left, one, atol=3e-6)


@pytest.mark.slow
def test_compressed_gradients_make_nearly_the_same_update(updates):
    """Three updates at a rate of 0.01: masters stay float32, so only the gradients' rounding shows."""
    alone, first, second = updates["float16"]
    for one, left, right in zip(alone, first, second):
        np.testing.assert_array_equal(left, right)
        np.testing.assert_allclose(left, one, atol=3e-4)
    np.testing.assert_allclose(first[0][0], alone[0][0], rtol=1e-6)  # metrics of the first update travel uncompressed
    assert any((left != one).any() for one, left in zip(alone[1:], first[1:]))


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

    def double(number, flat):
        return tf.multiply(flat, 2.0, name=f"reduced_{number}")

    reduce = tf.function(lambda *given: ranks_workers.reduce_in_buckets(given, double), autograph=False)
    for tensor, reduced in zip(tensors, reduce(*tensors)):
        np.testing.assert_array_equal(reduced, 2 * tensor)
    graph = reduce.get_concrete_function(*tensors).graph
    reductions = [graph.get_operation_by_name(f"reduced_{number}") for number in range(4)]
    for previous, following in zip(reductions, reductions[1:]):
        (copy,) = (tensor.op for tensor in following.inputs if tensor.op.type == "ConcatV2")
        assert previous in ancestors(copy)


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

    rank = local_rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 2)

    def allgather(self, mine, name):
        self.gathered += 1
        return tf.concat([mine, [[next(self.others_states)]]], axis=0)


def workers_beside(others_states):
    """Rank 0 of two, and the Horovod that it sees."""
    horovod = PretendedHorovod(others_states)
    return horovod_workers.HorovodWorkers(horovod), horovod


BUSY, DONE, FAILED = horovod_workers._BUSY, horovod_workers._DONE, horovod_workers._FAILED


def test_a_failure_is_raised_here_and_named_there():
    workers, horovod = workers_beside([DONE])
    with pytest.raises(UserError, match="the disk is full"), workers.keep_alive():
        raise UserError("the disk is full")
    assert horovod.gathered == 1, "the others must hear of it"
    workers, _ = workers_beside([FAILED])
    with pytest.raises(UserError, match="rank 1 cannot go on; its log says why"), workers.keep_alive():
        pass


@pytest.mark.parametrize("event, message", [(FAILED, "rank 1 cannot go on"), (None, "another rank has ended")])
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
    with pytest.raises(LostRankError, match="0 cannot go on: another") as raised, workers.expecting_all_ranks():
        raise tf.errors.UnknownError(None, None, "Horovod has been shut down. This was caused by")
    assert raised.value.exit_code == 1
    with pytest.raises(tf.errors.ResourceExhaustedError), workers.expecting_all_ranks():
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")


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


if __name__ == "__main__":
    main(*sys.argv[1:])
