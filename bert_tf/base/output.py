"""A program's standard files. What cannot be printed is dropped: a full disk or a closed terminal ends no work."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import TextIO

# Control characters but tab and line feed: a file's name or content that is quoted could make a terminal obey them.
_CONTROL = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f]")


def open_standard_files() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that is closed; else another file would get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


@contextlib.contextmanager
def dropping_unwritable(stream: TextIO) -> Iterator[None]:
    """A context in which output to `stream` that cannot be written is dropped: the work matters more."""
    try:
        yield
        stream.flush()
    except OSError:
        _drop_buffered(stream)


def printable(text: str) -> str:
    """The text with its control characters written as Python writes them; tabs and line feeds stay."""
    return _CONTROL.sub(lambda character: repr(character[0])[1:-1], text)


def print_error(text: str) -> None:
    """Prints a line to stderr, or drops it where that cannot be written."""
    with dropping_unwritable(sys.stderr):
        print(text, file=sys.stderr)


def _drop_buffered(stream: TextIO) -> None:
    """Drops what a stream has buffered; else the end of the program would try to write it again, and fail."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as null:
        number = stream.fileno()
        saved = os.dup(number)
        try:
            os.dup2(null.fileno(), number)
            stream.flush()
        finally:
            os.dup2(saved, number)
            os.close(saved)
