"""Ends the program without the interpreter's shutdown, after the clean-up that `atexit` would have done.

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
    """Has `clean_up` called when the process ends, by `leave` or by itself; perhaps twice."""
    if clean_up not in _clean_ups:
        _clean_ups.add(clean_up)
        atexit.register(clean_up)


def leave(exit_code: int) -> NoReturn:
    for clean_up in _clean_ups:
        with contextlib.suppress(OSError):  # why the program ends is what counts
            clean_up()
    os._exit(exit_code)
