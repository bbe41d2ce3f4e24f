"""The parts of the project in C++, compiled into the environment; ``python -m bert_tf.base.compiled`` compiles them.

scripts/setup.sh does so. Beside each there is Python with the same results, which takes over without a compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

_SOURCES = Path(__file__).parents[1]


def compiled_file(source: Path) -> Path:
    """Where the environment of the running Python has the compiled code, if at all.

    The name holds a digest of the source, so that checkouts of several versions can share an environment.
    """
    return Path(sys.prefix, "lib", "bert_tf", f"{source.stem}-{_digest(source)[:16]}.so")


@functools.cache
def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def missing() -> list[Path]:
    """The sources that are still to be compiled."""
    return [source for source in sorted(_SOURCES.rglob("*.cpp")) if not compiled_file(source).exists()]


def compile_code(source: Path, path: Path) -> None:
    """Raises: OSError or CalledProcessError, for example without a compiler."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    # Without -march=native: several machines may share an environment.
    subprocess.run([os.environ.get("CXX") or "c++", "-O2", "-shared", "-fPIC", source, "-o", scratch], check=True)
    scratch.replace(path)


@functools.cache
def load_library(path: Path, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL | None:
    """The compiled code; None where it is not there or not for this machine.

    Args:
      kind: `ctypes.PyDLL` keeps Python's lock during a call.
    """
    try:
        return kind(str(path))
    except OSError:
        return None


if __name__ == "__main__":
    for source in missing():
        compile_code(source, compiled_file(source))
