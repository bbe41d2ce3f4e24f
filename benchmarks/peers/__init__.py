"""Environments of the tools that benchmarks compare with: NAME.txt here holds the exact versions of all packages.

An environment is made once, by `python -m venv` and pip, in ``$XDG_CACHE_HOME/bert_tf/peers`` (default ~/.cache),
beside the Horovod that scripts/setup.sh keeps there. Its folder's name holds the digest of the versions and of this
Python's, so that a changed list makes a new one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from bert_tf.base.errors import UserError

HERE = Path(__file__).resolve().parent
NUM_SHOWN_LINES = 3  # of pip's output before it failed


def find_python(name: str) -> str:
    """The Python of a peer's environment, which is created if it does not exist.

    Raises:
      UserError: it cannot be installed.
    """
    requirements = HERE / f"{name}.txt"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bert_tf" / "peers"
    digest = hashlib.sha256(requirements.read_bytes() + platform.python_version().encode()).hexdigest()
    folder = cache / f"{requirements.stem}-{digest[:12]}"
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return str(python)
    shutil.rmtree(folder, ignore_errors=True)  # what a killed pip has left behind
    print(f"peer {name}: installing {requirements.name} into {folder}", file=sys.stderr, flush=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, "--no-deps", "-r", str(requirements)]):
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            output = " / ".join(line.strip() for line in done.stdout.splitlines()[-NUM_SHOWN_LINES:])
            raise UserError(
                f"peer {name} cannot be installed from {requirements.name} ({output}); repair that, or leave peers out "
                "with --no_peers"
            )
    complete.touch()
    return str(python)
