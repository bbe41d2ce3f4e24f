"""Runs tasks on the workers of a Dask cluster, on any number of machines with a shared file system.

A task is a pickled function call, small compared with the files that it reads and writes. If a worker is lost, Dask
gives its tasks to other workers; when a run ends, however it ends, the scheduler drops its tasks that have not begun.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.files import CHECKOUT
from bert_tf.prepare.running.stage import code_digest
from bert_tf.prepare.running.workers import TaskPool, WorkersError

try:
    import distributed
except ImportError as error:
    raise WorkersError(
        f"dask_scheduler needs the package distributed ({error}), here and on all workers: "
        f"{sys.executable} -m pip install -r {CHECKOUT}/requirements/dask.txt"
    ) from None

# Enough for a cold start from a network drive, and for workers to wait in the queue of a batch system.
FIND_SCHEDULER_SECS, FIND_WORKER_SECS = 120, 600
_CHECK_SECS = 5.0
_GO_ON = "start the same command again, it continues where it stopped"

# A worker may have several threads, but the limit on memory and the tokenizer's cache allow one task per process.
_one_task = threading.Lock()


def run_task(host: str, code: str, working_dir: str, call: bytes) -> Any:
    """Runs on a worker: the result of `call`, a pickled (function, item).

    Raises: WorkersError where the worker does not see `working_dir`, or its code's digest is not `code`, the digest of
      the run on `host`.
    """
    worker = f"the Dask worker on {socket.gethostname()}"
    if code_digest() != code:
        raise WorkersError(f"{worker} runs other code than this command on {host}: restart the workers, then {_GO_ON}")
    if not os.path.isdir(working_dir):
        raise WorkersError(
            f"{worker} does not see {working_dir}: BERT_PREP_WORKING_DIR must be on a file system that all machines "
            f"share, at the same path; then {_GO_ON}"
        )
    with _one_task:
        function, item = pickle.loads(call)
        return function(item)


def _task(checkout: str) -> Callable[..., Any]:
    # Dask pickles a nested function by value, so a worker can unpickle it before it can import our modules.
    def bertPrep(*arguments: Any) -> Any:  # noqa: N802 - the task's name on Dask's web pages
        import sys

        if checkout not in sys.path:
            sys.path.insert(0, checkout)
        from bert_tf.prepare.running import dask_cluster

        return dask_cluster.run_task(*arguments)

    return bertPrep


@contextlib.contextmanager
def _connect(scheduler: str) -> Iterator[distributed.Client]:
    """A client of a scheduler, given by its address or its scheduler file; closing the client drops its tasks."""
    # Our errors say in a sentence what Dask logs; Tornado logs the tasks of a connection that an interrupt closes.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    is_file = scheduler.endswith(".json") or os.path.isfile(scheduler)
    deadline = time.monotonic() + FIND_SCHEDULER_SECS
    try:
        while is_file and not os.path.exists(scheduler):  # Dask would wait for the file without limit
            if time.monotonic() > deadline:
                raise FileNotFoundError(f"no such file for {FIND_SCHEDULER_SECS} s")
            time.sleep(0.1)
        options = {"scheduler_file" if is_file else "address": scheduler, "timeout": FIND_SCHEDULER_SECS}
        client = distributed.Client(**options, name="bertPrep", set_as_default=False)
    except Exception as error:
        raise WorkersError(
            f"no Dask scheduler answers at dask_scheduler={scheduler} ({error!r}): start one, "
            "and give the address that it prints, such as tcp://HOST:8786, or the file of its --scheduler-file"
        ) from None
    try:
        yield client
    finally:
        # Fails if the scheduler has ended; then there is nothing to drop.
        with contextlib.suppress(Exception):
            client.close(timeout=2)


class DaskCluster(TaskPool):
    """The workers of a scheduler, given by its address or its scheduler file; they see the working directory, too.

    Once tasks run, all methods raise CancelledError if the scheduler is lost; `_start` turns it into a WorkersError.
    """

    def __init__(self, scheduler: str, working_dir: Path):
        self._scheduler = scheduler
        self._task = functools.partial(_task(str(CHECKOUT)), socket.gethostname(), code_digest(), str(working_dir))

    @contextlib.contextmanager
    def _start(self) -> Iterator[None]:
        with _connect(self._scheduler) as self._client:
            self._executor = self._client.get_executor(pure=False)
            try:
                self._wait_for_workers()
                print(f"Dask scheduler {self._client.scheduler.address}: {self._num_workers:,} workers", flush=True)
                yield
            except concurrent.futures.CancelledError:
                raise WorkersError(f"the Dask scheduler {self._scheduler} is lost: restart it, then {_GO_ON}") from None

    def _submit(self, function: Callable, item: Any) -> concurrent.futures.Future:
        if self._client.status == "closed":
            raise concurrent.futures.CancelledError
        return super()._submit(self._task, pickle.dumps((function, item), pickle.HIGHEST_PROTOCOL))

    def _result(self, future: concurrent.futures.Future) -> Any:
        while not concurrent.futures.wait([future], timeout=_CHECK_SECS).done:
            self._wait_for_workers()
        try:
            return future.result()
        except (distributed.KilledWorker, ImportError) as error:
            raise WorkersError(
                f"the Dask workers cannot do a task, perhaps because they ran out of memory (each needs up to 1 GiB) "
                f"or do not see {CHECKOUT}: {error}; start them with {os.path.dirname(sys.executable)}/dask, then "
                f"{_GO_ON}"
            ) from None

    def _most_in_flight(self) -> int:
        if time.monotonic() - self._checked > _CHECK_SECS:
            self._wait_for_workers()
        return super()._most_in_flight()

    def _wait_for_workers(self) -> None:
        try:
            if not self._client.nthreads():
                print(f"waiting up to {FIND_WORKER_SECS} s for a Dask worker", file=sys.stderr)
            self._client.wait_for_workers(1, timeout=FIND_WORKER_SECS)
            self._num_workers, self._checked = len(self._client.nthreads()), time.monotonic()
        except distributed.TimeoutError:
            raise WorkersError(
                f"the Dask scheduler has had no worker for {FIND_WORKER_SECS} s, or only paused ones: start some, dask "
                f"worker ADDRESS --nworkers=-1 --nthreads=1 --memory-limit=0, then {_GO_ON}"
            ) from None
        except OSError:
            raise concurrent.futures.CancelledError from None
