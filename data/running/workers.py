"""Where work is handed out: results in order, little in flight, no failure that is not seen.

A stage knows `Workers` only. Here are the processes of this machine; `dask_cluster` has those of others.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Generator, Iterable
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, TypeVar

from bert_tf.base.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkersError(UserError):
    """Not the input is at fault but who worked on it; the same command goes on where it was."""


# Enough for a worker never to wait for the next item while the order of results is kept.
ITEMS_IN_FLIGHT_PER_PROCESS = 4


class Workers(abc.ABC):
    """Processes that work on many items of a kind."""

    @abc.abstractmethod
    def map_in_order(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        size_of: Callable[[Item], int] = lambda _: 0,
        largest_in_flight: int = 1,
    ) -> Generator[Result, None, None]:
        """Yields ``function(item)`` for each item, in the items' order.

        `items` is read only a few ahead of the results, so a stream of any length is worked on in
        bounded memory. `function` may be called twice for an item, even at the same time. An
        exception in a worker is raised here; work not begun is dropped. Items whose sizes add up to
        `largest_in_flight`, or one that is larger, are worked on or waiting at a time.

        Raises:
          WorkersError: workers were killed, as the kernel does when memory runs out, or cannot work.
        """

    @abc.abstractmethod
    def are_worth_it(self, num_items: int) -> bool:
        """Whether so many items are done sooner by them than here, one after the other."""


def in_order(
    items: Iterable[Item],
    submit: Callable[[Item], concurrent.futures.Future],
    get_result: Callable[[concurrent.futures.Future], Result],
    get_most_in_flight: Callable[[], int],
    size_of: Callable[[Item], int],
    largest_in_flight: int,
) -> Generator[Result, None, None]:
    """The results of the items' futures, of which never more than the most wait, in number and in size."""
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


class ProcessPool(Workers):
    """Processes of this machine; with one, the calls happen in this process."""

    def __init__(self, num_processes: int):
        self._num_processes = num_processes

    def are_worth_it(self, num_items: int) -> bool:
        return num_items >= self._num_processes > 1

    def map_in_order(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        size_of: Callable[[Item], int] = lambda _: 0,
        largest_in_flight: int = 1,
    ) -> Generator[Result, None, None]:
        if self._num_processes <= 1:
            yield from map(function, items)
            return
        # Spawned, not forked: forked workers would hold the stage's lock after a kill of the parent.
        executor = concurrent.futures.ProcessPoolExecutor(
            self._num_processes, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
        )
        most_in_flight = self._num_processes * ITEMS_IN_FLIGHT_PER_PROCESS
        try:
            yield from in_order(
                items,
                lambda item: executor.submit(function, item),
                lambda future: future.result(),
                lambda: most_in_flight,
                size_of,
                largest_in_flight,
            )
        except BrokenProcessPool as error:
            raise WorkersError(
                f"one of {self._num_processes} worker processes was killed, perhaps because memory ran out: "
                "start the same command again with a smaller --n_processes, it goes on where it was"
            ) from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # The parent decides what Ctrl-C means; a dozen tracebacks from the workers help nobody.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with_parent, args=(parent.sentinel,), daemon=True).start()


def _end_with_parent(sentinel: Any) -> None:
    # A parent killed with -9 cannot end its workers, and they would wait for work for ever.
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
