"""Unpacks archives safely: no member can be written outside the target folder."""

from __future__ import annotations

import gzip
import lzma
import re
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


def stem(archive: Path) -> str:
    """The archive's name without its suffixes."""
    return re.sub(r"\.(zip|tgz|tar|(tar\.)?gz)$", "", archive.name, flags=re.IGNORECASE)


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .zip, .tar, .tar.gz or .gz into `folder`, which is deleted first.

    Raises:
      UserError: a member is a link or its name leads out of the folder, or the file is damaged or not
        an archive. Then `folder` does not exist.
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
            _check(archive, _zip_members(archive, packed))
            packed.extractall(folder)
        return
    with open(archive, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    if is_gzip:
        # Reads to the end, where gzip checks its checksum; tarfile may stop before.
        with gzip.open(archive, "rb") as stream:
            while stream.read(_BLOCK_BYTES):
                pass
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            _check(archive, (_Member(i.name, i.isdir(), i.isdir() or i.isreg()) for i in tar.getmembers()))
            # Python's own check, in versions that have it, besides ours.
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(folder)
    elif is_gzip:
        with gzip.open(archive, "rb") as stream, open(folder / stem(archive), "xb") as output:
            shutil.copyfileobj(stream, output, _BLOCK_BYTES)
    else:
        raise EOFError("neither zip, tar nor gzip")


def _zip_members(archive: Path, file: zipfile.ZipFile) -> Iterator[_Member]:
    for info in file.infolist():
        if info.flag_bits & 1:
            raise UserError(f"{archive}: {info.filename} needs a password: unpack it by hand")
        kind = stat.S_IFMT(info.external_attr >> 16)
        # orig_filename, because zipfile cuts filename at a NUL and replaces this system's separator by "/".
        yield _Member(info.orig_filename, info.is_dir(), kind in (0, stat.S_IFREG, stat.S_IFDIR))


def _check(archive: Path, members: Iterable[_Member]) -> None:
    """Raises: UserError if a member is a link or leads out of the folder, or is both a file and a folder."""
    files: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for name, is_folder, is_plain in members:
        path = PurePosixPath(name)
        (folders if is_folder else files).add(path)
        folders.update(path.parents)
        if not is_plain:
            reason = "is a link or a device"
        elif not path.parts and not is_folder:
            reason = "has no name"
        elif path.is_absolute() or ".." in path.parts or re.search(r"[\\\0]|^.:", name):
            reason = "leads out of the folder"
        else:
            continue
        raise UserError(
            f"{archive}: its member {name!r} {reason}: nothing was unpacked; the publisher's archive has no such "
            "member: delete the file, or inspect it by hand"
        )
    if both := files & folders:
        raise UserError(f"{archive}: {str(min(both))!r} is both a file and a folder: unpack it by hand")
