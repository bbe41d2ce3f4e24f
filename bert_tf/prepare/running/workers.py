"""Worker processes call a function on many items: results in order, few in flight, every failure is an error.

Stages use the interface `TaskPool`. `ProcessPool` runs on this machine, `dask_cluster.DaskCluster` on any number.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, TypeVar

from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.prepare.running.stage import Stage
from bert_tf.records.manifest import FileEntry
from bert_tf.records.token_file import SPLITS

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkersError(UserError):
    """The workers failed, not the input; the same command continues where it stopped."""


class TaskPool:
    """Processes that call a function on many items.

    A subclass starts them (`_start`, which sets the executor and the number), and may wait for a result in its own way.
    """

    _executor: concurrent.futures.Executor
    _num_workers: int
    _is_this_process = False  # whether this process makes the calls itself

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
        if self._is_this_process:
            yield from map(function, items)
            return
        waiting: collections.deque[tuple[concurrent.futures.Future, int]] = collections.deque()
        in_flight = 0
        with self._start():
            for item in items:
                size = size_of(item)
                while waiting and (in_flight + size > largest_in_flight or len(waiting) >= self._most_in_flight()):
                    future, finished_size = waiting.popleft()
                    yield self._result(future)
                    in_flight -= finished_size
                waiting.append((self._submit(function, item), size))
                in_flight += size
            while waiting:
                yield self._result(waiting.popleft()[0])

    def _start(self) -> contextlib.AbstractContextManager[None]:
        raise NotImplementedError

    def _submit(self, function: Callable, item: Any) -> concurrent.futures.Future:
        return self._executor.submit(function, item)

    def _result(self, future: concurrent.futures.Future) -> Any:
        return future.result()

    def _most_in_flight(self) -> int:
        # Enough that no worker is idle if an earlier item, whose result must be yielded first, takes long.
        return 4 * self._num_workers


def make_files(
    stage: Stage, workers: TaskPool, make: Callable[[Item], FileEntry], tasks: Mapping[str, Item], description: str
) -> dict[str, list[FileEntry]]:
    """Has workers make the files that are not finished, each by ``make(task)``, and notes them as finished.

    Args:
      tasks: name of a file below the stage's folder, such as "training/a.txt" -> what it is made from.
    Returns: the entries of all files, also those finished before, by split.
    """
    unfinished = [task for name, task in tasks.items() if name not in stage.finished]
    for split in SPLITS:
        (stage.folder / split).mkdir(exist_ok=True)
    initial = len(tasks) - len(unfinished)
    with Progress(total=len(tasks), initial=initial, unit="shards", description=description) as bar:
        for entry in workers.map_in_order(make, unfinished):
            stage.add(entry)
            bar.update(1)
    return {split: [stage.finished[name] for name in tasks if name.startswith(f"{split}/")] for split in SPLITS}


class ProcessPool(TaskPool):
    """Processes on this machine; if `num_processes` is 1, this process makes the calls."""

    def __init__(self, num_processes: int):
        self._num_workers, self._is_this_process = num_processes, num_processes == 1

    @contextlib.contextmanager
    def _start(self) -> Iterator[None]:
        # Spawned, not forked: forked workers inherit the stage's lock and would hold it after the parent is killed.
        try:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._num_workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
            )
        except OSError as error:  # else it would pass for an error of the disk that the stage writes to
            raise WorkersError(
                f"worker processes cannot be started ({error.strerror}): they need some room in /dev/shm, and the "
                "right to write there; --n_processes 1 goes without"
            ) from error
        try:
            yield
        except BrokenProcessPool as error:
            raise WorkersError(
                f"one of {self._num_workers} worker processes was killed, perhaps because memory ran out: "
                "start the same command again with a smaller --n_processes, it continues where it stopped"
            ) from error
        finally:
            self._executor.shutdown(wait=True, cancel_futures=True)


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
