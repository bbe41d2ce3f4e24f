"""Kernels compiled by Triton for a kind of card, and kept for the next start.

Triton runs in processes of its own, several kernels at the same time: it brings its own LLVM, and compiling keeps a
core busy for seconds. What it made is kept in ``$XDG_CACHE_HOME/bert_tf/kernels``, in one file a kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parent
COMPILE_LIMIT_SECS = 300.0


class Unavailable(Exception):
    """Kernels cannot be used here; the text says why."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What determines a kernel's machine code, besides the card, Triton and the source.

    types: Triton's names of the parameters' types, in their order, such as ``*i32``.
    constants: the values of the last parameters, which are `tl.constexpr`.
    """

    module: str  # in this package
    function: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, float], ...]
    num_warps: int
    num_stages: int

    @classmethod
    def of(
        cls,
        module: str,
        function: str,
        types: Sequence[str],
        constants: Mapping[str, float],
        num_warps: int,
        num_stages: int,
    ) -> Kernel:
        return cls(module, function, tuple(types), tuple(constants.items()), num_warps, num_stages)


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Machine code, and what its launch needs."""

    image: bytes
    name: str
    num_warps: int
    shared_bytes: int


def compile_kernels(kernels: Sequence[Kernel], capability: tuple[int, int]) -> list[Compiled]:
    """The machine code of each kernel for cards of a compute capability: kept, or made now.

    Raises: Unavailable.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable("the package triton is not installed (pip install triton)") from None
    files = [_kept_file(kernel, capability, version) for kernel in kernels]
    missing = {file: kernel for file, kernel in zip(files, kernels) if _read(file) is None}
    made = {file: _start(kernel, capability) for file, kernel in missing.items()}
    results = {file: _finish(process, missing[file]) for file, process in made.items()}
    for file, compiled in results.items():
        _keep(file, compiled)
    found = [results.get(file) or _read(file) for file in files]
    assert None not in found
    return found  # type: ignore[return-value]


def _kept_file(kernel: Kernel, capability: tuple[int, int], version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256((_SOURCES / f"{kernel.module}.py").read_bytes())
    key.update(json.dumps([version, capability, dataclasses.asdict(kernel)]).encode())
    return cache / "bert_tf" / "kernels" / f"{kernel.function}-{key.hexdigest()[:24]}.kernel"


def _read(file: Path) -> Compiled | None:
    """A kept kernel; None if there is none, or if it is damaged."""
    try:
        head, _, image = file.read_bytes().partition(b"\n")
        facts = json.loads(head)
        if hashlib.sha256(image).hexdigest() != facts.pop("sha256"):
            return None
        return Compiled(image, **facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _keep(file: Path, compiled: Compiled) -> None:
    """Writes the file, whole or not at all; without space or permission the next start compiles again."""
    facts = dataclasses.asdict(compiled)
    image = facts.pop("image")
    head = json.dumps({**facts, "sha256": hashlib.sha256(image).hexdigest()}).encode()
    scratch = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            scratch.write_bytes(head + b"\n" + image)
            scratch.replace(file)
        except OSError:
            scratch.unlink(missing_ok=True)


def _start(kernel: Kernel, capability: tuple[int, int]) -> subprocess.Popen[bytes]:
    request = json.dumps({"kernel": dataclasses.asdict(kernel), "capability": capability})
    package_root = str(_SOURCES.parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TRITON_DEFAULT_FP_FUSION": "1"}
    environ.pop("TRITON_INTERPRET", None)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, request],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _finish(process: subprocess.Popen[bytes], kernel: Kernel) -> Compiled:
    try:
        answer, errors = process.communicate(timeout=COMPILE_LIMIT_SECS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Unavailable(f"Triton took over {COMPILE_LIMIT_SECS:g} s to compile {kernel.function}") from None
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise Unavailable(f"Triton does not compile {kernel.function}: {said[-1][:300]}")
    head, _, image = answer.partition(b"\n")
    return Compiled(image, **json.loads(head))


def _compile(kernel: dict[str, Any], capability: Sequence[int]) -> Compiled:
    """Runs Triton in this process."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(f"{__package__}.{kernel['module']}"), kernel["function"])
    constants = dict(map(tuple, kernel["constants"]))
    types = iter(kernel["types"])
    signature = {name: "constexpr" if name in constants else next(types) for name in function.arg_names}
    # XLA's buffers are aligned.
    aligned = {
        (number,): [["tt.divisibility", 16]] for number, kind in enumerate(signature.values()) if kind.startswith("*")
    }
    by_place = {(function.arg_names.index(name),): value for name, value in constants.items()}
    made = triton.compile(
        ASTSource(function, signature, constexprs=by_place, attrs=aligned),
        target=GPUTarget("cuda", 10 * capability[0] + capability[1], 32),
        options={"num_warps": kernel["num_warps"], "num_stages": kernel["num_stages"]},
    )
    return Compiled(made.asm["cubin"], made.metadata.name, made.metadata.num_warps, made.metadata.shared)


def main(request: str) -> None:
    """Answers a request of `_start`: a line of JSON, and the machine code."""
    compiled = dataclasses.asdict(_compile(**json.loads(request)))
    image = compiled.pop("image")
    sys.stdout.buffer.write(json.dumps(compiled).encode() + b"\n" + image)


if __name__ == "__main__":
    main(sys.argv[1])
