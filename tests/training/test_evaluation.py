"""Evaluation while training: when, which checkpoint is the best, when it ends, and that stops leave no trace."""

import itertools
import json
import math
import shutil

import pytest

from bert_tf.interchange.initialise import find_weights
from bert_tf.run.evaluations import EVALUATIONS, find_best
from bert_tf.settings.training import EPOCH, TrainingConfig
from bert_tf.training.evaluation import Evaluation, Evaluator
from tests.jobs import events
from tests.refusals import refused
from tests.training.test_trainer import Counter, make_trainer, stored


def config(**changes):
    return TrainingConfig(**{**dict(learning_rate=1.0, train_batch_size=4), **changes})


@pytest.mark.parametrize(
    "eval_steps, num_rows, expected",
    [
        (None, 100, []),
        (1.0, 100, list(range(1, 11))),
        (4.0, 100, [4, 8, 10]),
        (99.0, 100, [10]),
        (0.1, 12, list(range(1, 11))),  # less than an update
        (EPOCH, 14, [4, 7, 10]),  # of 3.5 updates
        (0.5, 40, [5, 10]),
    ],
)
def test_when_it_is_due(tmp_path, eval_steps, num_rows, expected):
    interval = config(eval_steps=eval_steps).eval_interval(num_rows)
    evaluation = Evaluation(lambda *_: {}, "f1", "", interval) if interval else None
    evaluator = Evaluator(evaluation, None, tmp_path, num_updates=10, workers=None, telemetry=None)
    assert list(filter(evaluator.is_due, range(1, 11))) == expected


def test_settings_that_do_not_fit_are_refused():
    refused("eval_steps=2.5: above 1 it is a number of updates, which must be whole", config, eval_steps=2.5)
    refused("early_stopping=2 counts evaluations: give eval_steps, too", config, early_stopping=2)
    refused("eval_steps=0: must be a number above 0, and at most 1e[+]08, or epoch", config, eval_steps=0)


SCORES = {2: math.nan, 4: 0.75, 6: 0.5, 8: 0.75, 10: 0.375}  # the best is the first of the best numbers


class Scored(Counter):
    """A step that a kill may interrupt, and whose weights have the `SCORES`."""

    def __init__(self, dies_at=None):
        super().__init__()
        self.events, self.dies_at = itertools.count(1), dies_at

    def restore(self, checkpoints, path):
        checkpoints.restore(path, self.variables)
        self.batches_consumed = self.updates_applied

    def happens(self):
        if next(self.events) == self.dies_at:
            raise KeyboardInterrupt

    def __call__(self, *arguments, **options):
        self.happens()
        return super().__call__(*arguments, **options)

    def copy(self, *arguments):
        self.happens()
        return super().copy(*arguments)

    def scores(self, _, update):
        assert update == self.updates_applied
        self.happens()
        return {"f1": SCORES[update], "eval_loss": 1.0}


@pytest.fixture
def train(monkeypatch):
    """A training of ten updates with an evaluation every second one; returns whether it came to its end, and what its
    weights then were, and of which update they were said to be."""

    def run(folder, dies_at=None, lower_is_better=False, evaluates=True, data="data", **settings):
        step, at_end = Scored(dies_at), []
        scored = Evaluation(step.scores, "f1", data, 2.0, lower_is_better=lower_is_better)
        evaluation = scored if evaluates else None
        limits = dict(eval_steps=2.0, save_checkpoint_steps=3, keep_checkpoints=1, display_loss_steps=4)
        made = make_trainer(monkeypatch, folder, 10, [step] * 2, evaluation=evaluation, **{**limits, **settings})
        return made.fit(lambda _, update: at_end.append((float(step.weight[0]), update))), at_end

    return run


def left(folder):
    return stored(folder), json.loads((folder / "checkpoints" / EVALUATIONS).read_text())["by_update"]


def test_scores_of_earlier_starts_alone_do_not_choose_the_best(tmp_path, train, capsys):
    for _ in range(5):
        train(tmp_path, max_hours=1e-9)
    assert find_best(tmp_path / "checkpoints") == 4
    assert train(tmp_path, evaluates=False, eval_steps=None) == (True, [(10.0, 10)])
    assert find_best(tmp_path / "checkpoints") is None
    assert "the last checkpoint stands for the run: only earlier ones were scored" in capsys.readouterr().out


