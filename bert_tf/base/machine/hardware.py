"""The GPUs, cores and memory that a program may use on this machine, and what the system says about its processes.

All use of what only Linux has (/proc, cgroups, CPU affinity) is in this module, with what stands in for it on macOS.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

GIB = 1 << 30
# Where the kernel shows all cgroups, and those of this process.
CGROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# The files of a controller's limits: version 2's, then version 1's; a cgroup has those of one version.
_LIMIT_FILES = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
}
# Variables in which launchers tell a process its rank.
_RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
# Matches lines of TensorFlow's log that say why it found no GPU.
_GPU_COMPLAINT = re.compile(
    r"could not load dynamic library|cannot dlopen|cuda drivers|cuInit|CUDA_ERROR|multiprocessor count|"
    r"compute capability|cannot register",
    re.IGNORECASE,
)


def rank_number(environ: Mapping[str, str]) -> int:
    """The rank that a launcher gave this process; 0 without a launcher."""
    return int(next((environ[name] for name in _RANK_VARIABLES if name in environ), 0))


def count_gpus(environ: Mapping[str, str]) -> int:
    """The number of GPUs that a program may use: those that nvidia-smi lists, less what CUDA_VISIBLE_DEVICES hides."""
    present = sum(line.startswith("GPU ") for line in ask_nvidia_smi("-L"))
    visible = _visible_gpus(environ)
    return present if visible is None else min(present, len(visible))


def _visible_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names, as CUDA interprets it: a negative index ends the list. None: it is not set."""
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return None
    names = filter(None, map(str.strip, environ["CUDA_VISIBLE_DEVICES"].split(",")))
    return list(itertools.takewhile(lambda name: not name.startswith("-"), names))


def ask_nvidia_smi(*arguments: str) -> list[str]:
    """The lines of nvidia-smi's output; empty if there is no nvidia-smi or it cannot be run."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(["nvidia-smi", *arguments], capture_output=True, errors="replace", timeout=60)
        return answer.stdout.splitlines()
    return []


def _query_gpus(field: str) -> list[str]:
    """nvidia-smi's `field` of each GPU that this process may use; of all GPUs if it cannot be told which those are.

    CUDA_VISIBLE_DEVICES names a GPU by the beginning of its UUID, or by a number, which is nvidia-smi's only with
    CUDA_DEVICE_ORDER=PCI_BUS_ID. Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    answer = ask_nvidia_smi(f"--query-gpu=uuid,{field}", "--format=csv,noheader,nounits")
    rows = [line.split(", ", 1) for line in answer if line.startswith("GPU-")]
    all_values, names = [value for _, value in rows], _visible_gpus(os.environ)
    if names is None:
        return all_values
    is_by_number = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = [
        value
        for number, (uuid, value) in enumerate(rows)
        for name in names
        if uuid.startswith(name) or (is_by_number and name == str(number))
    ]
    return chosen if len(chosen) == len(names) else all_values


def compute_capabilities() -> list[tuple[int, int]]:
    """(major, minor) of each GPU that this process may use (`_query_gpus`); empty if an old nvidia-smi cannot tell."""
    answers = (re.fullmatch(r"(\d+)\.(\d+)", value) for value in _query_gpus("compute_cap"))
    return [(int(match[1]), int(match[2])) for match in answers if match]


def gpu_memories() -> list[int]:
    """Bytes of memory of each GPU that this process may use, without GPUs that share the machine's memory."""
    return [int(value) << 20 for value in _query_gpus("memory.total") if value.isdecimal()]


def gpu_complaints(log: str) -> list[str]:
    """Why TensorFlow found no GPU, from what it logged with TF_CPP_MIN_LOG_LEVEL=0."""
    lines = (line.rpartition("] ")[2].strip() for line in log.splitlines() if _GPU_COMPLAINT.search(line))
    return list(dict.fromkeys(lines))


def count_cores() -> int:
    """The number of cores that this process may use: by its CPU affinity, or by its cgroups' CPU quota if that is less.

    The "number of CPUs" of a container or batch job is often such a quota; 2.5 cores count as 2.
    """
    # macOS has no affinity.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([allowed, *(quota / period for quota, period in _cgroup_limits("cpu"))])))


def memory_limit() -> int | None:
    """Bytes of memory that this process's cgroups may use; None if no limit is set.

    Version 1 reports a limit larger than any machine's memory if none is set.
    """
    return min((limit for (limit,) in _cgroup_limits("memory")), default=None)


def total_memory() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> int:
    """Bytes that this process may still use, within the machine's and its cgroups' limit.

    Without /proc (macOS, which makes room by compressing other processes' memory) it is all of the machine's memory.
    """
    free = _kib("/proc/meminfo").get("MemAvailable", total_memory() >> 10) << 10
    limit = memory_limit()
    return free if limit is None else min(free, limit - (_kib("/proc/self/status")["VmRSS"] << 10))


def memory_peak_mib() -> float:
    """The most memory that this process has had since its program began.

    `getrusage` also counts what its parent process had when it started this one: a small program that a large one
    starts would have the large one's peak. So it is only used where there is no /proc.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB; on macOS bytes
    return _kib("/proc/self/status").get("VmHWM", usage >> 10 if sys.platform == "darwin" else usage) / 1024


def allow_open_files(num_files: int) -> None:
    """Lets this process open `num_files` files, or as many as the system allows; on macOS the limit begins at 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def processor_facts() -> dict[str, str]:
    """What /proc/cpuinfo says of the first processor, such as its "model name"; empty where there is none (macOS)."""
    first, _, _ = _read(Path("/proc/cpuinfo")).partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def process_state(process: str) -> str:
    """The system's letter for a process's state: Z if it has ended, T if it is stopped; empty if it is gone."""
    if Path("/proc/self/stat").exists():
        return _read(Path(f"/proc/{process}/stat")).rpartition(")")[2].strip()[:1]
    return subprocess.run(["ps", "-o", "state=", "-p", process], capture_output=True, text=True).stdout.strip()[:1]


def _kib(file: str) -> dict[str, int]:
    """The numbers of KiB in a file of /proc; empty where there is none."""
    lines = [line.split() for line in _read(Path(file)).splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines if words and words[-1] == "kB"}


def _cgroup_limits(controller: str) -> Iterator[list[int]]:
    """The numbers of each limit that is set in this process's cgroups, up to their root."""
    for line in _read(MEMBERSHIP).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers. Inside a container the name may be the host's and not exist here.
        root = CGROUPS / controller if controllers else CGROUPS
        folder = root / name.lstrip("/")
        for cgroup in {root, *(parent for parent in (folder, *folder.parents) if root in parent.parents)}:
            words = " ".join(_read(cgroup / file) for file in _LIMIT_FILES[controller]).split()
            if words and all(word.isdigit() for word in words):  # no limit: "max", or -1
                yield [int(word) for word in words]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def choose_device(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Applies --device ("auto" or "cpu")."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = "-1"
