"""Bytes of a file by their place, through `os.pread` and not through a memory map.

A network file system that is slow or dies is then an error that names the file and the byte; behind a memory map it
would be a signal (SIGBUS) that ends the process without a word. And the other threads go on meanwhile: `os.pread`
releases Python's lock, waiting for a mapped page does not.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from bert_tf.base.errors import UserError


class RawFile:
    """An open file that is only read; it is closed when nobody uses it any more, or by `close`.

    Raises: OSError where it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.size, self.modified_ns = status.st_size, status.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on; fewer only where the file ends before.

        Raises: UserError where the file cannot be read.
        """
        try:
            data = os.pread(self._descriptor, size, offset)
            # A network file system may give less than was asked for.
            while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read at byte {offset} ({error.strerror}); look at the disk or the network "
                "file system that it lies on, and start again"
            ) from error
        return data


class RawBytes:
    """What `RawFile` offers, for bytes in memory."""

    def __init__(self, content: bytes):
        self._content = content
        self.size = len(content)

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]
