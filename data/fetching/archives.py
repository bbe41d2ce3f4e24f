"""Unpacks archives safely: no member can be written outside the target folder."""

from __future__ import annotations

import gzip
import lzma
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.base.files import sync

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")
_BLOCK_BYTES = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    gzip.BadGzipFile,
    EOFError,
    NotImplementedError,
)


class _Member(NamedTuple):
    name: str
    is_folder: bool
    is_plain: bool  # a regular file or a folder, not a link or a device
    num_bytes: int


def stem(archive: Path) -> str:
    """The archive's name without its suffixes."""
    name = archive.name
    for suffix in (".gz", ".tgz", ".tar", ".zip"):
        if name.lower().endswith(suffix):
            name = name[: -len(suffix)]
    return name


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .zip, .tar, .tar.gz or .gz into `folder`, which is deleted first.

    Raises:
      UserError: a member is a link or its name leads out of the folder, the file is damaged or not
        an archive, or the disk has no room. Then `folder` does not exist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        _unpack(archive, folder)
        for path in folder.rglob("*"):
            sync(path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, _DAMAGED):
            raise UserError(f"{archive}: damaged, or not an archive ({error}): delete it and fetch it again") from None
        raise


def _unpack(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            _check(archive, folder, _zip_members(archive, packed))
            packed.extractall(folder)
        return
    with open(archive, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    num_bytes = 0
    if is_gzip:
        # Reads to the end, where gzip checks its checksum; tarfile may stop before.
        with gzip.open(archive, "rb") as stream:
            num_bytes = sum(map(len, iter(lambda: stream.read(_BLOCK_BYTES), b"")))
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            _check(archive, folder, _tar_members(tar))
            # Python's own check, in versions that have it, besides ours.
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(folder)
    elif is_gzip:
        _check(archive, folder, [_Member(stem(archive), False, True, num_bytes)])
        with gzip.open(archive, "rb") as stream, open(folder / stem(archive), "xb") as output:
            shutil.copyfileobj(stream, output, _BLOCK_BYTES)
    else:
        raise EOFError("neither zip, tar nor gzip")


def _zip_members(archive: Path, file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        if info.flag_bits & 1:
            raise UserError(f"{archive}: {info.filename} needs a password: unpack it by hand")
        kind = stat.S_IFMT(info.external_attr >> 16)
        is_plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
        # orig_filename, because zipfile cuts filename at a NUL and replaces this system's separator by "/".
        yield _Member(info.orig_filename, info.is_dir(), is_plain, info.file_size)


def _tar_members(file: tarfile.TarFile) -> Iterator[_Member]:
    for info in file.getmembers():
        yield _Member(info.name, info.isdir(), info.isdir() or info.isreg(), info.size)


def _check(archive: Path, folder: Path, found: Iterable[_Member]) -> None:
    """Raises: UserError if a member leads out of the folder or occurs twice, or the disk has no room."""
    members = list(found)
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for member in members:
        _require_inside(archive, member)
        path = PurePosixPath(member.name)
        if path in files:
            raise _twice(archive, member.name)
        (folders if member.is_folder else files).add(path)
        folders.update(path.parents)
    if both := files & folders:
        raise _twice(archive, str(min(both)))
    _require_room(archive, folder, sum(member.num_bytes for member in members))


def _twice(archive: Path, name: str) -> UserError:
    return UserError(f"{archive}: {name!r} occurs twice, or as a file and a folder: unpack it by hand")


def _require_inside(archive: Path, member: _Member) -> None:
    name = member.name
    parts = PurePosixPath(name).parts
    if not member.is_plain:
        reason = "is a link or a device"
    elif not parts and not member.is_folder:
        reason = "has no name"
    elif name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or (len(name) > 1 and name[1] == ":"):
        reason = "leads out of the folder"
    else:
        return
    raise UserError(
        f"{archive}: its member {name!r} {reason}: nothing was unpacked; the publisher's archive has no such "
        "member: delete the file, or inspect it by hand"
    )


def _require_room(archive: Path, folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise UserError(
            f"{archive}: needs {num_bytes:,} bytes unpacked, and {free:,} are free at "
            f"{folder.parent}: make room, or set BERT_PREP_WORKING_DIR to another disk"
        )
