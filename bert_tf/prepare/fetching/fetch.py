"""Fetches files over HTTP: resumes after a dropped connection, retries with pauses, verifies checksums.

Received bytes are kept in ``<name>.<hash of the URL>.part``. The file gets its own name only when it is complete and
its checksum is right, which also rules out a mix of two versions of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable, TypeVar

import requests
from urllib3.exceptions import InvalidHeader
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
# HTTP status codes.
_TRY_AGAIN_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_THERE = frozenset({404, 410})
_NOTHING_LEFT, _PARTIAL = 416, 206

Content = TypeVar("Content")


class NotThereError(UserError):
    """The server has no such file."""


@contextlib.contextmanager
def adding_remedy(remedy: str) -> Iterator[None]:
    """Appends another remedy to the message of a `UserError`."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{error}; or {remedy}") from None


def describe_file(path: Path, checksum: str | None = None) -> FileEntry:
    """Name, size and sha256 of a file, which is read once, with a progress bar.

    Args:
      checksum: the published one, as ``"md5:<hex>"``, ``"sha1:..."`` or ``"sha256:..."``.

    Raises: UserError where the file has another checksum.
    """
    digests = {name: hashlib.new(name) for name in {"sha256", _algorithm(checksum)}}
    with (
        open(path, "rb") as file,
        Progress(total=path.stat().st_size, unit="B", description=f"checking {path.name}") as bar,
    ):
        while block := file.read(1 << 20):
            for digest in digests.values():
                digest.update(block)
            bar.update(len(block))
    _check(path.name, digests[_algorithm(checksum)].hexdigest(), checksum)
    return FileEntry(path.name, path.stat().st_size, digests["sha256"].hexdigest())


def _algorithm(checksum: str | None) -> str:
    return checksum.partition(":")[0] if checksum else "sha256"


def _check(name: str, actual: str, checksum: str | None) -> None:
    """Raises: UserError if a checksum is published and differs from the actual one."""
    if checksum and actual != checksum.partition(":")[2].lower():
        raise UserError(
            f"{name} has the {_algorithm(checksum)} {actual}, published is {checksum.partition(':')[2]}: start the "
            "same command again, because the file may have been damaged in transit or replaced on the server"
        )


def _size(path: Path | None) -> int:
    return path.stat().st_size if path and path.exists() else 0


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
        self._session.headers["User-Agent"] = f"bertPrep.py (BERT data preparation; requests/{requests.__version__})"
        self._session.headers["Accept-Encoding"] = "identity"

    def text(self, url: str) -> str:
        """The text of a small file, such as a list of files or checksums. Raises: as `content`."""
        return self.content(url).decode("utf-8", "replace")

    def content(self, url: str, checksum: str | None = None) -> bytes:
        """The bytes of a small file; up to `NUM_CONNECTIONS` threads may call this at a time.

        Raises:
          NotThereError: the server has no such file.
          UserError: the file cannot be fetched, or has another checksum.
        """

        def attempt() -> bytes:
            with self._open(url, {}) as response:
                return response.content

        content = self._with_retries(url, attempt)
        _check(url, hashlib.new(_algorithm(checksum), content).hexdigest(), checksum)
        return content

    def fetch(self, url: str, path: Path, *, checksum: str | None, label: str) -> FileEntry:
        """Fetches `url` to `path`; the entry names the URL.

        Args:
          checksum: ``"<algorithm>:<hex>"`` as published, or None.
          label: of the progress bar.

        Raises:
          NotThereError: the server has no such file.
          UserError: the file cannot be fetched, or has another checksum. Received bytes are kept for the next run, also
            where the disk is full, unless the checksum is wrong.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}{PART_SUFFIX}")
        for outdated in {*path.parent.glob(f"{glob.escape(path.name)}.*{PART_SUFFIX}")} - {part}:
            outdated.unlink()  # of an older dump
        self._with_retries(url, lambda: self._fetch_rest(part, url, label), part)
        try:
            described = describe_file(part, checksum)
        except UserError as error:
            part.unlink()
            raise UserError(f"{url}: {error}; what was fetched is removed") from None
        os.replace(part, path)
        sync(path.parent)
        return dataclasses.replace(described, file=path.name, details={"url": url})

    def _with_retries(self, url: str, attempt: Callable[[], Content], part: Path | None = None) -> Content:
        """What `attempt` returns; a failure that lets `part`, a file, grow begins the count of failures anew.

        Raises: UserError where too many attempts failed, or the server asks for too long a pause.
        """
        num_failures, most_received = 0, _size(part)
        while True:
            try:
                return attempt()
            except requests.RequestException as error:
                reason = _reason(error)
                requested_secs = None if error.response is None else _retry_after_secs(error.response)
            # Compared with the most ever received, because a server may begin anew with each attempt.
            num_failures = 1 if _size(part) > most_received else num_failures + 1
            most_received = max(most_received, _size(part))
            backoff_secs = self._pause_secs * 2 ** (num_failures - 1) if num_failures > 1 else 0.0
            wait_secs = backoff_secs if requested_secs is None else requested_secs
            if num_failures == self._num_attempts or wait_secs > _LONGEST_WAIT_SECS:
                raise UserError(
                    f"{url}: {reason}; given up after {num_failures} failures in a row ({wait_secs:,.0f} s to wait "
                    "now): start the same command again later, it continues where it stopped"
                )
            print(f"{url}: {reason}; trying again in {wait_secs:.0f} s", flush=True)
            time.sleep(wait_secs)

    def _open(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        response = self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECS)
        # Raises if fewer bytes arrive than announced; urllib3 does so by default only since version 2.
        response.raw.enforce_content_length = True
        if response.status_code < 400 or (response.status_code == _NOTHING_LEFT and "Range" in headers):
            return response
        response.close()
        status = f"{response.status_code} {response.reason}"
        if response.status_code in _TRY_AGAIN_LATER:
            raise requests.HTTPError(status, response=response)
        raise (NotThereError if response.status_code in _NOT_THERE else UserError)(f"{url}: {status}")

    def _fetch_rest(self, part: Path, url: str, label: str) -> None:
        offset = _size(part)
        with self._open(url, {"Range": f"bytes={offset}-"} if offset else {}) as response:
            if response.status_code == _NOTHING_LEFT:
                return
            if response.headers.get("Content-Type", "").startswith("text/html"):
                raise UserError(
                    f"{url}: the answer is a web page, not the file: a network that asks for a login, or a proxy? Open "
                    "the address in a browser, then start the same command again, it continues where it stopped"
                )
            if offset and response.status_code != _PARTIAL:
                print(f"{url}: starting from the first byte: the server does not support ranges", flush=True)
                offset = 0
            announced = response.headers.get("Content-Length", "")
            total = offset + int(announced) if announced.isdigit() else None
            with (
                open(part, "ab" if offset else "wb") as file,
                Progress(total=total, initial=offset, unit="B", description=label) as bar,
            ):
                for block in response.iter_content(_BLOCK_BYTES):
                    file.write(block)
                    bar.update(len(block))
                file.flush()
                os.fsync(file.fileno())


def _retry_after_secs(response: requests.Response) -> float | None:
    """The pause that a server asks for by Retry-After; None if it asks for none, or the header is invalid."""
    with contextlib.suppress(InvalidHeader):
        return Retry().get_retry_after(response.raw)
    return None


def _reason(error: requests.RequestException) -> str:
    """The reason for a failure; for a failed connection, the innermost cause, such as "Connection refused"."""
    if error.response is not None:
        return str(error)
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    return f"connection failed ({getattr(cause, 'strerror', None) or repr(cause)})"
