"""Runs tasks on the workers of a Dask cluster, on any number of machines with a shared file system.

A task is a pickled function call, small compared with the files that it reads and writes. Before each
task a worker checks that it has the same code and sees the same files as the run that submitted the task,
and that this run has not ended. If a worker is lost, Dask gives its tasks to other workers.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import logging
import multiprocessing.pool
import os
import pickle
import socket
import sys
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

from bert_tf.base.locks import WITHOUT_FLOCK
from bert_tf.prepare.running.journal import CHECKOUT, code_digest
from bert_tf.prepare.running.stage import clear_disk_errors
from bert_tf.prepare.running.workers import ITEMS_IN_FLIGHT_PER_PROCESS, TaskPool, WorkersError, in_order

try:
    import distributed
except ImportError as error:
    raise WorkersError(
        f"dask_scheduler needs the package distributed ({error}), here and on all workers: "
        f"{sys.executable} -m pip install -r {CHECKOUT}/requirements/dask.txt"
    ) from None

# Enough for a cold start from a network drive, and for workers to wait in the queue of a batch system.
FIND_SCHEDULER_SECS, FIND_WORKER_SECS = 120, 600
_CONNECT_SECS, _CHECK_SECS, _MOMENT_SECS = 30, 5.0, 2.0
_GO_ON = "start the same command again, it continues where it stopped"
_DASK = f"{os.path.dirname(sys.executable)}/dask"

# A worker may have several threads, but the limit on memory and the tokenizer's cache allow one task per process.
_one_task = threading.Lock()


def run_task(host: str, code: str, run_file: str, call: bytes) -> Any:
    """Runs on a worker: the result of a pickled (function, item), for the run on `host` whose code has this digest."""
    worker = f"the Dask worker on {socket.gethostname()}"
    if code_digest() != code:
        raise WorkersError(f"{worker} runs other code than this command on {host}: restart the workers, then {_GO_ON}")
    with _one_task:
        try:
            # Opened, because a network file system may answer "exists" from its cache.
            open(run_file, "rb").close()
        except OSError as error:
            raise WorkersError(
                f"{worker} does not see {run_file}, made on {host} ({error.strerror}): BERT_PREP_WORKING_DIR must be "
                f"on a file system that all machines share, at the same path; then {_GO_ON}"
            ) from None
        function, item = pickle.loads(call)
        return function(item)


def _task(checkout: str) -> Callable[..., Any]:
    # Dask pickles a nested function by value, so a worker does not have to import a module for it.
    def bertPrep(*arguments: Any) -> Any:  # noqa: N802 - the task's name on Dask's web pages
        import sys

        if checkout not in sys.path:
            sys.path.insert(0, checkout)
        from bert_tf.prepare.running import dask_cluster

        return dask_cluster.run_task(*arguments)

    return bertPrep


@contextlib.contextmanager
def _run_file(folder: Path) -> Iterator[Path]:
    """A locked file in `folder` that exists as long as this run; removes the files of killed runs.

    Without its file a run's remaining tasks do not begin, so they cannot disturb a later run.
    """
    with clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".dask_run_*.alive"):
            with contextlib.suppress(OSError), open(left, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
        path = folder / f".dask_run_{uuid.uuid4().hex}.alive"
        # Renamed only once it is locked: another run that starts now must not take it for the file of a killed run.
        lock = open(path.with_suffix(".new"), "wb")  # noqa: SIM115 - open as long as the run
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_FLOCK:  # if nobody can lock it, nobody removes it either
                raise
        os.rename(lock.name, path)
    with lock:
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _connect(scheduler: str) -> Iterator[distributed.Client]:
    """A client of the scheduler at an address or in a scheduler file; closing the client drops its tasks."""
    # Our errors say in a sentence what Dask logs; Tornado logs tasks on a connection that an interrupt closes.
    for name in ("distributed", "distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    is_file = scheduler.endswith(".json") or os.path.isfile(scheduler)
    options = {"scheduler_file" if is_file else "address": scheduler, "timeout": _CONNECT_SECS}
    # In a thread, because Dask waits without limit for a file, and for a server that is not a scheduler.
    pool = multiprocessing.pool.ThreadPool(1)
    connected = pool.apply_async(distributed.Client, kwds={**options, "name": "bertPrep", "set_as_default": False})
    pool.close()
    try:
        connected.wait(_MOMENT_SECS)
        if not connected.ready():
            print(f"waiting up to {FIND_SCHEDULER_SECS} s for the Dask scheduler {scheduler}", file=sys.stderr)
        client = connected.get(FIND_SCHEDULER_SECS)
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
            client.close(timeout=_MOMENT_SECS)


class DaskCluster(TaskPool):
    """The workers of the scheduler at an address, or in a scheduler file."""

    def __init__(self, scheduler: str, shared_folder: Path):
        self._scheduler, self._shared_folder = scheduler, shared_folder

    def map_in_order(
        self, function: Callable, items: Iterable, size_of: Callable = lambda _: 0, largest_in_flight: int = 1
    ) -> Generator[Any, None, None]:
        with _run_file(self._shared_folder) as run_file, _connect(self._scheduler) as client:
            try:
                run = _Run(client, run_file)
                yield from in_order(
                    items,
                    functools.partial(run.submit, function),
                    run.get_result,
                    get_most_in_flight=run.get_most_in_flight,
                    size_of=size_of,
                    largest_in_flight=largest_in_flight,
                )
            except concurrent.futures.CancelledError:
                raise WorkersError(f"the Dask scheduler {self._scheduler} is lost: restart it, then {_GO_ON}") from None


class _Run:
    """The tasks and workers of one run. All methods raise CancelledError if the scheduler is lost."""

    def __init__(self, client: distributed.Client, run_file: Path):
        self._client = client
        self._executor = client.get_executor(pure=False)
        self._task = functools.partial(_task(str(CHECKOUT)), socket.gethostname(), code_digest(), str(run_file))
        self._workers: set[str] = set()
        self._check()
        print(f"Dask scheduler {client.scheduler.address}: {len(self._workers):,} workers", flush=True)

    def submit(self, function: Callable, item: Any) -> concurrent.futures.Future:
        if self._client.status == "closed":
            raise concurrent.futures.CancelledError
        return self._executor.submit(self._task, pickle.dumps((function, item), pickle.HIGHEST_PROTOCOL))

    def get_result(self, future: concurrent.futures.Future) -> Any:
        while not concurrent.futures.wait([future], timeout=_CHECK_SECS).done:
            self._check()
        try:
            return future.result()
        except (distributed.KilledWorker, ImportError) as error:
            raise WorkersError(
                f"the Dask workers cannot do a task, perhaps because they ran out of memory (each needs up to 1 GiB) "
                f"or do not see {CHECKOUT}: {error}; start them with {_DASK}, then {_GO_ON}"
            ) from None

    def get_most_in_flight(self) -> int:
        if time.monotonic() - self._checked > _CHECK_SECS:
            self._check()
        return len(self._workers) * ITEMS_IN_FLIGHT_PER_PROCESS

    def _check(self) -> None:
        """Waits for a worker if there is none, and compares the versions of new workers with ours."""
        try:
            if not self._client.nthreads():
                print(f"waiting up to {FIND_WORKER_SECS} s for a Dask worker", file=sys.stderr)
            self._client.wait_for_workers(1, timeout=FIND_WORKER_SECS)
            if (workers := set(self._client.nthreads())) - self._workers:
                self._require_same_versions()
        except distributed.TimeoutError:
            raise WorkersError(
                f"the Dask scheduler has had no worker for {FIND_WORKER_SECS} s, or only paused ones: start some, "
                f"{_DASK} worker ADDRESS --nworkers=-1 --nthreads=1 --memory-limit=0, then {_GO_ON}"
            ) from None
        except OSError:
            raise concurrent.futures.CancelledError from None
        self._workers, self._checked = workers, time.monotonic()

    def _require_same_versions(self) -> None:
        # Pickled functions depend on Python's minor version, random numbers on numpy's.
        def versions(info: Mapping[str, Any]) -> str:
            packages = {**info["packages"], "python": ".".join(info["packages"]["python"].split(".")[:2])}
            return ", ".join(f"{name} {packages.get(name)}" for name in ("python", "dask", "distributed", "numpy"))

        answers: Any = self._client.get_versions()
        ours = versions(answers["client"])
        for address, info in {"scheduler": answers["scheduler"], **answers["workers"]}.items():
            if versions(info) != ours:
                raise WorkersError(
                    f"the Dask scheduler or worker {address} has {versions(info)}, this command {ours}: "
                    f"start scheduler and workers with {_DASK}, then {_GO_ON}"
                )
