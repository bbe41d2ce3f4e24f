"""A program's standard files. What cannot be printed is left out: a full disk or a closed terminal ends no work."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO


def open_standard_files() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that is closed, else other files would get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


@contextlib.contextmanager
def going_on(stream: TextIO) -> Iterator[None]:
    """What is printed to `stream` in this context, and cannot be written, is left out: the work matters more."""
    try:
        yield
        stream.flush()
    except OSError:
        _empty(stream)


def _empty(stream: TextIO) -> None:
    """Drops what a stream still holds, which the end of the program would try to write again, and then fail."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
        number = stream.fileno()
        kept = os.dup(number)
        try:
            os.dup2(null.fileno(), number)
            stream.flush()
        finally:
            os.dup2(kept, number)
            os.close(kept)
