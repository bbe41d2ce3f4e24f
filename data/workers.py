"""A pool of processes that answers in order, keeps little in flight and never fails silently."""
from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Deque, Generator, Iterable, TypeVar

from bert_tf.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerKilledError(UserError):
    """A worker process ended from outside; the same command goes on where it was."""


# Enough for a worker never to wait for the next item while the order of results is kept.
_ITEMS_IN_FLIGHT_PER_PROCESS = 4


def available_cores() -> int:
    """The cores this process may use, which in a container or a Slurm job is not all of them."""
    return len(os.sched_getaffinity(0))


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


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_processes: int
) -> Generator[Result, None, None]:
    """Yields ``function(item)`` for each item, in the items' order, from `num_processes` processes.

    `items` is read only a few ahead of the results, so a stream of any length is worked on in
    bounded memory. With one process the calls happen in this one. An exception in a worker is
    raised here; work not begun is dropped, work begun is waited for.

    Raises:
      WorkerKilledError: a worker process was killed, as the kernel does when memory runs out.
    """
    if num_processes <= 1:
        yield from map(function, items)
        return
    # Spawned, not forked: forked workers would hold the stage's lock after a kill of the parent.
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    waiting: Deque[concurrent.futures.Future] = collections.deque()
    try:
        for item in items:
            waiting.append(executor.submit(function, item))
            if len(waiting) >= num_processes * _ITEMS_IN_FLIGHT_PER_PROCESS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise WorkerKilledError(
            f"one of {num_processes} worker processes was killed, perhaps because memory ran out: "
            "start the same command again with a smaller --n_processes, it goes on where it was"
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
