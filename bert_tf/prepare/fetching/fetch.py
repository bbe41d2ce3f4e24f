"""Fetches files over HTTP: resumes after a dropped connection, retries with pauses, verifies checksums, unpacks.

Received bytes are kept in ``<name>.<hash of the URL>.part``. The file gets its own name only when it is complete and
its checksum is right, which also tells whether it has changed between two of its parts. No member of an archive can be
written outside the target folder.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import lzma
import os
import shutil
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, TypeVar

import requests
from urllib3.util import Retry

from bert_tf.base.errors import UserError
from bert_tf.base.files import sync
from bert_tf.base.progress import Progress
from bert_tf.records.manifest import FileEntry

PART_SUFFIX = ".part"
# Small, because an incomplete block is lost when a connection drops.
_BLOCK_BYTES = 1 << 15
_TIMEOUT_SECS = 60.0
# If a server asks for a longer pause, the program ends instead of waiting.
_LONGEST_WAIT_SECS = 600.0
NUM_CONNECTIONS = 32
_TRY_AGAIN_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})

Answer = TypeVar("Answer")


class NotThereError(UserError):
    """The server has no such file."""


class _TryAgain(Exception):
    """A response after which a retry may succeed; `wait_secs`: the pause that it asks for."""

    def __init__(self, response: requests.Response):
        super().__init__(f"{response.status_code} {response.reason}")
        self.wait_secs = Retry().get_retry_after(response.raw)


def describe_file(path: Path, checksum: str | None = None) -> FileEntry:
    """Name, size and sha256 of a file, which is read once, with a progress bar.

    Args:
      checksum: the published one, as ``"md5:<hex>"``, ``"sha1:..."`` or ``"sha256:..."``.

    Raises: UserError where the file has another checksum.
    """
    algorithm, _, published = (checksum or "sha256:").partition(":")
    digests = {name: hashlib.new(name) for name in {"sha256", algorithm}}
    with (
        open(path, "rb") as file,
        Progress(total=path.stat().st_size, unit="B", description=f"checking {path.name}") as bar,
    ):
        while block := file.read(1 << 20):
            for digest in digests.values():
                digest.update(block)
            bar.update(len(block))
    actual = digests[algorithm].hexdigest()
    if published and actual != published.lower():
        raise UserError(f"{path.name} has the {algorithm} {actual}, published is {published}")
    return FileEntry(path.name, path.stat().st_size, digests["sha256"].hexdigest())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class Client:
    """Fetches files; gives up after `num_attempts` attempts in a row without new bytes.

    The second attempt follows at once; the pause before each further one is twice the previous pause.
    """

    def __init__(self, num_attempts: int = 5, pause_secs: float = 2.0):
        self._num_attempts, self._pause_secs = num_attempts, pause_secs
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=NUM_CONNECTIONS))
        # Wikimedia refuses clients without a User-Agent; "identity" keeps compressed files compressed.
        self._session.headers.update(
            {
                "User-Agent": f"bertPrep.py (BERT data preparation; requests/{requests.__version__})",
                "Accept-Encoding": "identity",
            }
        )

    def text(self, url: str, remedy: str) -> str:
        """The text of a small file, such as a list of files or checksums. Raises: as `content`."""
        return self.content(url, remedy).decode("utf-8", "replace")

    def content(self, url: str, remedy: str, checksum: str | None = None) -> bytes:
        """The bytes of a small file; up to `NUM_CONNECTIONS` threads may call this at a time.

        Raises:
          NotThereError: the server has no such file.
          UserError: the file cannot be fetched, or has another checksum; the message ends in `remedy`.
        """

        def attempt() -> bytes:
            with self._open(url, {}, remedy) as response:
                return response.content

        content = self._patiently(url, attempt, lambda: 0, remedy)
        algorithm, _, published = (checksum or "").partition(":")
        if checksum and (actual := hashlib.new(algorithm, content).hexdigest()) != published.lower():
            raise UserError(
                f"{url}: it has the {algorithm} {actual}, published is {published}: start the same command again, "
                f"because it may just have been changed; or {remedy}"
            )
        return content

    def fetch(self, url: str, path: Path, *, checksum: str | None, remedy: str, label: str) -> FileEntry:
        """Fetches `url` to `path`; the entry names the URL.

        Args:
          checksum: ``"<algorithm>:<hex>"`` as published, or None.
          label: of the progress bar.

        Raises:
          NotThereError: the server has no such file.
          UserError: the file cannot be fetched, or has another checksum; the message ends in `remedy`.
            Received bytes are kept for the next run, also where the disk is full, unless the checksum is wrong.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}{PART_SUFFIX}")
        for other in {*path.parent.glob(f"{glob.escape(path.name)}.*{PART_SUFFIX}")} - {part}:
            other.unlink()  # of an older dump
        self._patiently(
            url, lambda: self._fetch_rest(part, url, remedy=remedy, label=label), lambda: _size(part), remedy
        )
        try:
            described = describe_file(part, checksum)
        except UserError as error:
            part.unlink()
            raise UserError(
                f"{url}: {error}: removed, because it was damaged in transit, has changed between two of its parts, or "
                f"is not the published file: start the same command again to fetch it anew; or {remedy}"
            ) from None
        os.replace(part, path)
        sync(path.parent)
        return dataclasses.replace(described, file=path.name, details={"url": url})

    def _patiently(
        self, url: str, attempt: Callable[[], Answer], progress_made: Callable[[], int], remedy: str
    ) -> Answer:
        num_failures, most = 0, progress_made()
        while True:
            try:
                return attempt()
            except (requests.RequestException, _TryAgain) as error:
                reason, asked_secs = _in_words(error), getattr(error, "wait_secs", None)
            # Compared with the most ever received, because a server may begin anew with each attempt.
            num_failures = 1 if progress_made() > most else num_failures + 1
            most = max(most, progress_made())
            backoff_secs = self._pause_secs * 2 ** (num_failures - 1) if num_failures > 1 else 0.0
            wait_secs = backoff_secs if asked_secs is None else asked_secs
            if num_failures == self._num_attempts or wait_secs > _LONGEST_WAIT_SECS:
                raise UserError(
                    f"{url}: {reason}; given up after {num_failures} failures in a row ({wait_secs:,.0f} s to wait "
                    f"now): start the same command again later, it continues where it stopped; or {remedy}"
                )
            print(f"{url}: {reason}; trying again in {wait_secs:.0f} s", flush=True)
            time.sleep(wait_secs)

    def _open(self, url: str, headers: Mapping[str, str], remedy: str) -> requests.Response:
        response = self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECS)
        # Makes it an error if fewer bytes arrive than announced; this is the default only since version 2 of urllib3.
        response.raw.enforce_content_length = True
        if response.status_code < 400 or response.status_code == 416:
            return response
        response.close()
        if response.status_code in _TRY_AGAIN_LATER:
            raise _TryAgain(response)
        status = f"{response.status_code} {response.reason}"
        if response.status_code in (404, 410):
            raise NotThereError(f"{url}: {status}: the server does not have this file (any more); {remedy}")
        raise UserError(f"{url}: {status}; {remedy}")

    def _fetch_rest(self, part: Path, url: str, *, remedy: str, label: str) -> None:
        offset = _size(part)
        with self._open(url, {"Range": f"bytes={offset}-"} if offset else {}, remedy) as response:
            if response.status_code == 416:  # nothing is left of it
                return
            if offset and response.status_code != 206:
                print(f"{url}: starting from the first byte: the server does not support ranges", flush=True)
                offset = 0
            _write_rest(response, part, offset, label)


def _write_rest(response: requests.Response, part: Path, offset: int, label: str) -> None:
    announced = response.headers.get("Content-Length", "")
    length = int(announced) if announced.isdigit() else None
    free = shutil.disk_usage(part.parent).free
    if length is not None and length > free:
        raise UserError(
            f"{part.parent}: {length:,} bytes are still to come and {free:,} are "
            f"free on this disk: make room, or set BERT_PREP_WORKING_DIR to another one"
        )
    total = None if length is None else offset + length
    with (
        open(part, "ab" if offset else "wb") as file,
        Progress(total=total, initial=offset, unit="B", description=label) as bar,
    ):
        for block in response.iter_content(_BLOCK_BYTES):
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())


def _in_words(error: Exception) -> str:
    """The reason for a failure; for a failed connection, the innermost cause, such as "Connection refused"."""
    if isinstance(error, _TryAgain):
        return str(error)
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return f"connection failed ({getattr(cause, 'strerror', None) or repr(cause)})"


SUFFIXES = (".tar.gz", ".zip", ".tar", ".tgz")
_MEMBER_BLOCK_BYTES = 1 << 20
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
        while tar.fileobj.read(_MEMBER_BLOCK_BYTES):
            pass
