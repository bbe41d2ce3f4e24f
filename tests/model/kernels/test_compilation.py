"""Kernels are compiled once and kept; whatever goes wrong is one line, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest

from bert_tf.model.backends import GpuStep
from bert_tf.model.kernels import compilation
from bert_tf.model.kernels.compilation import Kernel, KernelsUnavailable, compile_kernels

if importlib.util.find_spec("triton") is None:  # nor imported: it is for other processes
    pytest.skip("Triton, which compiles the kernels, is not installed", allow_module_level=True)

A100 = (8, 0)
# One of a second.
CONSTANTS = (("WIDTH", 128), ("COLUMNS", 128), ("ROWS", 8), ("EXACT", False))
KERNEL = Kernel("between_matmuls", "bias_gelu_forward", ("*fp16", "*fp32", "*fp16"), CONSTANTS, 4, 1)
OTHER = dataclasses.replace(KERNEL, types=("*bf16", "*fp32", "*bf16"))


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The processes that were started, with an empty folder for what is kept and for what Triton writes."""
    processes, start = [], compilation._start

    def noted(*arguments):
        processes.append(start(*arguments))
        return processes[-1]

    monkeypatch.setattr(compilation, "_start", noted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    yield processes
    assert all(process.poll() is not None for process in processes), "nothing goes on"
    assert not list((tmp_path / "scratch").iterdir()) and not (tmp_path / "home").exists()


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("*.*"))


def test_a_second_start_compiles_nothing(tmp_path, started):
    first = compile_kernels([KERNEL, OTHER, KERNEL], A100)
    assert len(started) == 2 and first[0] is first[2] and first[0].image != first[1].image
    assert first[0].name == "bias_gelu_forward" and first[0].num_warps == 4 and first[0].image[:4] == b"\x7fELF"
    names = [path.name.partition("-")[0] for path in kept(tmp_path)]
    assert names == ["bias_gelu_forward"] * 2
    assert compile_kernels([OTHER, KERNEL], A100) == first[1::-1] and len(started) == 2


def test_another_card_version_or_source_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = shutil.copytree(compilation._SOURCES, tmp_path / "sources")
    file = compilation._cache_file(KERNEL, A100, "3.9.0")
    others = [compilation._cache_file(KERNEL, (9, 0), "3.9.0"), compilation._cache_file(KERNEL, A100, "3.9.1")]
    others.append(compilation._cache_file(OTHER, A100, "3.9.0"))
    monkeypatch.setattr(compilation, "_SOURCES", folder)
    assert compilation._cache_file(KERNEL, A100, "3.9.0") == file
    with open(folder / "dropout_bits.py", "a") as source:  # a function of it is part of this kernel
        source.write("# Changed.\n")
    others.append(compilation._cache_file(KERNEL, A100, "3.9.0"))
    assert len({file, *others}) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "number of warps", "digest"])
def test_a_damaged_file_is_made_again(tmp_path, started, damage):
    first = compile_kernels([KERNEL], A100)
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    damaged = {"empty": b"", "cut": whole[: len(whole) // 2], "digest": b"\xff" + whole}
    file.write_bytes(damaged.get(damage, whole.replace(b'num_warps": 4', b'num_warps": 5')))
    assert compile_kernels([KERNEL], A100) == first and len(started) == 2
    assert kept(tmp_path) == [file] and file.read_bytes() == whole


def test_a_full_disk_and_a_noisy_python_that_is_told_to_interpret(tmp_path, started, monkeypatch):
    """What is printed is no answer, and a user's TRITON_INTERPRET is switched off."""
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    monkeypatch.setattr(compilation, "cache_failures", [])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    (tmp_path / "sitecustomize.py").write_text("print('a greeting')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert compile_kernels([KERNEL, OTHER], A100)[0].image[:4] == b"\x7fELF" and kept(tmp_path) == []
    why = f"{tmp_path}/cache/bert_tf/kernels: No space left on device"
    assert GpuStep().remarks == [f"kernels of our own are compiled at each start, not kept: {why}"]


# --- Without Triton, or with one that does not work ----------------------------------------------


def unavailable(*kernels: Kernel) -> str:
    """The line that says why there are none."""
    with pytest.raises(KernelsUnavailable) as caught:
        compile_kernels(kernels or [KERNEL], A100)
    line = str(caught.value)
    assert line and "\n" not in line and "Traceback" not in line and len(line) < 400
    return line


@pytest.mark.parametrize(
    ("place", "name", "error", "said"),
    [
        (importlib.metadata, "version", importlib.metadata.PackageNotFoundError("triton"), "the package triton is not"),
        (subprocess, "Popen", OSError(errno.ENOMEM, "No memory"), "Triton cannot be started: No memory"),
        (Path, "home", RuntimeError("no home directory"), "this user has no home folder to cache them in: XDG_CACHE_"),
    ],
    ids=["package", "memory", "home"],
)
def test_what_a_machine_lacks(monkeypatch, started, place, name, error, said):
    monkeypatch.setattr(place, name, mock.Mock(side_effect=error))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert unavailable().startswith(said) and not started


@pytest.fixture
def triton(tmp_path, monkeypatch):
    """Puts a package in Triton's place."""

    def write(text: str) -> None:
        (tmp_path / "packages/triton").mkdir(parents=True)
        (tmp_path / "packages/triton/__init__.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise ImportError('libtriton.so: no such file')", ": ImportError: libtriton.so: no such file"),
        ("raise RuntimeError('a\\nb' + 1000 * 'c')", ": b" + 299 * "c"),
        ("import os; os.kill(os.getpid(), 9)", ": exit code -9"),
        ("import sys; sys.exit()", ": exit code 0"),
    ],
)
def test_a_triton_that_fails(tmp_path, started, triton, text, said):
    triton(text)
    assert unavailable(KERNEL, OTHER) == f"Triton does not compile bias_gelu_forward{said}"
    assert len(started) == 2 and kept(tmp_path) == []


def test_a_triton_that_hangs(tmp_path, started, triton, monkeypatch):
    """With the assembler that it has started; both processes are waited for no longer than the limit."""
    triton("import os, subprocess, sys\nsubprocess.run(['sleep', '1000'])")
    monkeypatch.setattr(compilation, "COMPILE_LIMIT_SECS", 2.0)
    assert unavailable(KERNEL, OTHER) == "Triton took over 2 s to compile bias_gelu_forward"
    assert len(started) == 2 and kept(tmp_path) == []
    for process in started:
        with pytest.raises(ProcessLookupError):  # the whole group has ended; the last of it may need a moment
            for _ in range(1000):
                os.killpg(process.pid, 0)
                time.sleep(0.01)
