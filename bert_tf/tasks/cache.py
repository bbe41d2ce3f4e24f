"""Caches a task's rows in a file, so that the next start need not make them again."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any, Callable, TypeVar

import numpy as np

from bert_tf.base.files import atomic_file, naming_unreadable

# Part of every row's key: raise it whenever the same inputs would give other rows in any task.
CACHE_VERSION = 2
# Part of every hash. Hashes are settings of runs, too, which go on only with the same ones: it never changes.
_BEGINNING = b"version 1"

Arrays = TypeVar("Arrays", bound=Any)  # a NamedTuple of NumPy arrays


def content_key(*parts: object) -> str:
    """A hash of bytes, of the bytes of each `Path`, and of the representation of anything else."""
    total = hashlib.sha256(_BEGINNING)
    for part in parts:
        with naming_unreadable(str(part)):
            content = part.read_bytes() if isinstance(part, Path) else part
        if not isinstance(content, bytes):
            content = repr(content).encode("utf-8")
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()[:20]


def cached_arrays(path: Path, kind: type[Arrays], make: Callable[[], Arrays], *, write: bool) -> Arrays:
    """The arrays stored at `path`, else those that `make` makes, which are stored at `path` if `write`.

    A cache that cannot be read is made again. If it cannot be written, there is only a warning, as it merely
    saves time.

    Args:
      kind: a NamedTuple whose fields are arrays, none of them of objects.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return kind(**{name: arrays[name] for name in kind._fields})
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        made = make()
    if write:
        # Packed in memory, because if the file cannot be written NumPy's archive complains when it is deleted.
        packed = io.BytesIO()
        np.savez_compressed(packed, **made._asdict())
        try:
            with atomic_file(path) as file:
                file.write(packed.getbuffer())
        except OSError as error:
            print(
                f"warning: {path} cannot be written ({error.strerror}); the next start makes these rows again",
                file=sys.stderr,
                flush=True,
            )
    return made
