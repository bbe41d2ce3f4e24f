"""Trainings that are started again after a crash, and that stop in time."""

from __future__ import annotations

import signal
import types

import pytest

from bert_tf.base.signals import STOPPED_EXIT_CODE, handling_signals
from bert_tf.launch import call, pretraining
from bert_tf.launch.arguments import Positionals
from bert_tf.launch.environment import LaunchEnvironment


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Trains with starts that end as a list says: exit code, newest checkpoint (negative: damaged), signals. Returns
    the code, the command of each start, and the pauses. Other `signals` arrive in the first pause."""

    def answer(ends, signals=(), **variables):
        ends, flags, pauses, signals = iter(ends), [], [], list(signals)

        def run(_, command, __, ___, environment):
            flags.append(command)
            code, update, *received = next(ends)
            environment.signals += received
            if update:
                checkpoint = tmp_path / f"run/checkpoints/ckpt-{abs(update):08d}"
                checkpoint.mkdir(parents=True, exist_ok=True)
                (checkpoint / "manifest.json").write_text('{"sha256": {}}' if update > 0 else "")
            pauses.append(0.0)
            return code

        def sleep(secs):
            pauses[-1] += secs
            if signals:
                signal.raise_signal(signals.pop())

        monkeypatch.setattr(call, "run", run)
        monkeypatch.setattr(call, "time", types.SimpleNamespace(sleep=sleep))
        environment = LaunchEnvironment({"CUDA_VISIBLE_DEVICES": "", **variables})
        recipe = pretraining.make_lamb(Positionals(pretraining.LAMB, []), environment)
        each = call.Run("phase 1", "pretraining", {"model_dir": tmp_path / "run"})
        return recipe.train(each), flags, [round(pause, 1) for pause in pauses if pause]

    return answer


@pytest.mark.parametrize(
    "restarts, ends, pauses, said",
    [
        ("0", [(137, 5)], [], ""),
        # Crashes with progress may be any number; those without are counted in a row.
        ("1", [(137, 5), (1, 10), (134, 15), (139, 20), (0, 25)], [2] * 4, "137 (SIGKILL); starts in a row without a"),
        ("3", [(1, 0), (1, 5), *[(1, 5)] * 4], [4, 2, 4, 8, 16], "update 5: 4 of 3; given up"),
        # A damaged checkpoint is no progress: the next start would not go on from it.
        ("1", [(1, 5), (1, -10), (1, -15)], [2, 4], "update 5: 2 of 1; given up"),
        ("1", [(1, 5), (1, -20), (1, 10), (1, 15), (0, 20)], [2, 4, 2, 2], "update 15: 0 of 1"),
        # What the user has done is final.
        *(("3", [end], [], "") for end in [(0, 5), (2, 5), (75, 5), (130, 5), (143, 5), (1, 5, signal.SIGTERM)]),
    ],
)
def test_starts_after_a_crash(train, capsys, restarts, ends, pauses, said):
    code, starts, paused = train(ends, RESTARTS=restarts)
    assert (code, len(starts), paused) == (ends[-1][0], len(ends), pauses)
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM, signal.SIGINT])
def test_a_signal_between_two_starts_ends_the_pause(train, sent):
    """As one that arrives while ranks are running, after which run.sub asks for a place in the queue."""
    unnoted = []
    with handling_signals([sent], unnoted.append):
        code, starts, pauses = train([(1, 5)], signals=[sent], RESTARTS="3")
    assert not unnoted and (code, len(starts)) == (STOPPED_EXIT_CODE, 1) and pauses[0] < 1


def test_each_start_gets_the_hours_that_are_left(train, monkeypatch, capsys):
    hours = iter([0.0, 0.0, 1.5, 2.0])
    # In this module alone: other threads of this process, such as Dask's, read the clock, too.
    clock = types.SimpleNamespace(monotonic=lambda: 3600 * next(hours, 2.0))
    monkeypatch.setattr("bert_tf.launch.environment.time", clock)
    code, starts, _ = train([(1, 0)] * 2, RESTARTS="9", MAX_HOURS="2")
    assert (code, len(starts)) == (STOPPED_EXIT_CODE, 2)
    assert "--max_hours=2.0000" in starts[0] and "--max_hours=0.5000" in starts[1]
    assert "MAX_HOURS=2 are over" in capsys.readouterr().out
