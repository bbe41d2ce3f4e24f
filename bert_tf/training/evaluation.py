"""Evaluation while training: when it is due, which checkpoint is the best, and when to stop for want of a better one.

Tasks say how they score (`Evaluation`). The scores are part of the run's state: a run that is
resumed from a checkpoint forgets those of later updates, makes them again, and so ends as one that was never stopped.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.ranks.workers import Workers
from bert_tf.run.evaluations import EVALUATIONS, Evaluations, read_evaluations
from bert_tf.run.telemetry import Telemetry


class Evaluation(NamedTuple):
    """How a training is scored on held-out data.

    Attributes:
      scores: of the weights after an update, by name; called on all ranks, the chief's count.
      main_score: the name of the one by which checkpoints are compared.
      data: a fingerprint of the held-out data.
      interval: updates between two evaluations, not always whole.
    """

    scores: Callable[[Telemetry, int], Mapping[str, float]]
    main_score: str
    data: str
    interval: float
    lower_is_better: bool = False


class Evaluator:
    """Evaluates one run. All ranks must call everything here alike; `resume` first.

    Args:
      evaluation: None: nothing is ever due.
      patience: so many evaluations without a better score end the training; None: none do.
      checkpoints: the folder of the checkpoints.
    """

    def __init__(
        self,
        evaluation: Evaluation | None,
        patience: int | None,
        checkpoints: Path,
        *,
        workers: Workers,
        telemetry: Telemetry,
    ):
        self._evaluation = evaluation
        self._patience, self._folder, self._workers, self._telemetry = patience, checkpoints, workers, telemetry
        self._last = self._best = self._num_since_best = 0  # the same on all ranks

    def resume(self, update: int, *, is_last: bool) -> None:
        """Reads what was scored up to an `update`, with which the training ended if it `is_last`.

        A run that has ended keeps its scores, whatever is to be scored now: by those the best checkpoint was chosen.
        """
        if not (how := self._evaluation):
            return
        self._known = Evaluations(how.main_score, how.lower_is_better, how.data)
        with self._workers.keep_alive():
            stored = read_evaluations(self._folder) if self._workers.is_chief else None
        known = stored.up_to(update) if stored else None
        if known and dataclasses.replace(known, by_update={}) == self._known:
            self._known = known
        elif known and update in known.by_update and (is_last or self._ends(known.num_since_best)):
            self._known = known
            self._telemetry.note("the run has ended, and its best checkpoint stays the one by its own evaluations")
        elif known:
            self._telemetry.note("earlier evaluations were of another score or other data, and do not count")
        self._share()

    def is_due(self, update: int, *, is_last: bool) -> bool:
        """Whether the weights after an `update` are to be scored; those after the last one are."""
        if not self._evaluation or update <= self._last:
            return False
        # How many are due up to an update; 1e-9, because 0.3 / 0.1 is less than 3 in floating point.
        before, now = (int(number / self._evaluation.interval + 1e-9) for number in (update - 1, update))
        return is_last or now > before

    def evaluate(self, update: int) -> bool:
        """Scores the weights; returns whether they are the best so far."""
        how = self._evaluation
        assert how
        started = time.monotonic()
        scores = how.scores(self._telemetry, update)
        with self._workers.keep_alive():
            if self._workers.is_chief:
                self._telemetry.evaluation(update, **scores, evaluation_secs=time.monotonic() - started)
                if how.main_score not in scores:
                    raise UserError(f"--eval_steps: the held-out data give no {how.main_score}; use data that do")
                by_update = {**self._known.by_update, update: scores[how.main_score]}
                self._known = dataclasses.replace(self._known, by_update=by_update)
                self._telemetry.write(EVALUATIONS, self._known.write, self._folder)
        self._share()
        if self.has_converged:
            self._telemetry.note(
                f"no better {how.main_score} in {self._num_since_best} evaluation(s) since update {self._best:,}: the "
                "training ends (--early_stopping)"
            )
        return self._best == update

    @property
    def has_converged(self) -> bool:
        return self._ends(self._num_since_best)

    def _ends(self, num_since_best: int) -> bool:
        return self._patience is not None and num_since_best >= self._patience

    def _share(self) -> None:
        known = self._known
        facts = [max(known.by_update, default=0), known.best or 0, known.num_since_best]
        self._last, self._best, self._num_since_best = self._workers.gather(np.array(facts, np.int64))[0].tolist()
