"""Warnings about the loss: silent on the curves of real runs, one each where something is wrong."""

import json
import math
import random
from pathlib import Path

import pytest

from bert_tf.model.losses import MaskedWordObjective, PretrainingObjective
from bert_tf.run.statistics import LossWatch

# Logged by real runs of this code, every 10 updates: plateaus, noise of small batches, phases 2.
CURVES = json.loads((Path(__file__).parents[1] / "golden" / "loss_curves.json").read_text())
START = math.log(30522) + math.log(2)


def warnings_of(losses, updates=None, vocab_size=30522, warmup_steps=100):
    watch = LossWatch(PretrainingObjective.untrained_loss(vocab_size), warmup_steps)
    updates = updates or range(10, 10 * len(losses) + 10, 10)
    return [(update, warning) for update, loss in zip(updates, losses) if (warning := watch.add(update, loss))]


@pytest.mark.parametrize("name", CURVES)
def test_real_runs_are_not_complained_about(name):
    curve = CURVES[name]
    assert warnings_of(**curve) == []
    last = curve["losses"].index(min(curve["losses"]))
    diverged = [*curve["losses"][: last + 1], 1.2 * START, 1.2 * START]
    ((_, warning),) = warnings_of(diverged, curve["updates"] + [10**6] * 2, curve["vocab_size"], curve["warmup_steps"])
    assert "usual causes: duplicated text" in warning


def test_noise_is_not_complained_about():
    noise = random.Random(0)
    assert warnings_of([noise.gauss(7.0, 0.3) for _ in range(5000)]) == []


def test_no_progress_is_said_once():
    noise = random.Random(0)
    ((update, warning),) = warnings_of([START + noise.gauss(0.0, 0.05) for _ in range(200)], warmup_steps=400)
    assert update == 400, "300 updates and a quarter of the warm-up"
    assert "still near 11.02" in warning and "another vocabulary" in warning


def test_without_next_sentence_nothing_learned_is_less():
    watch = LossWatch(MaskedWordObjective.untrained_loss(30522), 0)
    assert [watch.add(update, math.log(30522)) for update in (200, 250)] == [None, None]
    assert "still near 10.33" in watch.add(300, math.log(30522))


def test_a_jump_is_said_once_and_rounding_up_a_plateau_is_none():
    plateau = [6.0 + 0.01 * (number % 3) for number in range(60)]
    assert warnings_of([START - 1, *plateau, *[6.4] * 30]) == []
    ((update, warning),) = warnings_of([START - 1, *plateau, *[8.0] * 30, *[12.0] * 30])
    assert update == 620 and "8.00 at update 620 and was between 6.00 and 6.02" in warning


def test_a_loss_that_is_no_number_does_not_spoil_the_range():
    losses = [START - 3 + 0.01 * (number % 5) for number in range(30)]
    assert warnings_of([*losses, math.nan, *losses]) == []
