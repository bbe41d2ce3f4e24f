"""Shows the progress of long work: a tqdm bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import tqdm

from bert_tf.base.output import dropping_unwritable, printable

PLAIN_LINE_INTERVAL_SECS = 10.0


# Set by the launchers for the rank whose output they copy from a pipe to a terminal, to the terminal's columns.
COLUMNS_VARIABLE = "BERT_TF_TERMINAL_COLUMNS"


def _has_terminal() -> bool:
    """Whether stderr is a terminal that can show a bar: tqdm hides the bar if the terminal has no size."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(sys.stderr.fileno()).lines > 1
    return COLUMNS_VARIABLE in os.environ


def print_beside_bars(text: str, stream: TextIO | None = None) -> None:
    """Prints a line, by default to stderr, without tearing a bar that is shown."""
    stream = stream or sys.stderr
    with dropping_unwritable(stream):
        tqdm.write(printable(text), file=stream)


class _Lines:
    """The file that tqdm writes to where there is no terminal: each state that it shows becomes a line of stderr."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print_beside_bars(line)

    def flush(self) -> None:
        pass


class Progress(tqdm):
    """A tqdm bar with rate and time left in a terminal; elsewhere a line every ten seconds and at the end.

    Args:
      iterable: yielded by iterating over this object; None if the caller calls `update`.
      options: further arguments of tqdm: `total`, the number of units of the whole work, which must be known unless the
        unit is "B"; `initial`, those already done by an earlier, interrupted run; and `disable`, to show neither bar
        nor lines.

    Attributes:
      is_plain: whether lines are printed.
      last_print_n: tqdm's, the units done when it last showed them.
    """

    last_print_n: float

    # Formats in tqdm's notation; None: its default.
    bar: str | None = None
    line = "{desc}: {n:,} of {total:,}{unit}, {rate_noinv:,.1f}{unit}/s, {remaining_s:,.0f} s left{postfix}"
    line_of_bytes = "{desc}: {n_fmt} of {total_fmt}{unit}, {rate_noinv_fmt}, {remaining_s:,.0f} s left{postfix}"

    def __init__(self, iterable: Iterable | None = None, *, unit: str = "", description: str = "", **options: Any):
        self.is_plain, columns, bar_format = not _has_terminal(), os.environ.get(COLUMNS_VARIABLE), self.bar
        if self.is_plain:
            bar_format = self.line_of_bytes if unit == "B" else self.line
            # A delay, however short, leaves out the line before any work is done.
            options |= dict(file=_Lines(), mininterval=PLAIN_LINE_INTERVAL_SECS, delay=1e-99, position=0)
        super().__init__(
            iterable,
            desc=description,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            miniters=1,
            ncols=int(columns) if columns else None,
            dynamic_ncols=not columns,
            bar_format=bar_format,
            **options,
        )
        # tqdm reads the time of day: set back by an hour, it would show nothing for an hour.
        self._time = time.monotonic
        self.start_t = self.last_print_t = self._time()

    @property
    def format_dict(self) -> dict[str, Any]:
        """tqdm's figures; those that `line` shows are never missing, neither at the start nor beyond `total`."""
        figures = super().format_dict
        if "initial" in figures:  # not if disabled
            figures["rate"] = figures["rate"] or (figures["n"] - figures["initial"]) / max(figures["elapsed"], 1e-9)
            figures["total"] = figures["total"] and max(figures["total"], figures["n"])
        return figures

    def update(self, count: float | None = 1, postfix: str = "") -> None:
        """Counts `count` more units as done; `postfix` follows the numbers."""
        self.set_postfix_str(postfix, refresh=False)
        super().update(count)

    def show(self) -> None:
        """Shows the present state, unless the last line has shown it."""
        if not self.is_plain:
            self.refresh()
        elif self.last_print_n < self.n:
            self.refresh()
            self.last_print_n = self.n

    def close(self) -> None:
        if self.is_plain and not self.disable and self.last_print_n == self.n:
            self.leave = False  # the last line has shown the end
        super().close()
