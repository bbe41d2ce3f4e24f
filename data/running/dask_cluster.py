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
FIND_SCHEDULER_FILE_SECS = 120
FIND_WORKER_SECS = 600
_LOOK_SECS, _MOMENT_SECS = 5.0, 2.0
_SIGN_PREFIX, _SIGN_SUFFIX = ".dask_run_", ".alive"
_GO_ON = "start the same command again, it goes on where it was"
# Python writes functions differently from one minor version to the next; random numbers are numpy's.
_SAME_PACKAGES = ("dask", "distributed", "numpy")

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
            f"the Dask worker on {host} runs another version of the program ({CHECKOUT}) than this command "
            f"on {run.host}, or was started before a change: start its workers anew, then {_GO_ON}"
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
            return json.loads(file.read_text(encoding="utf-8"))["address"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                raise WorkersError(
                    f"dask_scheduler={file}: {_in_words(error)}; it is to be written by dask scheduler "
                    "--scheduler-file FILE into a folder that all machines share"
                ) from None
        time.sleep(0.2)


def _within(seconds: float, what: str, function: Callable[[], Result]) -> Result:
    """The function's result; Dask's own limits do not hold where something else than Dask answers.

    Raises:
      TimeoutError: it took longer; it is left to itself.
    """
    future: concurrent.futures.Future = concurrent.futures.Future()

    def call() -> None:
        try:
            result = function()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=call, daemon=True).start()
    if not concurrent.futures.wait([future], _MOMENT_SECS).done:
        _say_waiting(seconds, what)
        if not concurrent.futures.wait([future], seconds).done:
            raise TimeoutError(f"nothing that can be understood in {seconds:g} s")
    return future.result()


def _say_waiting(seconds: float, what: str) -> None:
    print(f"waiting {seconds:g} s at most for {what}", file=sys.stderr, flush=True)


def _in_words(error: BaseException) -> str:
    return str(error) or type(error).__name__


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
            yield from in_order(
                items,
                functools.partial(connection.submit, function),
                connection.get_result,
                connection.get_most_in_flight,
                size_of,
                largest_in_flight,
            )


