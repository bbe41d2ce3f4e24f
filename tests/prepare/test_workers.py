"""The pool: order, little in flight, failures that are seen."""

import contextlib
import errno
import os
from unittest import mock

import pytest

from bert_tf.prepare.running.workers import ProcessPool
from tests.dask_tasks import die, fail_at_three
from tests.refusals import refused


def own_process(number: int) -> tuple[int, int]:
    return number, os.getpid()


@pytest.mark.parametrize("num_processes", [1, 3])
def test_results_come_in_order_from_this_process_or_from_others(num_processes):
    results = list(ProcessPool(num_processes).map_in_order(own_process, range(50)))
    assert [number for number, _ in results] == list(range(50))
    assert {process == os.getpid() for _, process in results} == {num_processes == 1}


@pytest.mark.parametrize("num_processes", [1, 2])
def test_failing_worker_is_raised_here(num_processes):
    refused("number=3", list, ProcessPool(num_processes).map_in_order(fail_at_three, range(20)))


def test_full_shared_memory_does_not_pass_for_a_full_disk(monkeypatch):
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr("multiprocessing.synchronize._multiprocessing.SemLock", full)
    refused(
        r"cannot be started \(No space left on device\): they need some room in /dev/shm",
        list,
        ProcessPool(2).map_in_order(abs, [1]),
    )


def test_killed_worker_says_so():
    refused("smaller --n_processes", list, ProcessPool(2).map_in_order(die, range(20)))


@pytest.mark.parametrize("size,most", [(3, 2), (8, 1), (0, 8)])
def test_little_is_read_ahead_and_of_large_items_less(size, most):
    read = []
    results = ProcessPool(2).map_in_order(abs, (read.append(n) or n for n in range(20)), lambda _: size, 7)
    with contextlib.closing(results):
        for number, result in enumerate(results):
            assert result == number
            assert len(read) == min(20, number + most + 1)
