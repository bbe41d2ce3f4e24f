"""Kernels compiled by Triton for a kind of card, and cached for the next start.

Triton compiles each kernel in a process of its own, several at the same time: it brings its own LLVM, and compiling
keeps a core busy for seconds. The results are cached in ``$XDG_CACHE_HOME/bert_tf/kernels``, one file per kernel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.files import atomic_file, read_bytes

_SOURCES = Path(__file__).parent
COMPILE_LIMIT_SECS = 300.0
cache_failures: list[str] = []  # why kernels of this process could not be cached: the next start compiles them again


class KernelsUnavailable(Exception):
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


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Machine code, and what its launch needs."""

    image: bytes
    name: str
    num_warps: int
    shared_bytes: int


def compile_kernels(kernels: Sequence[Kernel], capability: tuple[int, int]) -> list[Compiled]:
    """The machine code of each kernel for cards of a compute capability: cached, or compiled now.

    Raises: KernelsUnavailable.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        raise KernelsUnavailable("the package triton is not installed (pip install triton)") from None
    files = [_cache_file(kernel, capability, version) for kernel in kernels]
    ready = {file: compiled for file in files if (compiled := _read_cached(file))}
    missing = {file: kernel for file, kernel in zip(files, kernels) if file not in ready}
    for file, answer in _run_compilers(missing, capability).items() if missing else ():
        ready[file] = _parse(answer)
        try:
            with atomic_file(file) as cached:
                cached.write(_digest(answer) + b"\n" + answer)
        except OSError as error:
            cache_failures.append(f"{file.parent}: {error.strerror}")
    return [ready[file] for file in files]


def _cache_file(kernel: Kernel, capability: tuple[int, int], version: str) -> Path:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise KernelsUnavailable(
            "this user has no home folder to cache them in: XDG_CACHE_HOME can name another"
        ) from None
    key = hashlib.sha256(json.dumps([version, capability, dataclasses.asdict(kernel)]).encode())
    for source in sorted(_SOURCES.glob("*.py")):  # kernels call functions of other modules
        key.update(source.read_bytes())
    return cache / "bert_tf" / "kernels" / f"{kernel.function}-{key.hexdigest()[:24]}.kernel"


def _read_cached(file: Path) -> Compiled | None:
    """A cached kernel; None if there is none, or if it is damaged."""
    try:
        digest, _, answer = read_bytes(file).partition(b"\n")
    except OSError:
        return None
    return _parse(answer) if digest == _digest(answer) else None


def _digest(answer: bytes) -> bytes:
    return hashlib.sha256(answer).hexdigest().encode()


def _parse(answer: bytes) -> Compiled:
    """Decodes what `main` answers."""
    head, _, image = answer.partition(b"\n")
    return Compiled(image, **json.loads(head))


def _run_compilers(kernels: Mapping[Path, Kernel], capability: tuple[int, int]) -> dict[Path, bytes]:
    """The answers of one process per kernel, by cache file.

    When it returns or raises, all processes have ended and their files are gone.
    """
    processes: dict[Path, subprocess.Popen[bytes]] = {}
    with tempfile.TemporaryDirectory() as folder:
        answers = {file: Path(folder, file.name) for file in kernels}
        try:
            for file, kernel in kernels.items():
                processes[file] = _start(kernel, capability, answers[file])
            for file, process in processes.items():
                _wait_for(process, answers[file], kernels[file].function)
            return {file: answer.read_bytes() for file, answer in answers.items()}
        except OSError as error:
            raise KernelsUnavailable(f"Triton cannot be started: {error.strerror}") from None
        finally:
            for process in processes.values():
                _end(process)


def _start(kernel: Kernel, capability: tuple[int, int], answer: Path) -> subprocess.Popen[bytes]:
    request = json.dumps({"kernel": dataclasses.asdict(kernel), "capability": capability})
    package_root = str(_SOURCES.parents[2])
    paths = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
    # Triton has a cache of its own, too: beside ours it is of no use, and its folder may not be writable.
    folders = dict.fromkeys(["TRITON_CACHE_DIR", "TMPDIR"], str(answer.parent))
    environ = {**os.environ, **folders, "PYTHONPATH": os.pathsep.join(paths), "TRITON_DEFAULT_FP_FUSION": "1"}
    environ.pop("TRITON_INTERPRET", None)
    return subprocess.Popen(
        [sys.executable, "-m", __name__, request, answer],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # for `_end`
    )


def _wait_for(process: subprocess.Popen[bytes], answer: Path, function: str) -> None:
    """Raises: KernelsUnavailable, if the process does not answer."""
    try:
        _, errors = process.communicate(timeout=COMPILE_LIMIT_SECS)
    except subprocess.TimeoutExpired:
        raise KernelsUnavailable(f"Triton took over {COMPILE_LIMIT_SECS:g} s to compile {function}") from None
    if process.returncode or not answer.exists():
        messages = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise KernelsUnavailable(f"Triton does not compile {function}: {messages[-1][:300]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that still runs, and the assembler that Triton may have started in it."""
    with process:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


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
    by_index = {(function.arg_names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(
        ASTSource(function, signature, constexprs=by_index, attrs=aligned),
        target=GPUTarget("cuda", 10 * capability[0] + capability[1], 32),
        options={"num_warps": kernel["num_warps"], "num_stages": kernel["num_stages"]},
    )
    metadata = compiled.metadata
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise ValueError("it asks for memory besides the operands, which launch.cpp does not give it")
    return Compiled(compiled.asm["cubin"], metadata.name, metadata.num_warps, metadata.shared)


def main(request: str, answer: str) -> None:
    """Answers a request of `_start` by writing a file: a line of JSON, then the machine code."""
    compiled = dataclasses.asdict(_compile(**json.loads(request)))
    image = compiled.pop("image")
    Path(answer).write_bytes(json.dumps(compiled).encode() + b"\n" + image)


if __name__ == "__main__":
    main(*sys.argv[1:])
