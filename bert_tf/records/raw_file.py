"""Random access to a file's bytes with `pread`.

Files are not memory-mapped: then a failing network file system would end the process with SIGBUS instead of an error
that names the file and the byte, and a page fault would hold the GIL, which `pread` releases for other threads.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bert_tf.base.compiled import compiled_file, load_library
from bert_tf.base.errors import UserError

_SOURCE = Path(__file__).with_name("read_pieces.cpp")


class RawFile:
    """A file open for reading; closed by `close` or when garbage-collected.

    Raises: OSError if it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        descriptor = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor
        status = os.fstat(descriptor)
        self.size, self.modified_ns = status.st_size, status.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on; fewer only if the file ends before that.

        Raises: UserError if the file cannot be read.
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


def read_pieces(files: Sequence[RawFile], which: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Concatenates thousands of small pieces, uint8: `sizes[i]` bytes of ``files[which[i]]`` from `offsets[i]` on.

    Args:
      which, offsets, sizes: int64 [pieces].
    Raises: UserError as `RawFile.read` does, and if a file ends before a piece does.
    """
    content = np.empty(sizes.sum(), np.uint8)
    num_read = 0
    if code := load_library(compiled_file(_SOURCE)):
        descriptors = np.array([file.descriptor for file in files], np.int32)[which]
        pointers = (ctypes.c_void_p(array.ctypes.data) for array in (descriptors, offsets, sizes, content))
        code.read_pieces.restype = ctypes.c_int64
        num_read = code.read_pieces(*pointers, ctypes.c_int64(len(sizes)))
    # For all pieces without compiled code; else for those that a network file system returns in parts, and for an
    # error that names file and byte.
    place = int(sizes[:num_read].sum())
    for number, offset, size in zip(*(array[num_read:].tolist() for array in (which, offsets, sizes))):
        piece = files[number].read(offset, size)
        if len(piece) < size:
            raise UserError(
                f"{files[number].path} ends before byte {offset + size}: it was changed while it was in use; start "
                "again"
            )
        content[place : place + size] = np.frombuffer(piece, np.uint8)
        place += size
    return content


class RawBytes:
    """The interface of `RawFile` for bytes in memory."""

    def __init__(self, content: bytes):
        self._content = content
        self.size = len(content)

    def read(self, offset: int, size: int) -> bytes:
        return self._content[offset : offset + size]
