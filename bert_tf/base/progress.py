"""Progress of long work: a tqdm bar at a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator

from tqdm import tqdm

PLAIN_LINE_INTERVAL_SECS = 10.0


def has_terminal() -> bool:
    """Whether stderr is a terminal that can hold a bar: tqdm hides it where no size is set."""
    try:
        return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).lines > 1
    except OSError:
        return False


class PlainLines:
    """Stands in for a tqdm bar where stderr is a file or a pipe: one line every ten seconds."""

    def __init__(self, iterable: Iterable | None, total: int | None, unit: str, description: str):
        self._iterable = iterable
        self._total = total
        self._unit = unit
        self._description = description
        self._postfix = ""
        self._done = 0
        self._started = self._printed = time.monotonic()
        self._closed = False

    def __iter__(self) -> Iterator:
        for item in self._iterable or ():
            yield item
            self.update(1)
        self.close()

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._printed >= PLAIN_LINE_INTERVAL_SECS:
            self._printed = now
            self._print(now)

    def set_postfix_str(self, text: str) -> None:
        self._postfix = text

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._print(time.monotonic())

    def _print(self, now: float) -> None:
        seconds = max(now - self._started, 1e-9)
        rate = self._done / seconds
        line = f"{self._description}: {self._done:,}"
        if self._total:
            line += f" of {self._total:,}"
        line += f" {self._unit}, {rate:,.1f} {self._unit}/s"
        if self._total and rate > 0:
            line += f", {max(self._total - self._done, 0) / rate:,.0f} s left"
        if self._postfix:
            line += f", {self._postfix}"
        print(line, file=sys.stderr, flush=True)


def progress(
    iterable: Iterable | None = None,
    *,
    total: int | None = None,
    unit: str,
    description: str,
    disable: bool = False,
    initial: int = 0,
):
    """A progress bar over `iterable`, or one moved by hand with ``update(count)``.

    At a terminal this is tqdm (rate and time left); elsewhere `PlainLines`. `initial` is what an
    earlier, interrupted run had already done.
    """
    if disable:
        return tqdm(iterable, total=total, disable=True)
    if has_terminal():
        return tqdm(
            iterable,
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            desc=description,
            unit_scale=unit == "B",
            initial=initial,
            dynamic_ncols=True,
        )
    return PlainLines(iterable, total and total - initial, unit, description)
