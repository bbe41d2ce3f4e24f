"""Files that appear complete or not at all, and that survive a power failure."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Callable

from bert_tf.base.errors import NO_SPACE, MissingError, UserError

TEMPORARY_SUFFIX = ".tmp"
_BLOCK_BYTES = 1 << 20
# How much of a file is read to recognise it.
_BEGINNING_BYTES = 1 << 16


def checkout() -> Path | None:
    """The checkout that contains this code; None if `pip install` has put it among an environment's packages."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def sync(path: Path) -> None:
    """Waits until a file's bytes, or the renames inside a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` complete or not at all; on an error nothing is left behind.

    Only regular files are replaced, because root could even replace a device such as /dev/null. If the disk is full or
    the folder read-only, the error names this file.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "Is not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    # A unique name: processes on several machines, perhaps with equal process ids, may write the same file.
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, FileNotFoundError) and str(error.filename) == str(temporary):  # such as /proc
            raise NotADirectoryError(errno.ENOTDIR, "its folder takes no files", str(path)) from None
        if isinstance(error, OSError) and (error.errno in NO_SPACE or str(error.filename) == str(temporary)):
            error.filename = str(path)
        raise
    sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which then appears complete at `path`, replacing what was there.

    On an error nothing is left behind, and what was there stays.
    """
    temporary, replaced = (path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}") for _ in range(2))
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for place in (*temporary.rglob("*"), temporary):
            sync(place)
        if path.exists():
            os.rename(path, replaced)
        os.rename(temporary, path)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Atomically replaces a file's content by `text` in UTF-8. Raises OSError."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def _find(place: Path, what: str) -> os.stat_result | None:
    """What is at `place`, through links; None if nothing is. Raises `UserError` for links and names that cannot be."""
    try:
        return place.stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f"{what}: the name is longer than the file system allows; name a shorter one") from None
        if place.is_symlink():
            leads = "in a circle" if error.errno == errno.ELOOP else "to nothing"
            raise UserError(
                f"{what}: {place} is a link that leads {leads}; correct the link, or name another"
            ) from None
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # then the fault is at one of its parents
            return None
        raise UserError(f"{what}: {place} cannot be looked at ({error.strerror}); name another") from None


def check_folder(path: Path, what: str, *, writes: bool = True) -> None:
    """Raises `UserError` if `path` is no folder that can be written to and none can be made there; makes nothing.

    Args:
      what: begins the message: the path as the user knows it, such as "RESULTS_DIR=/results".
      writes: False if the folder will only be read.
    """
    for place in (path.absolute(), *path.absolute().parents):
        if (found := _find(place, what)) is None:
            continue
        if not stat.S_ISDIR(found.st_mode):
            raise UserError(f"{what}: {place} is a file, and must be a folder; name another")
        if writes and not os.access(place, os.W_OK | os.X_OK):
            raise UserError(f"{what}: {place} cannot be written to; change its permissions, or name another")
        return


def check_output(path: Path, what: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raises `UserError` if `path` cannot be written, or is a file that this project has not written.

    To be called before the work whose result will be written there. An empty file may be overwritten.

    Args:
      what: as for `check_folder`.
      is_ours: whether a file that begins with these bytes is one of the kind that will be written.
    """
    if (found := _find(path, what)) is not None:
        if not stat.S_ISREG(found.st_mode):
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
            raise UserError(f"{what} is {kind}; name a file")
        with naming_unreadable(path), open(path, "rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
        if beginning and not is_ours(beginning):
            raise UserError(
                f"{what} is a file that this program has not written, so it is not overwritten; name another, or "
                "remove that one"
            )
    check_folder(path.parent, what)


def split_paths(text: str) -> list[str]:
    """The paths and globs in a comma-separated list; a text that as a whole names an existing path is one path."""
    if os.path.exists(text) or glob.glob(text):
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


@contextlib.contextmanager
def naming_unreadable(path: str | Path) -> Iterator[None]:
    """Turns an `OSError` raised inside into a `UserError` that names the file, which errors from reading do not."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); look at its permissions and the disk that it lies on"
        ) from None


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their line ends, numbered from 1.

    Lines are split at line feeds only: Unicode's other line ends occur within sentences.

    Raises:
      UserError: the file cannot be read, or is not UTF-8; the message then names the line.
    """
    with naming_unreadable(path), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: byte {error.start} is not UTF-8; convert the file, "
                    "e.g. with iconv -f latin1 -t utf-8"
                ) from None


def check_file(path: Path, way_out: str) -> None:
    """Raises `UserError`, whose message ends with `way_out`, if `path` is not a regular file."""
    if not path.exists():
        raise MissingError(f"{path} does not exist; {way_out}")
    if not path.is_file():
        raise UserError(f"{path} is not a file; {way_out}")


def read_json_object(path: Path, way_out: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UserError: the file cannot be read or contains no JSON object; the message ends with `way_out`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {way_out}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); {way_out}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object, but {str(content)[:40]!r}; {way_out}")
    return content


def sha256_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