@pytest.mark.parametrize(
    "settings, last, best",
    [({}, 10, 4), ({"early_stopping": 2}, 8, 4), ({"early_stopping": 4}, 10, 4), ({"lower_is_better": True}, 10, 10)],
)
def test_the_best_is_kept_and_used(tmp_path, train, capsys, settings, last, best):
    assert train(tmp_path, **settings) == (True, [(float(best), best)])
    assert stored(tmp_path) == {update: update for update in (best, last)}
    assert find_best(tmp_path / "checkpoints") == best
    scored = {event["update"]: float(event["f1"]) for event in events(tmp_path, "evaluation")}
    expected = {update: score for update, score in SCORES.items() if update <= last}
    assert scored == pytest.approx(expected, rel=0, nan_ok=True)
    assert events(tmp_path, "end")[0]["reason"] == ("done" if last == 10 else "early_stopping")
    said = capsys.readouterr().out
    assert f"best checkpoint: f1 = {SCORES[best]} after update {best} of {last}; {tmp_path}" in said
    assert ("no better f1 in 2 evaluation(s) since update 4" in said) == (last < 10)
    # Once more: nothing is trained, and nothing scored.
    assert train(tmp_path, **settings) == (True, [(float(best), best)])
    assert len(events(tmp_path, "evaluation")) == len(scored)


def test_a_kill_at_any_moment_leaves_no_trace(tmp_path, train):
    settings = dict(early_stopping=2, save_checkpoint_steps=5)
    train(tmp_path / "whole", **settings)
    for moment in range(1, 17):  # eight updates, four evaluations, and four checkpoints
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "killed", moment, **settings)
        assert train(tmp_path / "killed", **settings) == (True, [(4.0, 4)])
        assert left(tmp_path / "killed") == left(tmp_path / "whole"), moment
        shutil.rmtree(tmp_path / "killed")


def test_what_a_stop_puts_off_is_done_at_the_next_start(tmp_path, train):
    """Each start makes one update, saves it and stops, without an evaluation."""
    train(tmp_path / "whole", early_stopping=2)
    starts = [train(tmp_path / "stopped", early_stopping=2, max_hours=1e-9) for _ in range(9)]
    assert starts == [*[(False, [])] * 8, (True, [(4.0, 4)])]
    assert left(tmp_path / "stopped") == left(tmp_path / "whole")


@pytest.mark.parametrize("settings", [{}, {"early_stopping": 2}])
def test_a_run_that_has_ended_stays_so_with_other_data_to_score(tmp_path, train, capsys, settings):
    """Such as those to be predicted at last: its best checkpoint is the one by which it was chosen."""
    assert train(tmp_path, **settings) == train(tmp_path, data="other", **settings) == (True, [(4.0, 4)])
    assert find_best(tmp_path / "checkpoints") == 4
    assert "the run has ended, and its best checkpoint stays the one by its own evaluations" in capsys.readouterr().out


def test_scores_of_other_data_do_not_count_in_a_run_that_goes_on(tmp_path, train, capsys):
    for _ in range(5):
        train(tmp_path, max_hours=1e-9)
    assert train(tmp_path, data="other") == (True, [(8.0, 8)])
    assert "earlier evaluations were of another score or other data" in capsys.readouterr().out


def test_the_newest_stands_for_a_best_one_that_is_lost_and_damaged_scores_are_refused(tmp_path, train, capsys):
    train(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints/ckpt-00000004")
    assert train(tmp_path)[1] == [(10.0, 10)]
    assert "ckpt-00000004 is damaged (" in capsys.readouterr().err
    file = tmp_path / "checkpoints" / EVALUATIONS
    for text in ("[1", "{}", '{"by_update": [1]}', '{"by_update": {"ten": 1}}', '{"by_update": {"4": null}}'):
        file.write_text(text)
        refused(f"{EVALUATIONS} .*; remove it, and the newest checkpoint counts as the best", find_weights, tmp_path)
