"""Fetches files over HTTP: resumes after a dropped connection, retries with pauses, verifies checksums.

Received bytes are kept in ``<name>.part``; ``<name>.part.json`` says of which URL and version they are.
The file gets its own name only when it is complete and its checksum is right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, TypeVar

import requests
from urllib3.exceptions import MaxRetryError
from urllib3.util import Retry

from bert_tf.base.errors import UserError
from bert_tf.base.files import sync
from bert_tf.base.progress import Progress
from bert_tf.prepare.running.stage import write_json
from bert_tf.records.manifest import FileEntry

# Small, because an incomplete block is lost when a connection drops.
_BLOCK_BYTES = 1 << 15
_TIMEOUT_SECS = 60.0
# If a server asks for a longer pause, the program ends instead of waiting.
_LONGEST_WAIT_SECS = 600.0
_TRY_AGAIN_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")

Answer = TypeVar("Answer")


class NotThereError(UserError):
    """The server has no such file."""


class _TryAgain(Exception):
    """A response after which a retry may succeed; it may ask for a certain pause."""

    def __init__(self, reason: str, answer: requests.Response):
        super().__init__(reason)
        self.answer = answer


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


class _Part:
    """The received bytes of one file, with a note of their URL, version (for the header If-Range) and total number."""

    def __init__(self, path: Path, url: str):
        self.path = path.with_name(path.name + ".part")
        self._note_path = path.with_name(path.name + ".part.json")
        self._url = url
        self.note: dict[str, Any] = {}
        with contextlib.suppress(FileNotFoundError, ValueError):
            note = json.loads(self._note_path.read_text(encoding="utf-8"))
            self.note = note if note["url"] == url else {}

    @property
    def num_bytes(self) -> int:
        return self.path.stat().st_size if self.note and self.path.exists() else 0

    @property
    def is_whole(self) -> bool:
        return bool(self.note) and self.num_bytes == self.note["total_bytes"]

    def begin(self, version: str | None, total_bytes: int | None) -> None:
        # The note is written before the bytes: a fetch never resumes from bytes without a note or of another version.
        self.note = {"url": self._url, "version": version, "total_bytes": total_bytes}
        write_json(self._note_path, self.note)
        self.path.write_bytes(b"")

    def forget(self) -> None:
        self.note = {}
        for path in (self.path, self._note_path):
            path.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        os.replace(self.path, path)
        self._note_path.unlink(missing_ok=True)
        sync(path.parent)


class Client:
    """Fetches files; gives up after `num_attempts` attempts in a row without new bytes.

    The second attempt follows at once; the pause before each further one is twice the previous pause.
    """

    def __init__(self, num_attempts: int = 5, pause_secs: float = 2.0):
        self._retry = Retry(total=num_attempts - 1, backoff_factor=pause_secs)
        self._session = requests.Session()
        # Wikimedia refuses clients without a User-Agent; "identity" keeps compressed files compressed.
        self._session.headers.update(
            {
                "User-Agent": f"bertPrep.py (BERT data preparation; requests/{requests.__version__})",
                "Accept-Encoding": "identity",
            }
        )

    def text(self, url: str, remedy: str) -> str:
        """The text of a small file, such as a list of files or checksums.

        Raises:
          NotThereError: the server has no such file.
          UserError: the file cannot be fetched; the message ends in `remedy`.
        """

        def attempt() -> str:
            with self._open(url, {}, remedy) as response:
                return response.content.decode("utf-8", "replace")

        return self._patiently(url, attempt, lambda: 0, remedy)

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
        part = _Part(path, url)
        if not part.is_whole:
            self._patiently(
                url,
                lambda: self._fetch_rest(part, url, has_checksum=bool(checksum), remedy=remedy, label=label),
                lambda: part.num_bytes,
                remedy,
            )
        try:
            described = describe_file(part.path, checksum)
        except UserError as error:
            part.forget()
            raise UserError(
                f"{url}: {error}: removed, because it was damaged in transit, has changed between two of its parts, or "
                f"is not the published file: start the same command again to fetch it anew; or {remedy}"
            ) from None
        part.finish(path)
        return dataclasses.replace(described, file=path.name, details={"url": url})

    def _patiently(
        self, url: str, attempt: Callable[[], Answer], progress_made: Callable[[], int], remedy: str
    ) -> Answer:
        retry, most = self._retry, progress_made()
        while True:
            try:
                return attempt()
            except (requests.RequestException, _TryAgain) as error:
                reason = _in_words(error)
                # Compared with the most ever received, because a server may begin anew with each attempt.
                if progress_made() > most:
                    retry, most = self._retry, progress_made()
                try:
                    retry = retry.increment("GET", url)
                except MaxRetryError:
                    raise UserError(
                        f"{url}: {reason}, {len(retry.history) + 1} times in a row; start the same command again "
                        f"later, it continues where it stopped; or {remedy}"
                    ) from None
                asked = retry.get_retry_after(error.answer.raw) if isinstance(error, _TryAgain) else None
                wait_secs = retry.get_backoff_time() if asked is None else asked
                if wait_secs > _LONGEST_WAIT_SECS:
                    raise UserError(
                        f"{url}: {reason}, and asks for a pause of at least {wait_secs:,.0f} s; "
                        f"start the same command again after that; or {remedy}"
                    ) from None
                print(f"{url}: {reason}; trying again in {wait_secs:.0f} s", flush=True)
                time.sleep(wait_secs)

    def _open(self, url: str, headers: Mapping[str, str], remedy: str) -> requests.Response:
        response = self._session.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECS)
        # Makes it an error if fewer bytes arrive than announced; this is the default only since version 2 of urllib3.
        response.raw.enforce_content_length = True
        status = f"{response.status_code} {response.reason}"
        if response.status_code < 400 or response.status_code == 416:
            return response
        response.close()
        if response.status_code in _TRY_AGAIN_LATER:
            raise _TryAgain(status, response)
        if response.status_code in (404, 410):
            raise NotThereError(f"{url}: {status}: the server does not have this file (any more); {remedy}")
        raise UserError(f"{url}: {status}; {remedy}")

    def _fetch_rest(self, part: _Part, url: str, *, has_checksum: bool, remedy: str, label: str) -> None:
        # With neither version nor checksum, resuming with the rest of another version would go unnoticed.
        version = part.note.get("version")
        offset = part.num_bytes if version or has_checksum else 0
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        if offset and version:
            headers["If-Range"] = version
        with self._open(url, headers, remedy) as response:
            start, total = _content_range(response)
            if response.status_code == 416 and total == offset:
                return
            if response.status_code in (206, 416):
                # Compared, because some servers ignore If-Range.
                pairs = ((_version(response), version), (total, part.note.get("total_bytes")))
                if start != offset or any(None not in pair and pair[0] != pair[1] for pair in pairs):
                    part.forget()
                    raise _TryAgain("the file has changed since", response)
            else:
                if offset:
                    print(
                        f"{url}: starting from the first byte: the file has changed, or the server "
                        "does not support ranges",
                        flush=True,
                    )
                part.begin(_version(response), _length(response))
                offset = 0
            _write_rest(response, part, offset, label)


def _write_rest(response: requests.Response, part: _Part, offset: int, label: str) -> None:
    length = _length(response)
    free = shutil.disk_usage(part.path.parent).free
    if length is not None and length > free:
        raise UserError(
            f"{part.path.parent}: {length:,} bytes are still to come and {free:,} are "
            f"free on this disk: make room, or set BERT_PREP_WORKING_DIR to another one"
        )
    total = None if length is None else offset + length
    with open(part.path, "ab") as file, Progress(total=total, initial=offset, unit="B", description=label) as bar:
        for block in response.iter_content(_BLOCK_BYTES):
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())


def _length(response: requests.Response) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _version(response: requests.Response) -> str | None:
    """A strong ETag, else Last-Modified."""
    etag = response.headers.get("ETag")
    return etag if etag and etag.startswith('"') else response.headers.get("Last-Modified")


def _content_range(response: requests.Response) -> tuple[int | None, int | None]:
    """First byte and total of ``bytes 5-9/10`` or ``bytes */10``; None for a number that is not given."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if match is None:
        return None, None
    start, total = (int(text) if text and text != "*" else None for text in match.groups())
    return start, total


def _in_words(error: Exception) -> str:
    """The reason for a failure; for a failed connection, the innermost cause, such as "Connection refused"."""
    if isinstance(error, _TryAgain):
        return str(error)
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    missing = getattr(cause, "expected", None)
    words = f"{missing:,} more bytes were to come" if missing else getattr(cause, "strerror", None) or str(cause)
    return f"connection failed ({words or type(cause).__name__})"
