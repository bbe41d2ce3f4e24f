"""Worker processes call a function on many items: results in order, few in flight, every failure is an error.

Stages use the interface `TaskPool`. `ProcessPool` runs on this machine, `dask_cluster.DaskCluster` on any number.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import functools
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Generator, Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, TypeVar

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkersError(UserError):
    """The workers failed, not the input; the same command continues where it stopped."""


# Enough that no worker is idle if an earlier item, whose result must be yielded first, takes long.
ITEMS_IN_FLIGHT_PER_PROCESS = 4


class TaskPool(abc.ABC):
    """Processes that call a function on many items."""

    @abc.abstractmethod
    def map_in_order(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        size_of: Callable[[Item], int] = lambda _: 0,
        largest_in_flight: int = 1,
    ) -> Generator[Result, None, None]:
        """Yields ``function(item)`` for each item, in the items' order.

        `items` is read only a few items ahead of the results, so memory is bounded for a stream of any
        length. `function` may be called twice for an item, even at the same time. An exception in a
        worker is raised here, and calls that have not begun are dropped. The sizes of the items in
        flight add up to `largest_in_flight` at most, except that one larger item may be in flight alone.

        Raises:
          WorkersError: workers were killed (by the kernel, if memory ran out) or cannot work.
        """


def in_order(
    items: Iterable[Item],
    submit: Callable[[Item], concurrent.futures.Future],
    get_result: Callable[[concurrent.futures.Future], Result],
    *,
    get_most_in_flight: Callable[[], int],
    size_of: Callable[[Item], int],
    largest_in_flight: int,
) -> Generator[Result, None, None]:
    """Implements `TaskPool.map_in_order` with futures; at most `get_most_in_flight()` of them at a time."""
    waiting: collections.deque[tuple[concurrent.futures.Future, int]] = collections.deque()
    in_flight = 0
    for item in items:
        size = size_of(item)
        while waiting and (in_flight + size > largest_in_flight or len(waiting) >= get_most_in_flight()):
            future, done = waiting.popleft()
            yield get_result(future)
            in_flight -= done
        waiting.append((submit(item), size))
        in_flight += size
    while waiting:
        yield get_result(waiting.popleft()[0])


def make_files(
    stage: Stage,
    workers: TaskPool,
    make: Callable[[Item], FileEntry],
    *,
    tasks: Iterable[Item],
    num_files: int,
    description: str,
) -> None:
    """Has workers make the missing files of `num_files`, each by ``make(task)``, and notes them as finished."""
    initial = len(stage.finished)
    with Progress(total=num_files, initial=initial, unit="shards", description=description) as bar:
        for entry in workers.map_in_order(make, tasks):
            stage.add(entry)
            bar.update(1)


class ProcessPool(TaskPool):
    """Processes on this machine; if `num_processes` is 1, this process makes the calls."""

    def __init__(self, num_processes: int):
        self._num_processes = num_processes

    def map_in_order(
        self, function: Callable, items: Iterable, size_of: Callable = lambda _: 0, largest_in_flight: int = 1
    ) -> Generator[Any, None, None]:
        if self._num_processes <= 1:
            yield from map(function, items)
            return
        # Spawned, not forked: forked workers inherit the stage's lock and would hold it after the parent is killed.
        executor = concurrent.futures.ProcessPoolExecutor(
            self._num_processes, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )
        most_in_flight = self._num_processes * ITEMS_IN_FLIGHT_PER_PROCESS
        try:
            yield from in_order(
                items,
                functools.partial(executor.submit, function),
                concurrent.futures.Future.result,
                get_most_in_flight=lambda: most_in_flight,
                size_of=size_of,
                largest_in_flight=largest_in_flight,
            )
        except BrokenProcessPool as error:
            raise WorkersError(
                f"one of {self._num_processes} worker processes was killed, perhaps because memory ran out: "
                "start the same command again with a smaller --n_processes, it continues where it stopped"
            ) from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # The parent handles Ctrl-C; otherwise each worker would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _end_with_parent(sentinel: Any) -> None:
    # A parent killed by SIGKILL cannot end its workers, which would then wait for calls forever.
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
