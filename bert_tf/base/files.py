"""Files that appear complete or not at all, and that survive a power failure."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import io
import itertools
import os
import re
import shutil
import stat
import sys
import tempfile
import unicodedata
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Callable

from bert_tf.base.errors import NO_SPACE, MissingError, UserError
from bert_tf.base.fields import read_object
from bert_tf.base.formats import HEAD_BYTES, describe_non_text

TEMPORARY_SUFFIX = ".tmp"
# What makes TensorFlow take a path for a pattern that does not match the path itself, unlike * and ?.
_PATTERN = re.compile(r"\[[^/]*\]|\\")
_TEMPORARY_GLOB = f"*.{'[0-9a-f]' * 32}{TEMPORARY_SUFFIX}"
_BLOCK_BYTES = 1 << 20
# How much of a file is read to recognise it.
_BEGINNING_BYTES = 1 << 16


# The folder that contains this package: a checkout, or where `pip install` has put it, an environment's packages.
CHECKOUT = Path(__file__).resolve().parents[2]


def checkout() -> Path | None:
    """The checkout that contains this code; None if there is none."""
    return CHECKOUT if (CHECKOUT / "pyproject.toml").is_file() else None


def work_folder() -> Path:
    """The folder that holds data/ and results/ by default: the checkout, or the current folder if there is none."""
    return checkout() or Path.cwd()


def sync(path: Path) -> None:
    """Waits until a file's bytes, or the renames inside a folder, are on the disk.

    Some file systems, such as VirtualBox's shared folders and OrangeFS, cannot sync a folder, and this is ignored.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def read_ahead(file: IO[bytes]) -> None:
    """Asks the system to read a whole file into its cache before it is needed; macOS has no call for that."""
    if sys.platform == "linux":
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def _temporary(path: Path) -> Path:
    """A unique name: processes on several machines, perhaps with equal process ids, may write the same file."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")


def remove_leftovers(folder: Path) -> None:
    """Removes what killed processes have left half-written or half-deleted in a folder."""
    for path in folder.glob(_TEMPORARY_GLOB):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def remove_folder(path: Path) -> None:
    """Removes a folder. It is renamed first, so that a kill leaves no part of it under its name."""
    doomed = _temporary(path.with_name(f".{path.name}"))
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears at `path` complete or not at all; on an error nothing is left behind.

    Only regular files are replaced, because root could even replace a device such as /dev/null. If the disk is full or
    the folder read-only, the error names this file.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "Is not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with open(temporary, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and (error.errno in NO_SPACE or str(error.filename) == str(temporary)):
            error.filename = str(path)
        raise
    sync(path.parent)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which then appears complete at `path`, replacing an older one.

    Also removes what killed processes have left of this folder. On an error nothing is left behind, and the older
    folder stays.
    """
    hidden = path.with_name(f".{path.name}")
    temporary, replaced = _temporary(hidden), _temporary(hidden)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for written_path in (*temporary.rglob("*"), temporary):
            sync(written_path)
        if path.exists():
            os.rename(path, replaced)
        os.rename(temporary, path)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    for leftover in path.parent.glob(f"{glob.escape(hidden.name)}{_TEMPORARY_GLOB[1:]}"):
        shutil.rmtree(leftover, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Atomically replaces a file's content by `text` in UTF-8. Raises OSError."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8"))


def check_folder(path: Path, title: str, *, writes: bool = True) -> None:
    """Raises `UserError` unless `path` is a writable folder or one could be made there; leaves nothing behind.

    Args:
      title: begins the message: the path as the user knows it, such as "RESULTS_DIR=/results".
      writes: False if the folder will only be read.
    """
    folder = next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.lexists(parent))
    if not folder.is_dir():
        fault = "is a link that leads nowhere" if folder.is_symlink() else "is a file"
        raise UserError(f"{title}: {folder} {fault}, and must be a folder; name another")
    if writes:
        try:
            # Tried, not looked up: root has every permission, but can make no file in /proc either.
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UserError(
                f"{title}: {folder} cannot be written to ({error.strerror}); change its permissions, make room, or "
                "name another"
            ) from None


def check_readable_path(path: str | Path, title: str) -> None:
    """Raises `UserError`, whose message begins with `title`, if TensorFlow cannot read a checkpoint at that path."""
    if _PATTERN.search(str(path)):
        raise UserError(
            f"{title}: TensorFlow cannot read a checkpoint whose path has [ ] or a backslash, as it takes that for a "
            "pattern; rename the folder, or name a link to it that has none"
        )


