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
def train(tmp_path, monkeypatch):
    """Trains with starts that end as a list says: exit code, newest checkpoint, signals. Returns the code, the command
    of each start, and the pauses."""

    def answer(ends, **variables):
        ends, flags, pauses = iter(ends), [], []

        def run(_, command, __, ___, environment):
            flags.append(command)
            code, update, *signals = next(ends)
            environment.signals += signals
            if update:
                (tmp_path / f"run/checkpoints/ckpt-{update:08d}").mkdir(parents=True, exist_ok=True)
            return code

        monkeypatch.setattr(call, "run", run)
        monkeypatch.setattr(call, "time", types.SimpleNamespace(sleep=pauses.append))
        environment = LaunchEnvironment({"CUDA_VISIBLE_DEVICES": "", **variables})
        recipe = pretraining.make_lamb(Typed(pretraining.LAMB, []), environment)
        each = call.Run("phase 1", "pretraining", {"model_dir": tmp_path / "run"})
        return recipe.train(each), flags, pauses

    return answer


@pytest.mark.parametrize(
    "restarts, ends, pauses, said",
    [
        ("0", [(137, 5)], [], ""),
        # Crashes with progress may be any number; those without are counted in a row.
        (
            "1",
            [(137, 5), (1, 10), (134, 15), (139, 20), (0, 25)],
            [2.0] * 4,
            "137 (SIGKILL); starts in a row without a checkpoint after update 5: 0 of 1",
        ),
        ("3", [(1, 0), (1, 5), *[(1, 5)] * 4], [4, 2, 4, 8, 16], "update 5: 4 of 3; given up"),
        # What the user has done is final.
        *(("3", [end], [], "") for end in [(0, 5), (2, 5), (75, 5), (130, 5), (143, 5), (1, 5, signal.SIGTERM)]),
    ],
)
def test_starts_after_a_crash(train, capsys, restarts, ends, pauses, said):
    code, starts, paused = train(ends, RESTARTS=restarts)
    assert (code, len(starts), paused) == (ends[-1][0], len(ends), pauses)
    assert said in capsys.readouterr().out


def test_each_start_gets_the_hours_that_are_left(train, monkeypatch, capsys):
    hours = iter([0.0, 0.0, 1.5, 2.0])
    # In this module alone: other threads of this process, such as Dask's, read the clock, too.
    clock = types.SimpleNamespace(monotonic=lambda: 3600 * next(hours, 2.0))
    monkeypatch.setattr("bert_tf.launch.environment.time", clock)
    code, starts, _ = train([(1, 0)] * 2, RESTARTS="9", MAX_HOURS="2")
    assert (code, len(starts)) == (STOPPED_EXIT_CODE, 2)
    assert "--max_hours=2.0000" in starts[0] and "--max_hours=0.5000" in starts[1]
    assert "MAX_HOURS=2 are over" in capsys.readouterr().out
