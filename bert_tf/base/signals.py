"""How programs end: on stop signals, with which exit code, and without the interpreter's shutdown.

With several ranks the shutdown would wait in Horovod's exit hooks for ranks that are still inside a collective
operation. So `leave` ends the program after the clean-ups registered here.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from bert_tf.base.output import print_error

_clean_ups: set[Callable[[], None]] = set()


def register_clean_up(clean_up: Callable[[], None]) -> None:
    """Registers `clean_up` to be called when the process ends, by `leave` or normally; it may be called twice."""
    if clean_up not in _clean_ups:
        _clean_ups.add(clean_up)
        atexit.register(clean_up)


def leave(exit_code: int) -> NoReturn:
    """Ends the process after the registered clean-ups, without the interpreter's shutdown."""
    for clean_up in _clean_ups:
        with contextlib.suppress(OSError):  # the reason for ending matters more
            clean_up()
    os._exit(exit_code)


# About when this process started: the programs import this module first. --max_hours counts from here.
STARTED_AT = time.monotonic()
# EX_TEMPFAIL of sysexits.h: stopped by a signal or --max_hours; the state is saved and the run can be started again.
STOPPED_EXIT_CODE = 75
# SIGHUP comes when a terminal is closed.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


def without_ignored_hangup(numbers: Iterable[int]) -> list[int]:
    """These signals, but for SIGHUP if this process ignores it, as it does under nohup."""
    return [number for number in numbers if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def leave_on_stop_signals() -> None:
    """From now on stop signals end the program immediately with `STOPPED_EXIT_CODE`.

    For times when there is nothing to save. A training loop handles them itself (`noted_stop_signals`).
    """

    def stop(number: int, _: Any) -> None:
        print_error(f"{signal.Signals(number).name}: stopped; start again to go on")
        leave(STOPPED_EXIT_CODE)

    for number in without_ignored_hangup(STOP_SIGNALS):
        signal.signal(number, stop)


@contextlib.contextmanager
def handling_signals(numbers: Iterable[int], handle: Callable[[int], object]) -> Iterator[None]:
    """A context in which each of these signals only calls `handle` with its number."""
    previous = {
        number: signal.signal(number, lambda number, _: handle(number)) for number in without_ignored_hangup(numbers)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def noted_stop_signals() -> Iterator[list[int]]:
    """A context in which stop signals are only collected, so that the running update can finish and be saved.

    So is the first SIGINT (Ctrl-C); a second one is a KeyboardInterrupt, for users who do not want to wait.
    """
    received: list[int] = []

    def note(number: int) -> None:
        received.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            print_error("SIGINT: the running update is finished and saved; a second one ends at once")

    with handling_signals((*STOP_SIGNALS, signal.SIGINT), note):
        yield received
