"""Random access to a file's bytes by `os.pread`.

Not by a memory map: there, a failing network file system ends the process with SIGBUS instead of an error that names
the file and the byte, and waiting for a page holds the GIL, which `os.pread` releases for the other threads.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError


class RawFile:
    """A file open for reading; closed by `close` or when garbage-collected.

    Raises: OSError where it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.size, self.modified_ns = status.st_size, status.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on; fewer only where the file ends before.

        Raises: UserError where the file cannot be read.
        """
        try:
            data = os.pread(self.descriptor, size, offset)
            # A network file system may return fewer bytes than requested.
            while len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read at byte {offset} ({error.strerror}); look at the disk or the network "
                "file system that it lies on, and start again"
            ) from error
        return data


def read_pieces(files: Sequence[RawFile], offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Thousands of small pieces, one after the other: `sizes[i]` bytes of `files[i]` from `offsets[i]` on.

    Raises: UserError as `RawFile.read` does.
    """
    try:
        data = b"".join(map(os.pread, [file.descriptor for file in files], sizes, offsets))
    except OSError:
        data = b""
    if len(data) == sum(sizes):
        return data
    # With an error that names file and byte, and pieces that a network file system gives in parts.
    return b"".join(file.read(offset, size) for file, offset, size in zip(files, offsets, sizes))


class RawBytes:
    """The interface of `RawFile` for bytes in memory."""

    def __init__(self, content: bytes):
        self._content = content
        self.size = len(content)

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]
