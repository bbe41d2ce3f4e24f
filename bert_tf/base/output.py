"""A program's standard files. What cannot be printed is left out: a full disk or a closed terminal ends no work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TextIO


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
