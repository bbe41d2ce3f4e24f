"""Examines the GPUs, and the memory that the system leaves a process."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from bert_tf.base.machine import GIB, ask_nvidia_smi, count_cores, count_gpus, memory_limit, total_memory
from bert_tf.doctor.findings import OK, PROBLEM, WARNING, Finding, Findings, judge

PCI, SHM = Path("/sys/bus/pci/devices"), Path("/dev/shm")


def examine_gpus() -> Findings:
    query = "--query-gpu=memory.total,memory.used,driver_version,name"
    lines = ask_nvidia_smi(query, "--format=csv,noheader,nounits")
    rows = [line.split(", ", 3) for line in lines if line.count(", ") > 2]
    for number, (total, used, driver, name) in enumerate(rows):
        # A GPU that shares the machine's memory has no numbers.
        total_gib, used_gib = (int(text) / 1024 if text.isdecimal() else 0.0 for text in (total, used))
        message = f"{number}: {name}, {total_gib:.1f} GiB, driver {driver}"
        remedy = "nvidia-smi names them; CUDA_VISIBLE_DEVICES chooses another GPU"
        fault = f"{message}; other processes hold {used_gib:.1f} GiB: {remedy}"
        yield judge(used_gib <= 0.1 * total_gib, message, fault, WARNING)
    if "CUDA_VISIBLE_DEVICES" in os.environ and (visible := count_gpus(os.environ)) < len(rows):
        setting = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}"
        yield Finding(WARNING, f"{setting} leaves {visible} of {len(rows)} GPU(s): unset it to use all")
    if not rows:
        yield _explain_no_gpus()


def _explain_no_gpus() -> Finding:
    # PCI vendor 10de is NVIDIA; class 03 is a display controller.
    displays = [file.parent for file in PCI.glob("*/class") if file.read_text().startswith("0x03")]
    if shutil.which("nvidia-smi"):
        said = (ask_nvidia_smi() or ["nothing"])[0]
        remedy = "install the driver again, or reboot where it was updated; on a login node look from within a job"
        state = WARNING if "No devices" in said else PROBLEM
        return Finding(state, f"nvidia-smi lists none and says: {said}. Way out: {remedy}")
    if any((device / "vendor").read_text().strip() == "0x10de" for device in displays):
        remedy = "install the driver; start a container with the GPUs (scripts/docker/launch.sh)"
        return Finding(WARNING, f"there is an NVIDIA GPU, but no nvidia-smi, so it will not be used: {remedy}")
    return Finding(OK, "none: trains on the CPU, which is enough for the quickstart and small models")


def examine_shared_memory() -> Findings:
    """Examines /dev/shm, through which NCCL and MPI pass data between the ranks of a machine; macOS has no such."""
    if sys.platform == "darwin":
        return
    size = shutil.disk_usage(SHM).total / GIB if SHM.is_dir() else 0.0
    remedy = "docker run --ipc=host (or --shm-size=1g), as scripts/docker/launch.sh does"
    fault = f"{SHM} has {size * 1024:.0f} MiB, and ranks on several GPUs fail with less than 512: {remedy}"
    yield judge(size >= 0.5, f"{size:.1f} GiB", fault, PROBLEM if count_gpus(os.environ) > 1 else WARNING)


def examine_cores_and_memory() -> Findings:
    """Examines what cgroups (containers, batch jobs) leave of the machine."""
    total = total_memory()
    limit = min(memory_limit() or total, total)
    message = f"{count_cores()} of {os.cpu_count()} cores, {limit / GIB:.1f} of {total / GIB:.1f} GiB"
    if limit < total:
        message += " (a container's or job's limit; the memory plan does not know it: give --gpu_memory_gib)"
    # README: 0.9 GiB per rank of the quickstart; docs/training.md: 7 GiB for BERT-Large.
    remedy = "enough for small models only; BERT-Large takes 8 (docker --memory, sbatch --mem)"
    yield judge(limit >= 8 * GIB, message, f"{message}: {remedy}", WARNING if limit >= GIB else PROBLEM)