class _Connection:
    """One run's connection to a scheduler; leaving it takes back what has not begun.

    Raises:
      WorkersError: from all methods, where scheduler or workers are not there or do not fit.
    """

    def __init__(self, scheduler: str, sign: Path):
        self._distributed = _import_distributed()
        is_file = scheduler.endswith(".json") or os.path.isfile(scheduler)
        self._address = _address_in(Path(scheduler)) if is_file else scheduler
        self._run = tuple(Run(socket.gethostname(), code_digest(), str(sign)))
        self._task = _task(str(CHECKOUT))
        self._num_threads: dict[str, int] = {}
        try:
            self._client = _within(
                CONNECT_SECS,
                f"an answer from {self._address}",
                functools.partial(
                    self._distributed.Client, self._address, timeout=CONNECT_SECS, name="bertPrep", set_as_default=False
                ),
            )
        # Whatever answers there need not be a scheduler, or not one of a version like ours.
        except Exception as error:
            raise WorkersError(
                f"no Dask scheduler answers at dask_scheduler={scheduler} ({_in_words(error)}): give the "
                "address that dask scheduler prints, such as tcp://HOST:8786 (8787 is its web page), or "
                "its --scheduler-file; it must run, and be reachable from this machine"
            ) from None
        self._executor = self._client.get_executor(pure=False)

    def __enter__(self) -> _Connection:
        try:
            self._look()
        except BaseException:
            self._close()
            raise
        hosts = {address.rsplit(":", 1)[0] for address in self._num_threads}
        print(
            f"Dask scheduler {self._address}: workers {len(self._num_threads):,}, machines {len(hosts):,}", flush=True
        )
        if max(self._num_threads.values(), default=1) > 1:
            print(
                "note: a Dask worker works on one piece at a time, however many threads it has; for all "
                "cores start workers with --nworkers=-1 --nthreads=1",
                file=sys.stderr,
                flush=True,
            )
        return self

    def __exit__(self, *exception: Any) -> None:
        self._close()

    def submit(self, function: Callable[[Item], Result], item: Item) -> concurrent.futures.Future:
        if self._client.status == "closed":
            raise self._lost()
        call = pickle.dumps((function, item), pickle.HIGHEST_PROTOCOL)
        return self._executor.submit(self._task, self._run, call)

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
                f"{error.allowed_failures + 1} Dask workers were killed one after the other at the same piece of "
                f"work, the last at {error.last_worker.address}, perhaps because memory ran out (each "
                f"needs up to 1 GiB; their log may say more): start fewer on a machine, then {_GO_ON}"
            ) from None
        except ImportError as error:
            raise WorkersError(
                f"a Dask worker cannot import what it needs, {error}: the workers must see this checkout "
                f"at the same path, {CHECKOUT}, and have its packages; start them with "
                f"{os.path.dirname(sys.executable)}/dask, then {_GO_ON}"
            ) from None

    def _look(self) -> None:
        """Waits for a worker where there is none, and compares the versions of those that are new."""
        self._wait_for_worker()
        with self._scheduler_errors():
            num_threads = self._client.nthreads()
        if num_threads.keys() - self._num_threads.keys():
            self._require_same_versions()
        self._num_threads = num_threads
        self._looked = time.monotonic()

    def _wait_for_worker(self) -> None:
        with self._scheduler_errors():
            try:
                self._client.wait_for_workers(1, timeout=_MOMENT_SECS)
                return
            except self._distributed.TimeoutError:
                _say_waiting(FIND_WORKER_SECS, f"a worker of the Dask scheduler at {self._address}")
            try:
                self._client.wait_for_workers(1, timeout=FIND_WORKER_SECS)
            except self._distributed.TimeoutError:
                raise WorkersError(
                    f"the Dask scheduler at {self._address} has had no worker for {FIND_WORKER_SECS} s: none was "
                    "started, all have ended, or all are paused because they are near their "
                    "--memory-limit (0: none). Start some, dask worker "
                    f"{self._address} --nworkers=-1 --nthreads=1 --memory-limit=0, then {_GO_ON}"
                ) from None

    def _require_same_versions(self) -> None:
        with self._scheduler_errors():
            found = self._client.get_versions()
        here = _versions(found["client"])
        for where, versions in {"scheduler": found["scheduler"], **found["workers"]}.items():
            there = _versions(versions)
            different = [
                f"{name} {there[name] or 'missing'} there, {here[name]} here"
                for name in here
                if there[name] != here[name] and (where, name) != ("scheduler", "numpy")
            ]
            if different:
                raise WorkersError(
                    f"the Dask {'scheduler' if where == 'scheduler' else 'worker ' + where} differs from this "
                    f"command: {'; '.join(different)}. Start the scheduler and all workers with the same "
                    f"environment, such as {os.path.dirname(sys.executable)}/dask, then {_GO_ON}"
                )

    @contextlib.contextmanager
    def _scheduler_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, self._distributed.TimeoutError):
            raise self._lost() from None

    def _lost(self) -> WorkersError:
        return WorkersError(
            f"the Dask scheduler at {self._address} has ended or cannot be reached any more: "
            f"start it and its workers again, then {_GO_ON}"
        )

    def _close(self) -> None:
        # The scheduler may be gone, and there is nothing left to lose.
        for close in (
            functools.partial(self._executor.shutdown, wait=False),
            functools.partial(self._client.close, timeout=_MOMENT_SECS),
        ):
            with contextlib.suppress(Exception):
                close()


def _versions(found: Mapping[str, Any]) -> dict[str, str]:
    python = ".".join(found["host"]["python"].split(".")[:2])
    return {"python": python, **{name: found["packages"].get(name) for name in _SAME_PACKAGES}}