def check_output(path: Path, title: str, is_ours: Callable[[bytes], bool]) -> None:
    """Raises `UserError` if `path` cannot be written, or is a file that this project has not written.

    To be called before the work whose result will be written there. An empty file may be overwritten.

    Args:
      title: as for `check_folder`.
      is_ours: whether a file that begins with the given bytes is of the kind that will be written.
    """
    check_folder(path.parent, title)
    if not os.path.lexists(path):
        return
    if not path.is_file():
        raise UserError(f"{title} is no file, but a folder or a device; name a file")
    with naming_unreadable(path), open(path, "rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    if beginning and not is_ours(beginning):
        raise UserError(f"{title} is a file that this program has not written, so it is not overwritten; name another")


def split_paths(text: str) -> list[str]:
    """The paths and globs in a comma-separated list, at least one.

    A text that as a whole names an existing path is one path; so is an empty text.

    Raises: UserError if there is nothing between its commas.
    """
    if not text or os.path.exists(text) or glob.glob(text):
        return [text]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"'{text}' names no file; give paths, with commas between them")
    return parts


class naming_unreadable:
    """A context that turns an `OSError` into a `UserError` that names the file, which errors from reading do not.

    Not a generator with `contextlib`: from Python 3.12 on, that puts the error into a cycle of references, so that it,
    the frames in its traceback and a lock that these hold live until the next garbage collection.
    """

    def __init__(self, path: str | Path, remedy: str = "look at its permissions and the disk that it lies on"):
        self._path, self._remedy = path, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise UserError(f"{self._path} cannot be read ({error.strerror}); {self._remedy}") from None


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def decode_utf8(content: bytes, position: str, encoding: str = "utf-8") -> str:
    """The text. Raises `UserError`, whose message begins with `position`, if `content` is not UTF-8."""
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{position}: byte {error.start} is not UTF-8 (0x{content[error.start]:02x}); convert the file: "
            "iconv -f ENCODING -t UTF-8, where ENCODING may be WINDOWS-1252, GB18030 or SHIFT_JIS"
        ) from None


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their line ends, numbered from 1.

    Lines are split at line feeds only: Unicode's other line ends occur within sentences. A file without any line feed
    is split at carriage returns, which end the lines of old Mac programs.

    Raises:
      UserError: the file cannot be read, or is not UTF-8; the message then says what it is, or names the line.
    """
    with naming_unreadable(path), open_file(path) as file:
        if kind := describe_non_text(file.peek(HEAD_BYTES)[:HEAD_BYTES], path.name):
            raise UserError(f"{path} is {kind}")
        first = file.readline()
        lines = itertools.chain([first] if first.endswith(b"\n") else first.splitlines(keepends=True), file)
        for number, line in enumerate(lines, 1):
            yield number, decode_utf8(line, f"{path}, line {number}", "utf-8-sig" if number == 1 else "utf-8")


def check_file(path: Path, remedy: str) -> None:
    """Raises `UserError`, whose message ends with `remedy`, if `path` is no regular file, or a Git LFS pointer."""
    if not path.exists():
        raise MissingError(f"{path} does not exist; {remedy}")
    if not path.is_file():
        raise UserError(f"{path} is not a file; {remedy}")
    with naming_unreadable(path), open(path, "rb") as file:
        if file.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise UserError(
                f"{path} only stands for the file itself, which Git LFS has not fetched yet; run 'git lfs pull' in its "
                f"folder, or {remedy}"
            )


def open_file(path: Path) -> io.BufferedReader:
    """Opens a file for reading. Raises: OSError, also for a pipe or a device, from which reading might never end."""
    # To open a pipe without a writer would wait for one.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.ENXIO, "Is not a file", str(path))
    return file


def read_bytes(path: Path) -> bytes:
    """A file's bytes. Raises: OSError as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path, title: str) -> str:
    """A UTF-8 file's text. Raises: `UserError`, which begins with `title`, if it is not UTF-8 text; OSError."""
    encoded = read_bytes(path)
    if kind := describe_non_text(encoded[:HEAD_BYTES], path.name):
        raise UserError(f"{title} is {kind}")
    return decode_utf8(encoded, title, "utf-8-sig")


def read_json_object(path: Path, remedy: str) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UserError: the file cannot be read or contains no JSON object, or a number in it is NaN or infinite; the message
        ends with `remedy`.
    """
    with naming_unreadable(path, remedy):
        return read_object(read_text(path, str(path)), str(path), remedy, is_strict=True)


def sha256_of_code(folders: Iterable[str]) -> str:
    """The sha256 of our code in some folders of `CHECKOUT`, and of Python's version of Unicode."""
    digest = hashlib.sha256(unicodedata.unidata_version.encode())
    paths = (path for folder in folders for path in CHECKOUT.joinpath(folder).rglob("*"))
    # An editor's lock on a file is a link that leads nowhere.
    for path in sorted(path for path in paths if path.suffix in (".py", ".cpp", ".json") and path.is_file()):
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def sha256_of_file(path: Path) -> str:
    """In hexadecimal. Raises: OSError."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
