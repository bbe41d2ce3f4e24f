"""The pool: order, little in flight, failures that are seen."""

import contextlib
import itertools
import os
import signal

import pytest

from bert_tf.prepare.running.workers import ProcessPool, WorkersError
from tests.dask_tasks import fail_at_three, square
from tests.refusals import refused


def die_at_three(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("num_processes", [1, 3])
def test_results_come_in_order(num_processes):
    assert list(ProcessPool(num_processes).map_in_order(square, range(50))) == [n * n for n in range(50)]


def own_process(_: int) -> int:
    return os.getpid()


def test_one_process_is_this_one_and_more_are_others():
    assert set(ProcessPool(1).map_in_order(own_process, range(3))) == {os.getpid()}
    assert os.getpid() not in set(ProcessPool(2).map_in_order(own_process, range(3)))


def test_an_endless_stream_is_read_only_a_little_ahead():
    results = ProcessPool(2).map_in_order(square, itertools.count())
    assert list(itertools.islice(results, 20)) == [n * n for n in range(20)]
    results.close()


@pytest.mark.parametrize("num_processes", [1, 2])
def test_failing_worker_is_raised_here(num_processes):
    refused("number=3", list, ProcessPool(num_processes).map_in_order(fail_at_three, range(20)))


def test_killed_worker_says_so():
    with pytest.raises(WorkersError, match="smaller --n_processes"):
        list(ProcessPool(2).map_in_order(die_at_three, range(20)))


@pytest.mark.parametrize("size,most", [(3, 2), (8, 1), (0, 8)])
def test_of_large_items_fewer_are_read_ahead(size, most):
    read = []
    results = ProcessPool(2).map_in_order(square, (read.append(n) or n for n in range(20)), lambda _: size, 7)
    with contextlib.closing(results):
        for number, result in enumerate(results):
            assert result == number * number
            assert len(read) == min(20, number + most + 1)
