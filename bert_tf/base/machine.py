"""The GPUs, cores and memory that a program may use on this machine."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# Where launchers tell a process the number of its rank.
_RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
# Lines of TensorFlow's log that say why it found no GPU.
_GPU_COMPLAINT = re.compile(
    r"could not load dynamic library|cannot dlopen|cuda drivers|cuInit|CUDA_ERROR|multiprocessor count|"
    r"compute capability|cannot register",
    re.IGNORECASE,
)


def rank_number(environ: Mapping[str, str]) -> int:
    """The rank that a launcher gave this process; 0 without a launcher."""
    return int(next((environ[name] for name in _RANK_VARIABLES if name in environ), 0))


def count_gpus(environ: Mapping[str, str]) -> int:
    """GPUs that a program may use here: those nvidia-smi lists, less what CUDA_VISIBLE_DEVICES hides."""
    present = len(list_gpus())
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    chosen = (entry.strip() for entry in visible.split(",") if entry.strip())
    # As CUDA reads it: an index below zero ends the list.
    return min(present, len(list(itertools.takewhile(lambda entry: not entry.startswith("-"), chosen))))


def list_gpus() -> list[str]:
    """One line with model and UUID for each GPU that nvidia-smi lists; none where there is no nvidia-smi."""
    return [line for line in ask_nvidia_smi("-L") if line.startswith("GPU ")]


def ask_nvidia_smi(*arguments: str) -> list[str]:
    """The lines that nvidia-smi answers; none where there is none, or it fails."""
    try:
        answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines()


def gpu_complaints(log: str) -> list[str]:
    """Why TensorFlow found no GPU, by what it has logged with TF_CPP_MIN_LOG_LEVEL=0."""
    lines = (line.rpartition("] ")[2].strip() for line in log.splitlines() if _GPU_COMPLAINT.search(line))
    return list(dict.fromkeys(lines))


def count_cores(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may keep busy: its CPU affinity, or its cgroups' quota of CPU time where that is less.

    A quota is what a container's or a batch job's "number of CPUs" often is; 2.5 cores count as 2.

    Args:
      cgroups, membership: where the kernel shows the cgroups, and those of this process.
    """
    return max(1, int(min([len(os.sched_getaffinity(0)), *_quotas(cgroups, membership)])))


def memory_limit(cgroups: Path = CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """Bytes of memory that the cgroups of this process may hold; None where no limit is set.

    Version 1 without a limit shows more than any machine has.
    """
    names = {True: "memory.limit_in_bytes", False: "memory.max"}
    texts = (_read(place / names[is_first]).strip() for place, is_first in _places("memory", cgroups, membership))
    return min((int(text) for text in texts if text.isdigit()), default=None)


def _quotas(cgroups: Path, membership: Path) -> list[float]:
    """Every limit, in cores, on the way from this process' cgroups up to their root."""
    quotas: list[float] = []
    for place, is_first in _places("cpu", cgroups, membership):
        if is_first:
            words = [_read(place / f"cpu.cfs_{what}_us").strip() for what in ("quota", "period")]
        else:
            words = _read(place / "cpu.max").split()
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):  # no limit: "max", or -1
            quotas.append(int(words[0]) / int(words[1]))
    return quotas


def _places(controller: str, cgroups: Path, membership: Path) -> Iterator[tuple[Path, bool]]:
    """The folders of this process' cgroups up to their root, and whether they are of version 1."""
    for line in _read(membership).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers. Inside a container the name may be one of the host's, which is not there.
        root = cgroups / controller if controllers else cgroups
        folder = root / name.lstrip("/")
        for place in {root, *(place for place in (folder, *folder.parents) if root in place.parents)}:
            yield place, bool(controllers)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
