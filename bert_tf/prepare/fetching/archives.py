"""Unpacks archives safely: no member can be written outside the target folder."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from bert_tf.base.errors import UserError
from bert_tf.base.files import sync

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".gz")
_BLOCK_BYTES = 1 << 20
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, NotImplementedError)


def stem(archive: Path) -> str:
    """The archive's name without its suffixes."""
    return re.sub(r"\.(zip|tgz|tar|(tar\.)?gz)$", "", archive.name, flags=re.IGNORECASE)


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .zip, .tar, .tar.gz or .gz into `folder`, which is deleted first.

    Raises:
      UserError: the file is damaged, not an archive or needs a password, or a member is a device or leads out of the
        folder. Then `folder` does not exist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        _unpack(archive, folder)
        for path in folder.rglob("*"):
            sync(path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, _DAMAGED) or getattr(error, "errno", 0) is None:
            raise UserError(
                f"{archive}: damaged, or not an archive that can be unpacked ({error}): delete it and fetch it again, "
                "or unpack it by hand"
            ) from None
        raise


def _unpack(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():  # `extractall` would change unsafe names and go on
                if _leads_out(name):
                    raise zipfile.BadZipFile(f"{name!r} leads out of the folder")
            packed.extractall(folder)
        return
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
            else:
                tar.extractall(folder, members=_plain_members(tar))
            assert tar.fileobj
            # Read to the end, where gzip verifies its checksum.
            while tar.fileobj.read(_BLOCK_BYTES):
                pass
        return
    with gzip.open(archive, "rb") as stream, open(folder / stem(archive), "xb") as output:
        shutil.copyfileobj(stream, output, _BLOCK_BYTES)


def _leads_out(name: str) -> bool:
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def _plain_members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Files and folders only, made our own; for Pythons without filters (before 3.9.17, 3.10.12, 3.11.4)."""
    for member in tar:
        if _leads_out(member.name) or not (member.isreg() or member.isdir()):
            raise tarfile.ReadError(f"{member.name!r} leads out of the folder, or is neither a file nor a folder")
        member.mode = 0o755 if member.isdir() else 0o644
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member
