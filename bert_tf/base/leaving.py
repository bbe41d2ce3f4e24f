"""Ends the program without the interpreter's shutdown, after the clean-ups registered here.

With several ranks the shutdown would wait in Horovod's exit hooks for ranks that are still inside a collective
operation.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

_clean_ups: set[Callable[[], None]] = set()


def before_leaving(clean_up: Callable[[], None]) -> None:
    """Registers `clean_up` to be called when the process ends, by `leave` or normally; it may be called twice."""
    if clean_up not in _clean_ups:
        _clean_ups.add(clean_up)
        atexit.register(clean_up)


def leave(exit_code: int) -> NoReturn:
    for clean_up in _clean_ups:
        with contextlib.suppress(OSError):  # the reason for ending matters more
            clean_up()
    os._exit(exit_code)
