"""The project's C++, compiled into the environment by ``python -m bert_tf.base.compiled``, as scripts/setup.sh does.

Where it is not compiled, Python code with the same results is used.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bert_tf.base.errors import UserError, exit_on_user_error

_SOURCES = Path(__file__).parents[1]


def compiled_file(source: Path) -> Path:
    """The path of the compiled code in the running Python's environment; the file may be missing.

    The name contains a digest of the source, so that checkouts of several versions can share an environment.
    """
    return Path(sys.prefix, "lib", "bert_tf", f"{source.stem}-{_digest(source)[:16]}.so")


@functools.cache
def _digest(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def uncompiled_sources() -> list[Path]:
    """The sources that are still to be compiled."""
    return [source for source in sorted(_SOURCES.rglob("*.cpp")) if not compiled_file(source).exists()]


def compile_code(source: Path, path: Path) -> None:
    """Compiles `source` to `path`. Raises: OSError or CalledProcessError, for example without a compiler."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    # Without -march=native, because several machines may share an environment.
    subprocess.run([os.environ.get("CXX") or "c++", "-O2", "-shared", "-fPIC", source, "-o", scratch], check=True)
    scratch.replace(path)


@functools.cache
def load_library(path: Path) -> ctypes.PyDLL | None:
    """The compiled code, which holds the GIL during a call; None if it is missing or not for this machine."""
    try:
        return ctypes.PyDLL(str(path))
    except OSError:
        return None


@exit_on_user_error
def main(_: Sequence[str]) -> int:
    for source in uncompiled_sources():
        try:
            compile_code(source, compiled_file(source))
        except (OSError, subprocess.CalledProcessError) as error:
            raise UserError(
                f"{source.name} was not compiled ({error}); install a C++ compiler, or name one by CXX=; until then "
                "Python does the same, several times slower"
            ) from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
