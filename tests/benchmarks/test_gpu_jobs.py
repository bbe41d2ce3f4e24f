"""Processes that share a GPU take turns; here they write what they do to a file, and nothing is computed."""

from __future__ import annotations

import io
import sys
import time

import pytest

from benchmarks.gpu import jobs
from benchmarks.gpu.jobs import Job, Limits, run_all

# Notes what it does. "together": it compiles until another one has begun to; "last": until a is ready, and longer.
PROGRAM = """
import pathlib, sys, time
from benchmarks.gpu.jobs import await_turn
name, file, kind = sys.argv[1:]
def note(what):
    with open(file, "a") as events:
        events.write(f"{what} {name}\\n")
note("compiles")
while kind == "together" and open(file).read().count("compiles") < 2:
    time.sleep(0.01)
while kind == "last" and "waiting" not in pathlib.Path(file).with_name("a.out").read_text():
    time.sleep(0.01)
if kind == "last":
    time.sleep(0.5)
    note("compiled")
if kind == "hangs":
    time.sleep(600)
if kind == "fails":
    sys.exit(3)
if kind in ("together", "timed"):
    await_turn()
    note("begins")
    time.sleep(0.3)
    note("ends")
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program of each kind, named a, b, c, ...; returns whether all ran, the events and the exit codes."""

    def run(*kinds, memory=1.0, secs=60.0, end=600.0, num_at_once=2):
        events, codes = tmp_path / "events", {}
        made = [
            Job(name, [sys.executable, "-c", PROGRAM, name, str(events), kind], 40.0, tmp_path / f"{name}.log")
            for name, kind in zip("abcd", kinds)
        ]
        limits = Limits(time.monotonic() + end, secs, 100.0 * memory, num_at_once)
        done = run_all(
            made, limits, {}, started=lambda job: None, ended=lambda job, code: codes.update({job.row: code})
        )
        return done, events.read_text().splitlines(), codes

    return run


def test_a_measurement_waits_until_nothing_compiles(run):
    done, events, _ = run("timed", "last")
    assert done and events[2:] == ["compiled b", "begins a", "ends a"]


@pytest.mark.parametrize("limits", [{"num_at_once": 2}, {"num_at_once": 9}], ids=["cores", "the GPU's memory"])
def test_two_compile_side_by_side_and_are_measured_one_at_a_time_before_another_starts(run, limits):
    done, events, codes = run("together", "together", "untimed", **limits)
    assert (
        done
        and codes == {"a": 0, "b": 0, "c": 0}
        and events[2:] == ["begins a", "ends a", "begins b", "ends b", "compiles c"]
    )


def test_a_job_larger_than_the_gpu_runs_alone(run):
    assert run("untimed", "timed", memory=0.1)[1] == ["compiles a", "compiles b", "begins b", "ends b"]


def test_one_that_fails_or_hangs_costs_no_more_than_itself(run):
    done, events, codes = run("fails", "hangs", "timed", secs=5.0, num_at_once=3)
    assert done and codes == {"a": 3, "b": None, "c": 0} and events[-2:] == ["begins c", "ends c"]


def test_what_runs_when_the_time_is_over_is_killed_and_not_reported(run, monkeypatch):
    monkeypatch.setattr(jobs, "SHORTEST_SECS", 0.0)
    done, events, codes = run("hangs", "hangs", end=3.0, num_at_once=1)
    assert not done and events == ["compiles a"] and codes == {}


def test_one_waits_for_its_turn_no_longer_than_its_parent_lives(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(SystemExit, match="has ended"):
        jobs.await_turn()
    assert capsys.readouterr().out == f"{jobs.READY}\n"
