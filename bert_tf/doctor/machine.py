"""Examines the GPUs, the memory that the system leaves a process, and the folders of data and results."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from bert_tf.base.command_line import expand_home
from bert_tf.base.files import atomic_folder, check_folder, work_folder
from bert_tf.base.locks import NO_FLOCK_ERRORS
from bert_tf.base.machine.hardware import GIB, ask_nvidia_smi, count_cores, count_gpus, memory_limit, total_memory
from bert_tf.doctor.findings import OK, PROBLEM, WARNING, Finding, Findings, judge
from bert_tf.launch.prepared_data import find_data

PCI, SHM = Path("/sys/bus/pci/devices"), Path("/dev/shm")


def examine_gpus() -> Findings:
    lines = ask_nvidia_smi("--query-gpu=memory.total,memory.used,driver_version,name", "--format=csv,noheader,nounits")
    rows = [line.split(", ", 3) for line in lines if line.count(", ") > 2]
    if not rows:
        yield _explain_no_gpus()
        return
    for number, (total, used, driver, name) in enumerate(rows):
        # For a GPU that shares the machine's memory, nvidia-smi prints no numbers.
        total_gib, used_gib = (int(text) / 1024 if text.isdecimal() else 0.0 for text in (total, used))
        yield judge(
            used_gib <= 0.1 * total_gib,
            f"{number}: {name}, {total_gib:.1f} GiB, of which processes hold {used_gib:.1f}, driver {driver}",
            "nvidia-smi names them, and CUDA_VISIBLE_DEVICES chooses another GPU",
            WARNING,
        )
    if (visible := count_gpus(os.environ)) < len(rows):
        yield Finding(WARNING, f"CUDA_VISIBLE_DEVICES leaves {visible} of {len(rows)} GPU(s): unset it to use all")


def _explain_no_gpus() -> Finding:
    if shutil.which("nvidia-smi"):
        answer = (ask_nvidia_smi() or ["nothing"])[0]
        return Finding(
            WARNING if "No devices" in answer else PROBLEM,
            f"nvidia-smi lists none and says: {answer}. Way out: install the driver again, or reboot where it was "
            "updated; on a login node look from within a job",
        )
    for device in PCI.glob("*"):
        # PCI vendor 10de is NVIDIA; class 03 is a display controller.
        if (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith("0x03"):
            return Finding(
                WARNING,
                "there is an NVIDIA GPU, but no nvidia-smi, so it will not be used: install the driver; start a "
                "container with the GPUs (scripts/docker/launch.sh)",
            )
    return Finding(OK, "none: trains on the CPU, which is enough for the quickstart and small models")


def examine_shared_memory() -> Findings:
    """Examines /dev/shm, where ranks pass data and worker processes have their semaphores; macOS has none."""
    if sys.platform == "darwin":
        return
    mib = (shutil.disk_usage(SHM).free >> 20) if os.access(SHM, os.W_OK) else 0
    remedy = (
        "ranks on several GPUs fail with less than 512, and worker processes and ranks without any: remove what other "
        "programs have left there; docker run --ipc=host, as scripts/docker/launch.sh does"
    )
    state = PROBLEM if count_gpus(os.environ) > 1 or not mib else WARNING
    yield judge(mib >= 512, f"{SHM} has room for {mib} MiB", remedy, state)


def examine_cores_and_memory() -> Findings:
    """Examines what cgroups (containers, batch jobs) leave of the machine."""
    total = total_memory()
    limit = min(memory_limit() or total, total)
    message = f"{count_cores()} of {os.cpu_count()} cores, {limit / GIB:.1f} of {total / GIB:.1f} GiB"
    if limit < total:
        message += " (a container's or job's limit; the memory plan does not know it: give --gpu_memory_gib)"
    # README: 0.9 GiB per rank of the quickstart; docs/training.md: 7 GiB for BERT-Large.
    remedy = "enough for small models only; BERT-Large takes 8 (docker --memory, sbatch --mem)"
    yield judge(limit >= 8 * GIB, message, remedy, WARNING if limit >= GIB else PROBLEM)


GB = 10**9
# Token files of English Wikipedia and books, with all that they are made from (docs/preparing_data.md).
_DATA_BYTES = 84 * GB
# Both phases of BERT-Large: seven checkpoints (three per phase, one being saved), 336 M weights with two moments.
_RESULTS_BYTES = 28 * GB


class Folder(NamedTuple):
    """A folder that a training uses and that need not exist yet."""

    path: Path
    variable: str  # the variable that names another folder

    @property
    def existing_folder(self) -> Path:
        """The folder, or the closest one above it that exists."""
        return next(folder for folder in (self.path, *self.path.parents) if folder.exists())


def find_folder(name: str, *variables: str) -> Folder:
    """The folder that the first variable that is set names, else the folder `name` of the checkout."""
    variable = next(filter(os.environ.get, variables), variables[0])
    path = expand_home(os.environ.get(variable, ""))
    return Folder(Path(os.path.abspath(path or work_folder() / name)), variable)


def examine_file_system(folder: Folder) -> Findings:
    """Examines whether files below the folder can be written, replaced by a rename, and locked."""
    check_folder(folder.path, f"{folder.variable}={folder.path}")
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=folder.existing_folder) as scratch:
            for _ in range(2):  # the second time replaces the first
                with atomic_folder(Path(scratch) / "folder"):
                    pass
            with open(Path(scratch) / "lock", "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_FLOCK_ERRORS:
            yield Finding(
                WARNING,
                f"{folder.path} has no locks ({error.strerror}): never start two runs in one folder; after a kill on "
                "another machine delete .lock.held by hand",
            )
        else:
            yield Finding(
                PROBLEM,
                f"{folder.path} cannot be written ({error.strerror}): ask for the right to, or name another folder by "
                f"{folder.variable}=",
            )
    else:
        yield Finding(OK, f"{folder.path}: writing, renaming and locks work")


def examine_data(folder: Folder) -> Findings:
    """Lists the prepared datasets; if there are none, compares the free space with what Wikipedia needs."""
    complete, unfinished = find_data(folder.path)
    for item in complete:
        yield Finding(OK, f"{item.dataset} as {item.data_format} ({item.shown_lengths})")
    for path in unfinished:
        yield Finding(
            WARNING,
            f"{path} is unfinished, or not made by bertPrep.py: 'python3 data/bertPrep.py --action status' says how to "
            "go on",
        )
    if not complete and not unfinished:
        yield Finding(
            WARNING,
            f"nothing is prepared below {folder.path}: 'bash scripts/quickstart.sh' makes its own; "
            "docs/preparing_data.md; DATA_DIR names another place",
        )
        yield _judge_room(folder, _DATA_BYTES, "Wikipedia takes 84 as token files, 490 as records")


def examine_room_for_results(folder: Folder) -> Findings:
    yield _judge_room(folder, _RESULTS_BYTES, "both phases of BERT-Large take up to 28, of base 9")


def _judge_room(folder: Folder, num_bytes: int, needs: str) -> Finding:
    """Whether there is room for `num_bytes`; a problem only below 1 GB, with which small models still work."""
    free = shutil.disk_usage(folder.existing_folder).free
    fact, remedy = f"{free / GB:.1f} GB free at {folder.path}; {needs}", f"{folder.variable}= names another disk"
    return judge(free >= num_bytes, fact, remedy, WARNING if free >= GB else PROBLEM)
