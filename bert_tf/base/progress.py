"""Shows the progress of long work: a tqdm bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import Any

from tqdm import tqdm

PLAIN_LINE_INTERVAL_SECS = 10.0


# Set by the launchers for the rank whose output they copy from a pipe to a terminal, to the terminal's columns.
COLUMNS_VARIABLE = "BERT_TF_TERMINAL_COLUMNS"


def _has_terminal() -> bool:
    """Whether stderr is a terminal that can show a bar: tqdm hides the bar if the terminal has no size."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).lines > 1
    return COLUMNS_VARIABLE in os.environ


def print_beside_bars(text: str) -> None:
    """Prints a line to stderr without tearing a bar that is shown."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


class Progress:
    """A tqdm bar with rate and time left in a terminal; elsewhere a line every ten seconds and at the end.

    Args:
      iterable: yielded by iterating over this object; None if the caller calls `update`.
      total: number of units of the whole work; default: the iterable's length, if it has one.
      initial: number of units already done by an earlier, interrupted run.
      disable: show neither bar nor lines.
      bar_options: further arguments of tqdm.
    """

    def __init__(
        self,
        iterable: Iterable | None = None,
        *,
        total: int | None = None,
        unit: str = "",
        description: str = "",
        disable: bool = False,
        initial: int = 0,
        **bar_options: Any,
    ):
        if total is None and isinstance(iterable, Sized):
            total = len(iterable)
        self._iterable, self._unit, self._description = iterable, unit, description
        self.total, self.initial, self.done, self.postfix = total, initial, initial, ""
        self.started_at = self._printed_at = time.monotonic()
        self._is_disabled, self._is_pending = disable, False
        self._bar = tqdm(
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            desc=description,
            unit_scale=unit == "B",
            initial=initial,
            disable=disable or not _has_terminal(),
            ncols=int(os.environ[COLUMNS_VARIABLE]) if COLUMNS_VARIABLE in os.environ else None,
            dynamic_ncols=COLUMNS_VARIABLE not in os.environ,
            **bar_options,
        )

    def __iter__(self) -> Iterator:
        for item in self._iterable or ():
            yield item
            self.update()
        self.close()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: int = 1, postfix: str = "") -> None:
        """Counts `count` more units as done; `postfix` follows the numbers."""
        self.done += count
        self.postfix = postfix
        self._bar.set_postfix_str(postfix, refresh=False)
        self._bar.update(count)
        self._is_pending = self._bar.disable and not self._is_disabled
        if time.monotonic() - self._printed_at >= PLAIN_LINE_INTERVAL_SECS:
            self.flush()

    def flush(self) -> None:
        """Shows the latest state: redraws the bar, or prints the line if it was held back."""
        self._bar.refresh()
        self._printed_at = time.monotonic()
        if self._is_pending:
            self._is_pending = False
            self.say(self._line(), sys.stderr)

    def say(self, text: str, stream: Any) -> None:
        """Prints a line without tearing the bar."""
        # If the stream is a closed pipe or a file on a full disk, there is nowhere to report that, and
        # the work matters more.
        with contextlib.suppress(OSError):
            print_line = print if self._bar.disable else tqdm.write
            print_line(text, file=stream)
            stream.flush()

    def close(self) -> None:
        self.flush()
        self._bar.close()

    def _line(self) -> str:
        rate = (self.done - self.initial) / max(time.monotonic() - self.started_at, 1e-9)
        in_bytes = self._unit == "B"  # shown in thousands, millions ..., as the bar shows them
        count = tqdm.format_sizeof if in_bytes else "{:,}".format
        speed = tqdm.format_sizeof(rate) if in_bytes else f"{rate:,.1f}"
        unit = "B" if in_bytes else f" {self._unit}"
        of_total = f" of {count(self.total)}" if self.total else ""
        line = f"{self._description}: {count(self.done)}{of_total}{unit}, {speed}{unit}/s"
        if self.total and rate > 0:
            line += f", {max(self.total - self.done, 0) / rate:,.0f} s left"
        return line + (f", {self.postfix}" if self.postfix else "")
