"""Cores by affinity and cgroup quotas, memory by cgroups, peaks of memory. (GPUs: launch/test_ranks.)"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_tf.base.machine import hardware
from bert_tf.base.machine.hardware import count_cores, memory_limit
from tests.processes import answer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def eight_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(hardware, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(hardware, "MEMBERSHIP", tmp_path / "membership")


def write(tmp_path, membership, files):
    for name, text in files.items():
        file = tmp_path / "cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "membership").write_text(membership)


_V1 = "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"


@pytest.mark.parametrize(
    "membership, files, expected",
    [
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, 8),
        ("0::/job\n", {"job/cpu.max": "250000 100000\n"}, 2),
        ("0::/job\n", {"job/cpu.max": "50000 100000\n"}, 1),
        # The tightest limit on the way up counts.
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "600000 100000"}, 3),
        # Inside a container the name is one of the host's, and the root is the limit.
        ("0::/docker/123\n", {"cpu.max": "200000 100000"}, 2),
        (_V1, {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 8),
        (_V1, {"cpu/job/cpu.cfs_quota_us": "700000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 7),
    ],
)
def test_cores(tmp_path, membership, files, expected):
    write(tmp_path, membership, files)
    assert count_cores() == expected


@pytest.mark.parametrize(
    "membership, files, expected",
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "3000\n", "memory.max": "4000\n"}, 3000),
        ("0::/a\n", {"a/memory.max": "max\n"}, None),
        ("3:memory:/job\n2:cpu:/\n", {"memory/job/memory.limit_in_bytes": "5000\n"}, 5000),
    ],
)
def test_memory(tmp_path, membership, files, expected):
    write(tmp_path, membership, files)
    assert memory_limit() == expected


def test_without_cgroups_the_affinity_counts_and_without_that_all_cores(monkeypatch):
    assert count_cores() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert count_cores() == 6


def test_without_proc_the_state_of_a_process_comes_from_ps(monkeypatch):
    with subprocess.Popen(["sleep", "60"]) as process:
        states = [hardware.process_state(str(process.pid))]
        monkeypatch.setattr(Path, "exists", lambda _: False)
        states.append(hardware.process_state(str(process.pid)))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet asked for
        states.append(hardware.process_state(str(process.pid)))
    assert states in (["S", "S", "Z"], ["R", "S", "Z"]) and hardware.process_state(str(process.pid)) == ""


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
    imports = "from bert_tf.base.machine.hardware import memory_peak_mib"
    ask = imports + "\nfilled = b'x' * ({} << 20)\nprint(memory_peak_mib())"
    nested = "filled = b'x' * (400 << 20)\nimport subprocess, sys\nfor mib in (1, 150):\n"
    nested += f"    subprocess.run([sys.executable, '-c', {ask!r}.format(mib)], check=True)\n"
    small, large = map(float, answer(sys.executable, "-c", nested, cwd=ROOT).stdout.split())
    assert small < 100 and 150 < large < 300
