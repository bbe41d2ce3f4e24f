"""Unpacks archives safely: no member can be written outside the target folder."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import tarfile
import zipfile
import zlib
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
            for name in packed.namelist():  # from which `extractall` would take what leads out, and go on
                if name.startswith("/") or ".." in PurePosixPath(name).parts:
                    raise zipfile.BadZipFile(f"{name!r} leads out of the folder")
            packed.extractall(folder)
        return
    if tarfile.is_tarfile(archive):
        if not hasattr(tarfile, "data_filter"):
            raise RuntimeError("this Python is too old to unpack it safely: 3.9.17, 3.10.12 and 3.11.4 can")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
            assert tar.fileobj
            # To the end, where gzip checks its checksum.
            while tar.fileobj.read(_BLOCK_BYTES):
                pass
        return
    with gzip.open(archive, "rb") as stream, open(folder / stem(archive), "xb") as output:
        shutil.copyfileobj(stream, output, _BLOCK_BYTES)
