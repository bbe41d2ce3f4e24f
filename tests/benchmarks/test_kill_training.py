"""What the benchmark that disturbs trainings calls a difference."""

from __future__ import annotations

from benchmarks.kill_training import checkpoint_differences

UNDISTURBED = {
    f"phase_{phase}/checkpoints/ckpt-{update}/weights": bytes([phase, update])
    for phase in (1, 2)
    for update in (28, 32, 36)
} | {"phase_1/eval_results.txt": b"loss"}
FIRST, OWN, LAST = (f"phase_1/checkpoints/ckpt-{update}/weights" for update in (28, 33, 36))


def but(changes):
    found = {**UNDISTURBED, **changes}
    return {name: content for name, content in found.items() if content is not None}


def test_bytes_that_are_others_missing_or_too_many_are_named():
    assert checkpoint_differences(UNDISTURBED, UNDISTURBED, False) == []
    found = but({FIRST: None, OWN: b"?", "phase_1/eval_results.txt": b"other"})
    assert checkpoint_differences(found, UNDISTURBED, False) == [
        f"{FIRST} is missing",
        f"{OWN} is left over",
        "phase_1/eval_results.txt is different",
    ]


def test_the_checkpoint_of_a_signal_may_stand_in_another_ones_place():
    assert checkpoint_differences(but({FIRST: None, OWN: b"?"}), UNDISTURBED, True) == []
    assert checkpoint_differences(but({FIRST: b"?"}), UNDISTURBED, True) == [f"{FIRST} is different"]
    assert checkpoint_differences(but({LAST: None}), UNDISTURBED, True) == [f"{LAST} is missing"]
