"""The processes of a Dask cluster, on any number of machines with a shared file system.

A task is a pickled call, small beside the files that it reads and writes. Scheduler and workers may
have been started anywhere: the first task on each worker finds the program in this checkout's folder.
Before each task a worker makes sure that it runs the same code and sees the same files, and that the
run that wants the task still lives. Where a worker dies, Dask runs its tasks again elsewhere.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import fcntl
import functools
import json
import logging
import os
import pickle
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from data.running.entries import CHECKOUT, code_digest
from data.running.manifest import clear_disk_errors
from data.running.workers import ITEMS_IN_FLIGHT_PER_PROCESS, Item, Result, Workers, WorkersError, in_order

CONNECT_SECS = 30
# Long enough for a cold start from a network drive, and for a batch system to start what it was asked for.
FIND_SCHEDULER_FILE_SECS, FIND_WORKER_SECS = 120, 600
_LOOK_SECS, _MOMENT_SECS = 5.0, 2.0
_SIGN_PREFIX, _SIGN_SUFFIX = ".dask_run_", ".alive"
_GO_ON = "start the same command again, it goes on where it was"
# Python writes functions differently from one minor version to the next; random numbers are numpy's.
_SAME_PACKAGES = ("python", "dask", "distributed", "numpy")

# Bounded memory and the tokenizer's cache ask for one call at a time in a process.
_at_work = threading.Lock()


class Run(NamedTuple):
    """What a worker compares before it works for a run."""

    host: str
    code: str
    sign_of_life: str  # a file that is there as long as the run is


def run_call(run: Run, call: bytes) -> Any:
    """On a worker: the result of a pickled (function, item).

    Raises:
      WorkersError: this worker cannot do the run's work.
    """
    host = socket.gethostname()
    if code_digest() != run.code:
        raise WorkersError(
            f"the Dask worker on {host} runs another version of the program ({CHECKOUT}) than this command on "
            f"{run.host}, or was started before a change: start its workers anew, then {_GO_ON}"
        )
    with _at_work:
        try:
            open(run.sign_of_life, "rb").close()
        except OSError as error:
            folder = os.path.dirname(run.sign_of_life)
            raise WorkersError(
                f"the Dask worker on {host} does not see the files that {run.host} sees below {folder} "
                f"({error.strerror}): BERT_PREP_WORKING_DIR must lie on a file system that all machines "
                f"share, at the same path; then {_GO_ON}"
            ) from error
        function, item = pickle.loads(call)
        return function(item)


def _task(checkout: str) -> Callable[[Run, bytes], Any]:
    # A function within a function travels by value: it is what makes a worker find the modules.
    def bertPrep(run: Any, call: bytes) -> Any:  # noqa: N802 - the name on Dask's pages
        import socket
        import sys

        if checkout not in sys.path:
            sys.path.insert(0, checkout)
        try:
            from data.running import dask_cluster
        except ImportError as error:
            raise ImportError(f"on {socket.gethostname()}: {error}") from None
        return dask_cluster.run_call(dask_cluster.Run(*run), call)

    return bertPrep


@contextlib.contextmanager
def _sign_of_life(folder: Path) -> Iterator[Path]:
    """A locked file in `folder` as long as the run lasts; those of runs that were killed are removed.

    What was handed out by a run that is over must not begin any more: another run may have the
    folder now.
    """
    with contextlib.ExitStack() as stack, clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_SIGN_PREFIX}*{_SIGN_SUFFIX}"):
            with contextlib.suppress(OSError), open(left, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
        path = folder / f"{_SIGN_PREFIX}{uuid.uuid4().hex}{_SIGN_SUFFIX}"
        unlocked = path.with_suffix(".new")
        sign = stack.enter_context(open(unlocked, "wb"))
        fcntl.flock(sign, fcntl.LOCK_EX)
        unlocked.rename(path)
        stack.callback(path.unlink, missing_ok=True)
        alive = stack.pop_all()
    with alive:
        yield path


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise WorkersError(
            f"dask_scheduler needs the package distributed ({error}), here and on all workers: "
            f"{sys.executable} -m pip install -r {CHECKOUT}/requirements-dask.txt"
        ) from None
    # What goes wrong is said here, in a sentence.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"distributed\.client")
    return distributed


def _address_in(file: Path) -> str:
    """The address in what ``dask scheduler --scheduler-file`` writes, which may have just been started."""
    deadline = time.monotonic() + FIND_SCHEDULER_FILE_SECS
    if not file.exists():
        _say_waiting(FIND_SCHEDULER_FILE_SECS, f"{file}, which a scheduler writes")
    while True:
        try:
            return json.loads(file.read_bytes())["address"]
        except (OSError, ValueError, KeyError, TypeError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _connect(distributed: Any, scheduler: str) -> tuple[str, Any]:
    """The scheduler's address and a client; Dask's own limits do not hold where something else answers."""
    found: concurrent.futures.Future = concurrent.futures.Future()

    def connect(address: str) -> None:
        try:
            options = dict(timeout=CONNECT_SECS, name="bertPrep", set_as_default=False)
            found.set_result(distributed.Client(address, **options))
        except Exception as error:
            found.set_exception(error)

    try:
        is_file = scheduler.endswith(".json") or os.path.isfile(scheduler)
        address = _address_in(Path(scheduler)) if is_file else scheduler
        threading.Thread(target=connect, args=(address,), daemon=True).start()
        if not concurrent.futures.wait([found], _MOMENT_SECS).done:
            _say_waiting(CONNECT_SECS, f"an answer from {address}")
            if not concurrent.futures.wait([found], CONNECT_SECS).done:
                raise TimeoutError(f"nothing that can be understood in {CONNECT_SECS:g} s")
        return address, found.result()
    # Whatever answers there need not be a scheduler, or not one of a version like ours.
    except Exception as error:
        raise WorkersError(
            f"no Dask scheduler answers at dask_scheduler={scheduler} ({error or type(error).__name__}): give the "
            "address that dask scheduler prints, such as tcp://HOST:8786 (8787 is its web page), or the file that "
            "dask scheduler --scheduler-file writes; it must run, and all machines must reach it"
        ) from None


def _say_waiting(seconds: float, what: str) -> None:
    print(f"waiting {seconds:g} s at most for {what}", file=sys.stderr, flush=True)


class DaskCluster(Workers):
    """The workers of the scheduler at an address, or named in a scheduler file."""

    def __init__(self, scheduler: str, shared_folder: Path):
        self._scheduler = scheduler
        self._shared_folder = shared_folder

    def are_worth_it(self, num_items: int) -> bool:
        return num_items > 1

    def map_in_order(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        size_of: Callable[[Item], int] = lambda _: 0,
        largest_in_flight: int = 1,
    ) -> Generator[Result, None, None]:
        with _sign_of_life(self._shared_folder) as sign, _Connection(self._scheduler, sign) as connection:
            submit = functools.partial(connection.submit, function)
            most_in_flight = connection.get_most_in_flight
            yield from in_order(items, submit, connection.get_result, most_in_flight, size_of, largest_in_flight)


class _Connection:
    """One run's connection to a scheduler; leaving it takes back what has not begun.

    Raises:
      WorkersError: from all methods, where scheduler or workers are not there or do not fit.
    """

    def __init__(self, scheduler: str, sign: Path):
        self._distributed = _import_distributed()
        self._run = tuple(Run(socket.gethostname(), code_digest(), str(sign)))
        self._task = _task(str(CHECKOUT))
        self._num_threads: dict[str, int] = {}
        self._address, self._client = _connect(self._distributed, scheduler)
        self._executor = self._client.get_executor(pure=False)

    def __enter__(self) -> _Connection:
        try:
            self._look()
        except BaseException:
            self.__exit__()
            raise
        print(f"Dask scheduler {self._address}: {len(self._num_threads):,} workers", flush=True)
        return self

    def __exit__(self, *exception: Any) -> None:
        # The scheduler may be gone, and there is nothing left to lose.
        with contextlib.suppress(Exception):
            self._executor.shutdown(wait=False)
        with contextlib.suppress(Exception):
            self._client.close(timeout=_MOMENT_SECS)

    def submit(self, function: Callable[[Item], Result], item: Item) -> concurrent.futures.Future:
        if self._client.status == "closed":
            raise self._lost()
        return self._executor.submit(self._task, self._run, pickle.dumps((function, item), pickle.HIGHEST_PROTOCOL))

    def get_most_in_flight(self) -> int:
        if time.monotonic() - self._looked > _LOOK_SECS:
            self._look()
        return max(1, len(self._num_threads)) * ITEMS_IN_FLIGHT_PER_PROCESS

    def get_result(self, future: concurrent.futures.Future) -> Any:
        while not concurrent.futures.wait([future], timeout=_LOOK_SECS).done:
            self._look()
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._lost() from None
        except self._distributed.KilledWorker as error:
            raise WorkersError(
                f"{error.allowed_failures + 1} Dask workers were killed one after the other at the same piece of work, "
                f"the last at {error.last_worker.address}, perhaps because memory ran out (each needs up to 1 GiB; "
                f"their log may say more): start fewer on a machine, then {_GO_ON}"
            ) from None
        except ImportError as error:
            raise WorkersError(
                f"a Dask worker cannot import what it needs, {error}: the workers must see this checkout at the same "
                f"path, {CHECKOUT}, and have its packages; start them with {os.path.dirname(sys.executable)}/dask, "
                f"then {_GO_ON}"
            ) from None

    def _look(self) -> None:
        """Waits for a worker where there is none, and compares the versions of those that are new."""
        try:
            self._wait_for_worker()
            num_threads = self._client.nthreads()
            if num_threads.keys() - self._num_threads.keys():
                self._require_same_versions(self._client.get_versions())
        except (OSError, self._distributed.TimeoutError):
            raise self._lost() from None
        self._num_threads = num_threads
        self._looked = time.monotonic()

    def _wait_for_worker(self) -> None:
        with contextlib.suppress(self._distributed.TimeoutError):
            return self._client.wait_for_workers(1, timeout=_MOMENT_SECS)
        _say_waiting(FIND_WORKER_SECS, f"a worker of the Dask scheduler at {self._address}")
        try:
            self._client.wait_for_workers(1, timeout=FIND_WORKER_SECS)
        except self._distributed.TimeoutError:
            raise WorkersError(
                f"the Dask scheduler at {self._address} has had no worker for {FIND_WORKER_SECS} s: none was started, "
                "all have ended, or all are paused near their --memory-limit (0: none). Start some, dask worker "
                f"{self._address} --nworkers=-1 --nthreads=1 --memory-limit=0, then {_GO_ON}"
            ) from None

    def _require_same_versions(self, found: Mapping[str, Any]) -> None:
        here = _versions(found["client"])
        for where, versions in {"scheduler": found["scheduler"], **found["workers"]}.items():
            different = [
                f"{name} {there or 'missing'} there, {here[name]} here"
                for name, there in _versions(versions).items()
                if there != here[name] and (where, name) != ("scheduler", "numpy")
            ]
            if different:
                raise WorkersError(
                    f"the Dask {'scheduler' if where == 'scheduler' else 'worker ' + where} differs from this command: "
                    f"{'; '.join(different)}. Start the scheduler and all workers with the same environment, such as "
                    f"{os.path.dirname(sys.executable)}/dask, then {_GO_ON}"
                )

    def _lost(self) -> WorkersError:
        return WorkersError(
            f"the Dask scheduler at {self._address} has ended or cannot be reached any more: "
            f"start it and its workers again, then {_GO_ON}"
        )


def _versions(found: Mapping[str, Any]) -> dict[str, str | None]:
    versions = {name: found["packages"].get(name) for name in _SAME_PACKAGES}
    return {**versions, "python": ".".join(found["host"]["python"].split(".")[:2])}
