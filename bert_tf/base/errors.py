"""What a user can correct: one exception, printed as one line, and the count of bad records."""

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

from bert_tf.base.output import going_on, open_standard_files
from bert_tf.base.signals import leave, leave_on_stop_signals

USER_ERROR_EXIT_CODE = 2
# Of a quoted value with more letters than any path, and of a message that is too long, only the ends are shown.
_LONG_VALUE, _LONGEST_MESSAGE = re.compile(r"\S{500,}"), 4000

Result = TypeVar("Result")


class UserError(ValueError):
    """A mistake in the input: the message names the value, the rule and what to do.

    Programs print it without a traceback. Any other exception is a bug of ours and keeps its
    traceback.
    """

    exit_code = USER_ERROR_EXIT_CODE

    def __str__(self) -> str:
        text = super().__str__().replace("\n", "\\n")  # a quoted value may contain line feeds
        return shorten(_LONG_VALUE.sub(lambda value: shorten(value[0], 200), text), _LONGEST_MESSAGE)


def shorten(text: str, most: int) -> str:
    """The text, or its beginning and end with "..." between them if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most * 3 // 4]}...{text[-most // 4 :]}"


def listed(names: Sequence[str], most: int = 20) -> str:
    """The names, or the first ones and "..." if there are more than `most`."""
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def contrast(one: object, other: object) -> tuple[str, str]:
    """Two values that differ, as Python writes them, so that the difference shows.

    Of long texts that part is shown; letters that only look alike are written as escapes.
    """
    texts, most = (repr(one), repr(other)), 200
    if len({unicodedata.normalize("NFKC", text) for text in texts}) == 1:
        texts = ascii(one), ascii(other)
    is_long = max(map(len, texts)) > most
    begin = max(len(os.path.commonprefix(texts)) - most // 2, 0) if is_long else 0
    first, second = (
        "..." * (begin > 0) + text[begin : begin + most] + "..." * (text[begin + most :] > "") for text in texts
    )
    return first, second


def first_line(error: Exception) -> str:
    """The first line of an error's message, without the operation names that TensorFlow adds around it."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return re.sub(r" \[Op:\w+\]$", "", line.rpartition("}} ")[2])


class MissingError(UserError):
    """Something that was named, or is needed, is not there; it may be later, so a dry run only notes it."""


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
_ERRORS_OF_PATHS = {
    getattr(errno, name) for name in "EACCES EEXIST EISDIR ELOOP ENAMETOOLONG ENOTDIR EPERM EROFS".split()
}
# The errors of a full disk, of an exceeded quota, and of a file that is too large.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _is_output_closed() -> bool:
    """Whether this program's output goes into a pipe that nobody reads any more."""
    output = select.poll()
    output.register(1, 0)
    return any(event & select.POLLERR for _, event in output.poll(0))


def as_user_error(error: Exception) -> UserError | None:
    """The error as a `UserError` if the user can correct it (such as a wrong path), else None."""
    if isinstance(error, UnicodeEncodeError):
        # Python represents a name's bytes that are not UTF-8 by surrogates, which can be neither shown nor written.
        name = error.object[max(error.start - 40, 0) : error.end + 40]
        return UserError(
            f"{name!r} cannot be written in {error.encoding}: rename what has bytes that are not UTF-8, in a path or a "
            "variable, or unset PYTHONIOENCODING"
        )
    if isinstance(error, BrokenPipeError) and _is_output_closed():
        return UserError("what this program prints is read no longer, so it stops")
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        name = error.filename or "what this program prints, or one of its files,"
        return UserError(f"{name} cannot be written ({error.strerror}); make room on that disk, and start again")
    if isinstance(error, OSError) and error.filename is not None and error.errno in _ERRORS_OF_PATHS:
        return UserError(f"{error.filename}: {error.strerror}; name another path, or change its permissions")
    return error if isinstance(error, UserError) else None


def _require_utf8() -> None:
    """Raises: UserError where Python reads paths in another encoding: TensorFlow would not get them as they are."""
    encoding = sys.getfilesystemencoding()
    if codecs.lookup(encoding).name != "utf-8":
        ways = "unset PYTHONUTF8, or set LC_ALL=C.UTF-8"
        raise UserError(f"paths are read as UTF-8, but Python is set to {encoding}; {ways}")


def exit_on_user_error(main: Callable[[Sequence[str]], Result]) -> Callable[[Sequence[str]], Result]:
    """Wraps a program's ``main(argv)``: a `UserError` is printed as ``error: ...`` and ends it with its exit code.

    Stop signals end it, too, until it handles them itself.
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
            error = as_user_error(raised)
            if error is None:
                raise
            with going_on(sys.stderr):
                print(f"error: {error}", file=sys.stderr)
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            leave(error.exit_code)
        except KeyboardInterrupt:
            with going_on(sys.stderr):
                print("interrupted", file=sys.stderr)
            leave(130)

    return wrapped


# How many faults are kept, and how many of these a message names.
_NUM_KEPT, _NUM_SHOWN = 20, 3


class BadRecords:
    """Counts the records that are left out, and keeps what is wrong with the first ones.

    Args:
      most: so many may be left out, by --max_bad_records.
      kind: what a record is called: "line", "sentence".
      file: what the error names before the fault; "" if the faults name their files.
    """

    def __init__(self, most: int, kind: str, file: str = ""):
        self._most, self._kind, self._file = most, kind, file
        self.num, self.named = 0, list[str]()

    def add(self, fault: str) -> None:
        """Raises: UserError, with the `fault`, if there are now too many."""
        self.num += 1
        self.named += [fault] if self.num <= _NUM_KEPT else []
        if self.num > self._most:
            too_many = f"more than {self._most:,} bad {self._kind}s, now " if self._most else ""
            where = f"{self._file}, " if self._file else ""
            others = f"leave up to N such {self._kind}s out with --max_bad_records=N"
            raise UserError(f"{too_many}{where}{fault}; correct it, or {others}")

    def describe(self) -> str:
        """How many were left out, and what is wrong with the first ones; "" if none was."""
        if not self.num:
            return ""
        named = "; ".join(self.named[:_NUM_SHOWN]) + ("; ..." if self.num > _NUM_SHOWN else "")
        return f"{self.num:,} {self._kind}(s) left out: {named}"
