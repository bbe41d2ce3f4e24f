"""Warns when the logged losses show that a training makes no progress or diverges.

There are two rules, each of which warns at most once per start of the program. Neither warns about the curves
of real runs in tests/golden/loss_curves.json: long plateaus are common, but at the loss of a model that
knows only the pieces' frequencies, well below that of one that has learned nothing.
"""

from __future__ import annotations

import collections
import math

# After this many updates the losses of all runs seen had fallen by 2 nats or more; a warm-up delays this.
_NO_PROGRESS_UPDATES, _WARMUP_SHARE, _PROGRESS_NATS = 300, 0.25, 0.2
# A jump exceeds the largest recent loss by the range of the recent losses, and at least by _JUMP_NATS.
_RECENT_REPORTS, _JUDGED_FROM, _JUMP_NATS = 20, 10, 0.5
_CAUSES = (
    "usual causes: duplicated text, records made with another vocabulary than the model's, too high a learning "
    "rate, too short a warm-up"
)


class LossWatch:
    """Judges the pre-training loss of one run.

    Args:
      untrained_loss: that of a model that has learned nothing.
      warmup_steps: number of warm-up updates, in which little is learned at first.
    """

    def __init__(self, untrained_loss: float, warmup_steps: int):
        self._start_loss = untrained_loss
        self._due = _NO_PROGRESS_UPDATES + int(_WARMUP_SHARE * warmup_steps)
        self._recent: collections.deque[float] = collections.deque(maxlen=_RECENT_REPORTS)
        self._may_be_stuck = self._may_jump = True

    def add(self, update: int, loss: float) -> list[str]:
        """Adds a report: the mean loss of the updates since the last report, up to `update`; returns warnings."""
        warnings: list[str] = []
        if self._may_be_stuck and loss < self._start_loss - _PROGRESS_NATS:
            self._may_be_stuck = False
        if self._may_be_stuck and update >= self._due:
            self._may_be_stuck = False
            warnings.append(
                f"after {update:,} updates the loss is {loss:.2f} and still near {self._start_loss:.2f}, the loss of a "
                f"model that has learned nothing; {_CAUSES} (or too low a rate)"
            )
        if self._may_jump and self._is_jump(loss):
            self._may_jump = False
            warnings.append(
                f"the loss is {loss:.2f} at update {update:,} and was between {min(self._recent):.2f} and "
                f"{max(self._recent):.2f} in the last {len(self._recent)} reports; {_CAUSES}. If it stays there, start "
                "again from an earlier checkpoint with a lower rate"
            )
        if math.isfinite(loss):
            self._recent.append(loss)
        return warnings

    def _is_jump(self, loss: float) -> bool:
        if len(self._recent) < _JUDGED_FROM:
            return False
        low, high = min(self._recent), max(self._recent)
        return loss > high + max(_JUMP_NATS, high - low)
