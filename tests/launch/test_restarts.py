"""Trainings that are started again after a crash, and that stop in time."""

from __future__ import annotations

import signal
import types

import pytest

from bert_tf.base.signals import STOPPED_EXIT_CODE
from bert_tf.launch import call, pretraining
from bert_tf.launch.arguments import Typed
from bert_tf.launch.environment import LaunchEnvironment


@pytest.fixture
def starts(tmp_path, monkeypatch):
    """train() on starts that end as the list says: exit code, newest checkpoint, signals."""

    class Starts:
        ends: list[tuple] = []
        commands: list[list[str]] = []
        pauses: list[float] = []

        def train(self, **variables):
            self.commands, self.pauses = [], []
            environment = LaunchEnvironment({"CUDA_VISIBLE_DEVICES": "", **variables})
            recipe = pretraining.make_lamb(Typed(pretraining.LAMB, []), environment)
            return recipe.train(call.Run("phase 1", "pretraining", {"model_dir": tmp_path / "run"}))

    made = Starts()

    def run(_, job, received):
        code, update, *signals = made.ends[len(made.commands)]
        made.commands.append(list(job.command))
        received += signals
        if update:
            (tmp_path / "run" / "checkpoints" / f"ckpt-{update:08d}").mkdir(parents=True, exist_ok=True)
        return code

    monkeypatch.setattr(call, "run", run)
    monkeypatch.setattr(call, "time", types.SimpleNamespace(sleep=lambda secs: made.pauses.append(secs)))
    return made


def test_without_restarts_a_crash_is_the_end(starts):
    starts.ends = [(137, 5)]
    assert starts.train() == 137 and len(starts.commands) == 1


def test_crashes_with_progress_may_be_any_number(starts, capsys):
    starts.ends = [(137, 5), (1, 10), (134, 15), (139, 20), (0, 25)]
    assert starts.train(RESTARTS="1") == 0
    assert starts.pauses == [2.0] * 4
    shown = capsys.readouterr().out
    assert "RESTARTS=1: phase 1 ended with code 137 (SIGKILL); in 2 s it goes on from update 5" in shown


def test_a_crash_loop_ends_with_a_line(starts, capsys):
    starts.ends = [(1, 0), (1, 5), *[(1, 5)] * 9]
    assert starts.train(RESTARTS="3") == 1
    assert len(starts.commands) == 6 and starts.pauses == [4.0, 2.0, 4.0, 8.0, 16.0]
    last = capsys.readouterr().out.splitlines()[-1]
    assert "ended with code 1; 4 starts in a row made no checkpoint after update 5: given up" in last
    assert "logs says why" in last


@pytest.mark.parametrize("end", [(0, 5), (2, 5), (75, 5), (130, 5), (143, 5), (1, 5, signal.SIGTERM)])
def test_what_the_user_has_done_is_final(starts, end):
    starts.ends = [end]
    assert starts.train(RESTARTS="3") == end[0] and len(starts.commands) == 1


def test_each_start_gets_the_hours_that_are_left(starts, monkeypatch, capsys):
    hours = iter([0.0, 0.0, 1.5, 2.0])
    # In this module alone: other threads of this process, such as Dask's, read the clock, too.
    clock = types.SimpleNamespace(monotonic=lambda: 3600 * next(hours, 2.0))
    monkeypatch.setattr("bert_tf.launch.environment.time", clock)
    monkeypatch.setattr(call, "run", lambda what, job, _: starts.commands.append(job.command[2]) or 1)
    assert starts.train(RESTARTS="9", MAX_HOURS="2") == STOPPED_EXIT_CODE
    assert starts.commands == ["--max_hours=2.0000", "--max_hours=0.5000"]
    assert "MAX_HOURS=2 are over" in capsys.readouterr().out
