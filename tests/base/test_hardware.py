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


_V1 = "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n"


def of_v1(quota):
    return {"cpu/job/cpu.cfs_quota_us": quota, "cpu/job/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    "membership, files, find, expected",
    [
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


def test_a_process_has_its_own_peak_of_memory_and_not_that_of_the_one_which_started_it():
    ask = "from bert_tf.base.machine import hardware; filled = b'x' * ({} << 20); print(hardware.memory_peak_mib())"
    nested = "import subprocess, sys; filled = b'x' * (400 << 20)\n"
    nested += f"for mib in (1, 150): subprocess.run([sys.executable, '-c', {ask!r}.format(mib)], check=True)"
    small, large = map(float, answer(sys.executable, "-c", nested, cwd=ROOT).stdout.split())
    assert small < 100 and 150 < large < 300
