"""Which TensorFlow and Horovod are installed, and whether the project and this machine's GPUs can use them.

Neither is imported, because that takes seconds. A check raises `UserError`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import runpy
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.base.machine.hardware import compute_capabilities

SETUP = "'bash scripts/setup.sh'"
# The versions of TensorFlow on which the tests pass; setup.sh installs those that have a folder in requirements/.
SUPPORTED = ("2.15", "2.17", "2.18", "2.19", "2.20", "2.21")
_LAST_WITH_KERAS_2 = (2, 15)
# Before this version CUDA has no compiler and no libraries for GPUs from this compute capability on.
_CUDA_FOR_BLACKWELL, _BLACKWELL = (12, 8), (10, 0)
_CODE = re.compile(r"(sm|compute)_(\d+)(\d)")


def is_installed(name: str) -> bool:
    """Whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent package
        return False


def tensorflow_version() -> str | None:
    """The version of the installed TensorFlow; None if it is not installed as a package."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check_temporary_folder() -> None:
    """Checks that there is room for temporary files; without it TensorFlow and Horovod fail as if they were damaged."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(
            f"{error.strerror}, which TensorFlow needs; make room there, or name a folder of yours by TMPDIR"
        ) from None


def check_tensorflow(num_gpus: int) -> None:
    """Checks the installed TensorFlow's version, its Keras, its code for the GPUs, and what it needs to start."""
    check_temporary_folder()
    if version := tensorflow_version():
        check_version(version)
    check_gpu_code(_read_build_info(), num_gpus)


def check_version(version: str) -> None:
    """Checks that the project runs on this version of TensorFlow, and that the packages it needs are installed."""
    number = ".".join(version.split(".")[:2])
    if number not in SUPPORTED:
        raise UserError(
            f"TensorFlow {version} is installed, and one of {', '.join(SUPPORTED)} is needed: {SETUP} installs one "
            "(images: docs/machines.md)"
        )
    if not contains_keras_2(version) and not is_installed("tf_keras"):
        raise UserError(
            f"TensorFlow {version} contains Keras 3, and the model needs Keras 2, the package tf_keras: {SETUP} "
            f"installs it, or 'pip install --no-deps tf_keras=={number}.*'"
        )
    if not is_installed("tensorboard"):  # up to 2.20 TensorFlow needs it
        raise UserError(f"TensorFlow {version} writes no summaries without TensorBoard: pip install tensorboard")


def contains_keras_2(version: str) -> bool:
    """Whether Keras 2 is a part of this TensorFlow; all later ones contain Keras 3."""
    return tuple(map(int, version.split(".")[:2])) <= _LAST_WITH_KERAS_2


# --- GPUs ----------------------------------------------------------------------------------------


def check_gpu_code(build_info: Mapping[str, Any], num_gpus: int) -> None:
    """Checks that TensorFlow has code for the GPUs.

    Args:
      build_info: what ``tf.sysconfig.get_build_info()`` returns; without CUDA it uses no GPU.
      num_gpus: the number of this machine's GPUs that a program may use. The numbers in CUDA_VISIBLE_DEVICES do not
        tell which GPUs those are; if as many GPUs have code, they are assumed to be these.
    """
    present = compute_capabilities() if num_gpus and build_info.get("cuda_compute_capabilities") else []
    unsupported = [capability for capability in present if not _has_code(build_info, capability)]
    if unsupported and num_gpus > len(present) - len(unsupported):
        major, minor = max(unsupported)
        raise UserError(
            f"this TensorFlow has no code for a GPU of compute capability {major}.{minor} (docs/machines.md says which "
            "has); CUDA_VISIBLE_DEVICES chooses another GPU, DEVICE=cpu (--device=cpu) the CPU"
        )


def _has_code(build_info: Mapping[str, Any], capability: tuple[int, int]) -> bool:
    """Whether there is code that a GPU runs: of its generation (sm_), or for the driver to compile (compute_).

    Source: CUDA C++ Programming Guide, "Binary Compatibility" and "PTX Compatibility".
    """
    cuda = tuple(map(int, re.findall(r"\d+", str(build_info.get("cuda_version")))[:2]))
    if cuda and cuda < _CUDA_FOR_BLACKWELL and capability >= _BLACKWELL:
        return False
    codes = _CODE.findall(" ".join(build_info["cuda_compute_capabilities"]))
    return any(
        (int(major), int(minor)) <= capability and (kind == "compute" or int(major) == capability[0])
        for kind, major, minor in codes
    )


def _read_build_info() -> Mapping[str, Any]:
    """What ``tf.sysconfig.get_build_info()`` returns, from its file; empty if there is none."""
    file = next(_files("tensorflow", "python/platform/build_info.py"), None)
    return runpy.run_path(str(file))["build_info"] if file else {}


def _files(package: str, pattern: str) -> Iterator[Path]:
    """The files of a package, which is not imported."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    return (file for folder in folders for file in Path(folder).glob(pattern))


# --- Horovod -------------------------------------------------------------------------------------


def horovod_library() -> Path | None:
    """Horovod's compiled library for TensorFlow, or None if Horovod is not installed."""
    return next(_files("horovod", "tensorflow/mpi_lib*.so"), None)


def horovod_has_mpi() -> bool:
    """Whether Horovod was built with MPI (asking Horovod itself would import TensorFlow)."""
    library = horovod_library()
    return library is not None and b"libmpi" in library.read_bytes()


def check_horovod(version: str | None) -> None:
    """Checks that Horovod was built for this version of TensorFlow, whose libraries it needs; None: unknown."""
    file = next(_files("horovod", "metadata.json"), None)
    built_for = json.loads(file.read_text(encoding="utf-8")).get("tensorflow") if file else None
    if version and built_for and built_for.split(".")[:2] != version.split(".")[:2]:
        raise UserError(
            f"Horovod was built for TensorFlow {built_for}, and TensorFlow {version} is installed: {SETUP} builds it "
            "again; one process (num_gpus=1) works without"
        )
