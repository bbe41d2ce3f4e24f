"""Errors that a user can correct: one exception, printed as one line; and the count of bad records."""

from __future__ import annotations

import codecs
import contextlib
import errno
import functools
import importlib.util
import os
import re
import select
import sys
import unicodedata
from collections.abc import Sequence
from typing import Callable, TypeVar

from bert_tf.base.output import open_standard_files, print_error, printable
from bert_tf.base.signals import leave, leave_on_stop_signals

USER_ERROR_EXIT_CODE = 2
# A quoted value longer than any path, and a message that is too long, are shown as their beginning and end.
_LONG_VALUE, _LONGEST_MESSAGE = re.compile(r"\S{500,}"), 4000

Result = TypeVar("Result")


class UserError(ValueError):
    """A mistake in the input: the message names the value, the rule and what to do.

    Programs print it without a traceback. Any other exception is a bug of ours and keeps its
    traceback.
    """

    exit_code = USER_ERROR_EXIT_CODE

    def __str__(self) -> str:
        text = printable(super().__str__()).replace("\n", "\\n")  # a quoted value may contain line feeds
        return shorten(_LONG_VALUE.sub(lambda value: shorten(value[0], 200), text), _LONGEST_MESSAGE)


def shorten(text: str, max_chars: int) -> str:
    """The text, or its beginning and end with "..." between them if it is longer than `max_chars`."""
    return text if len(text) <= max_chars else f"{text[: max_chars * 3 // 4]}...{text[-max_chars // 4 :]}"


def names_in_words(names: Sequence[str], max_names: int = 20) -> str:
    """The names with commas between them; of more than `max_names` the first ones and "..."."""
    return ", ".join([*names[:max_names], *(["..."] if len(names) > max_names else [])])


def contrast(one: object, other: object) -> tuple[str, str]:
    """Two values that differ, as Python writes them, so that the difference shows.

    Of long values only the part around the difference is shown; characters that only look alike are shown as escapes.
    """
    texts, begin, end = (repr(one), repr(other)), 0, 200
    if len({unicodedata.normalize("NFKC", text) for text in texts}) == 1:
        texts = ascii(one), ascii(other)
    if max(map(len, texts)) > end and (num_equal := len(os.path.commonprefix(texts))) > 100:
        begin, end = num_equal - 100, num_equal + 100
    first, second = ("..." * (begin > 0) + text[begin:end] + "..." * (text[end:] > "") for text in texts)
    return first, second


def first_line(error: Exception) -> str:
    """The first line of an error's message, without the operation names that TensorFlow adds around it."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r" \[Op:\w+\]$", "", line.rpartition("}} ")[2])


class MissingError(UserError):
    """Something named or needed is missing; it may exist by the real run, so a dry run only notes it."""


class LostRankError(UserError):
    """Another rank has ended or hangs. This is not the user's mistake: all ranks end and can be started again."""

    exit_code = 1


def require_modules(*names: str) -> None:
    """Ends a program started outside the project's environment, with a one-line message. Must be called first."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        print(
            f"error: {sys.executable} has no {', '.join(missing)}; 'bash scripts/setup.sh' makes the environment, "
            "then 'source .venv/bin/activate'",
            file=sys.stderr,
        )
        sys.exit(USER_ERROR_EXIT_CODE)


# Errors that a mistyped path can cause.
_PATH_ERRORS = {
    getattr(errno, name) for name in "EACCES EEXIST EISDIR ELOOP ENAMETOOLONG ENOTDIR ENXIO EPERM EROFS".split()
}
# The errors of a full disk, of an exceeded quota, and of a file that is too large.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _is_output_closed() -> bool:
    """Whether stdout is a pipe that nobody reads any more."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def as_user_error(error: Exception) -> UserError | None:
    """The error as a `UserError` if the user can correct it (such as a wrong path), else None."""
    if isinstance(error, UnicodeEncodeError):
        # Python represents a name's bytes that are not UTF-8 by surrogates, which can be neither shown nor written.
        name = error.object[max(error.start - 40, 0) : error.end + 40]
        return UserError(
            f"{name!r} cannot be written in {error.encoding}: rename the path, or set the variable, that has bytes "
            "which are not UTF-8, or unset PYTHONIOENCODING"
        )
    if isinstance(error, BrokenPipeError) and _is_output_closed():
        return UserError("nobody reads what this program prints any more, so it stops")
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        name = error.filename or "what this program prints, or one of its files,"
        return UserError(f"{name} cannot be written ({error.strerror}); make room on that disk, and start again")
    if isinstance(error, OSError) and error.filename is not None and error.errno in _PATH_ERRORS:
        return UserError(f"{error.filename}: {error.strerror}; name another path, or change its permissions")
    return error if isinstance(error, UserError) else None


def _require_utf8() -> None:
    """Raises: UserError if Python decodes paths otherwise than as UTF-8: TensorFlow would look for other paths."""
    encoding = sys.getfilesystemencoding()
    if codecs.lookup(encoding).name != "utf-8":
        raise UserError(
            f"paths are read as UTF-8, but Python is set to {encoding}; unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
        )


def exit_on_user_error(main: Callable[[Sequence[str]], Result]) -> Callable[[Sequence[str]], Result]:
    """Wraps a program's ``main(argv)``: a `UserError` is printed as ``error: ...`` and ends the program with the
    error's exit code. Stop signals end it, too, until it handles them itself.
    """

    @functools.wraps(main)
    def wrapped(argv: Sequence[str]) -> Result:
        open_standard_files()
        leave_on_stop_signals()
        try:
            _require_utf8()
            result = main(argv)
            sys.stdout.flush()
            return result
        except Exception as raised:
            if (error := as_user_error(raised)) is None:
                raise
            print_error(f"error: {error}")
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            leave(error.exit_code)
        except KeyboardInterrupt:
            print_error("interrupted")
            leave(130)

    return wrapped


# How many faults are kept, and how many of these a message names.
_MAX_KEPT, _MAX_SHOWN = 20, 3


class BadRecords:
    """Counts the records that are left out, and keeps what is wrong with the first ones.

    Args:
      limit: how many may be left out (--max_bad_records); None: none may, since each gets a prediction.
      kind: what a record is called: "line", "sentence".
      file: what the error names before the fault; "" if the faults name their files.

    Attributes:
      num_left_out: how many have been left out.
      faults: what is wrong with the first ones.
    """

    def __init__(self, limit: int | None, kind: str, file: str = ""):
        self._limit, self._kind, self._file = limit, kind, file
        self.num_left_out, self.faults = 0, list[str]()

    def add(self, fault: str) -> None:
        """Counts a record with this fault. Raises: UserError, with the `fault`, if there are now too many."""
        self.num_left_out += 1
        if self.num_left_out <= _MAX_KEPT:
            self.faults.append(fault)
        if self.num_left_out > (self._limit or 0):
            too_many = f"more than {self._limit:,} bad {self._kind}s, now " if self._limit else ""
            where = f"{self._file}, " if self._file else ""
            remedy = f"correct it, or leave up to N such {self._kind}s out with --max_bad_records=N"
            if self._limit is None:
                remedy = f"correct it, since each {self._kind} gets a prediction"
            raise UserError(f"{too_many}{where}{fault}; {remedy}")

    def describe(self) -> str:
        """How many were left out, and what is wrong with the first ones; "" if none was."""
        if not self.num_left_out:
            return ""
        faults = "; ".join(self.faults[:_MAX_SHOWN]) + ("; ..." if self.num_left_out > _MAX_SHOWN else "")
        return f"{self.num_left_out:,} {self._kind}(s) left out: {faults}"
