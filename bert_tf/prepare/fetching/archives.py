"""Unpacks archives safely: no member can be written outside the target folder."""

from __future__ import annotations

import lzma
import shutil
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.files import sync

SUFFIXES = (".tar.gz", ".zip", ".tar", ".tgz")
_BLOCK_BYTES = 1 << 20
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError)


def stem(archive: Path) -> str | None:
    """The name of an archive without its suffix; None if it is none."""
    suffix = next(filter(archive.name.lower().endswith, SUFFIXES), None)
    return archive.name[: -len(suffix)] if suffix and archive.is_file() else None


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a .zip, .tar or .tar.gz into `folder`, which is deleted first.

    Raises:
      UserError: the file is damaged, not an archive or needs a password, or (in a .tar) a member is a device or leads
        out of the folder. Then `folder` does not exist.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        _unpack(archive, folder)
        for path in folder.rglob("*"):
            sync(path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        # A damaged gzip is an `OSError` without a number, a password that is missing a `RuntimeError`.
        if isinstance(error, _DAMAGED) or (isinstance(error, OSError) and error.errno is None):
            raise UserError(
                f"{archive}: damaged, or not an archive that can be unpacked ({error}): delete it and fetch it again, "
                "or unpack it by hand"
            ) from None
        raise


def _unpack(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)  # which takes out of names what would lead out of the folder
        return
    with tarfile.open(archive) as tar:
        if not hasattr(tarfile, "data_filter"):
            raise tarfile.TarError(f"Python {sys.version.split()[0]} cannot check where a tar's files would go")
        tar.extractall(folder, filter="data")
        assert tar.fileobj
        # Read to the end, where gzip verifies its checksum.
        while tar.fileobj.read(_BLOCK_BYTES):
            pass
