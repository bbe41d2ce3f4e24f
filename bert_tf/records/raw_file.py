"""Random access to a file's bytes with `pread`.

Files are not memory-mapped: then a failing network file system would end the process with SIGBUS instead of an error
that names the file and the byte, and a page fault would hold the GIL, which `pread` releases for other threads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import naming_unreadable, open_file

CHECKSUM_BYTES = 4


def checksum(content: bytes | bytearray) -> bytes:
    """The CRC-32C, little-endian, with which our own files end."""
    return google_crc32c.value(bytes(content)).to_bytes(CHECKSUM_BYTES, "little")


class RawFile:
    """A file open for reading; closed by `close` or when garbage-collected.

    Raises: OSError if it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        file = open_file(path)
        self.close = weakref.finalize(self, file.close)
        self.descriptor = descriptor = file.fileno()
        status = os.fstat(descriptor)
        self.size, self.modified_ns = status.st_size, status.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """The `size` bytes from `offset` on. Raises: UserError if the file cannot be read or is too short."""
        data, num_present = b"", min(size, self.size - offset)
        with naming_unreadable(
            f"{self.path}, byte {offset},", "look at the disk or the network file system, and start again"
        ):
            # A network file system may return fewer bytes than requested.
            while len(data) < num_present and (
                chunk := os.pread(self.descriptor, num_present - len(data), offset + len(data))
            ):
                data += chunk
        if len(data) < size:
            raise UserError(
                f"{self.path} ends before byte {offset + size}: it was cut short, or changed while it was in use"
            )
        return data


def read_pieces(
    files: Sequence[RawFile], file_numbers: np.ndarray, offsets: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """Concatenates thousands of small pieces, uint8.

    Piece i is `sizes[i]` bytes of ``files[file_numbers[i]]`` from `offsets[i]` on.

    Args:
      file_numbers, offsets, sizes: integers [pieces].
    Raises: UserError as `RawFile.read` does.
    """
    descriptors = np.array([file.descriptor for file in files])[file_numbers]
    pieces = zip(descriptors.tolist(), sizes.tolist(), offsets.tolist())
    content = b""
    with contextlib.suppress(OSError):
        content = b"".join(itertools.starmap(os.pread, pieces))
    if len(content) < sizes.sum():
        # A network file system has returned less than requested, or there is an error to be named.
        pieces = zip(file_numbers.tolist(), offsets.tolist(), sizes.tolist())
        content = b"".join(files[number].read(offset, size) for number, offset, size in pieces)
    return np.frombuffer(content, np.uint8)
