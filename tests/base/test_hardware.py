"""Cores by affinity and cgroup quotas, memory by cgroups, peaks of memory, GPUs that differ. (How many there are:
launch/test_launch_calls; what macOS lacks: programs/test_macos.)"""

import os
import sys

import pytest

from bert_tf.base.machine import hardware
from bert_tf.base.machine.hardware import count_cores, memory_limit
from tests.processes import ROOT, answer
from tests.stand_ins import nvidia_smi


@pytest.fixture(autouse=True)
def eight_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "MEMBERSHIP", tmp_path / "membership")


_V1 = "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"


def of_v1(quota):
    return {"cpu/job/cpu.cfs_quota_us": quota, "cpu/job/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    "membership, files, find, expected",
    [
        ("", {}, count_cores, 8),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, count_cores, 8),
        ("0::/job\n", {"job/cpu.max": "250000 100000\n"}, count_cores, 2),
        ("0::/job\n", {"job/cpu.max": "50000 100000\n"}, count_cores, 1),
        # The tightest limit on the way up counts.
        ("0::/a/b\n", {"a/b/cpu.max": "max 9", "a/cpu.max": "27 9", "cpu.max": "54 9"}, count_cores, 3),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "3\n", "memory.max": "4\n"}, memory_limit, 3),
        # Inside a container the name is one of the host's, and the root is the limit.
        ("0::/docker/123\n", {"cpu.max": "200000 100000"}, count_cores, 2),
        ("0::/a\n", {"a/memory.max": "max\n"}, memory_limit, None),
        (_V1, of_v1("-1\n"), count_cores, 8),
        (_V1, of_v1("700000\n"), count_cores, 7),
        (_V1, {"memory/job/memory.limit_in_bytes": "5000\n"}, memory_limit, 5000),
    ],
)
def test_limits_of_cgroups(tmp_path, membership, files, find, expected):
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "membership").write_text(membership)
    assert find() == expected


def test_more_files_may_be_open_than_macos_allows_at_first():
    limits = (
        "import resource\nfrom bert_tf.base.machine.hardware import allow_open_files\n"
        "for soft, wanted in ((256, 1024), (512, 300), (256, 9999)):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, 2000))\n"
        "    allow_open_files(wanted)\n"
        "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    assert answer(sys.executable, "-c", limits, cwd=ROOT).stdout.split() == ["1024", "512", "2000"]


def test_a_process_has_its_own_peak_of_memory_and_not_that_of_the_one_which_started_it():
    ask = "from bert_tf.base.machine import hardware; filled = b'x' * ({} << 20); print(hardware.memory_peak_mib())"
    nested = "import subprocess, sys; filled = b'x' * (400 << 20)\n"
    nested += f"for mib in (1, 150): subprocess.run([sys.executable, '-c', {ask!r}.format(mib)], check=True)"
    small, large = map(float, answer(sys.executable, "-c", nested, cwd=ROOT).stdout.split())
    assert small < 100 and 150 < large < 300


@pytest.mark.parametrize(
    "visible, order, expected",
    [
        (None, None, [(3, 5), (8, 9)]),
        ("GPU-1", None, [(8, 9)]),
        ("1", "PCI_BUS_ID", [(8, 9)]),
        ("1,-1,0", "PCI_BUS_ID", [(8, 9)]),
        ("1", None, [(3, 5), (8, 9)]),  # CUDA's own order, which cannot be told
        ("MIG-1", "PCI_BUS_ID", [(3, 5), (8, 9)]),
        ("-1", None, []),
    ],
)
def test_of_gpus_that_differ_the_chosen_one_counts(tmp_path, monkeypatch, visible, order, expected):
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path / "bin", "3.5", "8.9"))
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": order}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert hardware.compute_capabilities() == expected
    nvidia_smi(tmp_path / "bin", "2048", "[N/A]")
    shown = [2 << 30] if (3, 5) in expected else []
    assert hardware.gpu_memories() == shown, "a GPU that shares the machine's memory has no number"
