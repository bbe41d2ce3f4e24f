"""Evaluation while training: when it is due, which checkpoint is the best, and when early stopping ends the training.

Each task says how it scores (`Evaluation`). The scores are part of the run's state: a run that is resumed from a
checkpoint forgets those of later updates and computes them again, so that it ends like one that was never stopped.
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
      scores: computes the scores of the weights after an update, by name; called on all ranks, of which the chief's
        result counts.
      main_score: the name of the score by which checkpoints are compared.
      data: a fingerprint of the held-out data.
      interval: updates between two evaluations; may be fractional.
    """

    scores: Callable[[Telemetry, int], Mapping[str, float]]
    main_score: str
    data: str
    interval: float
    lower_is_better: bool = False


class Evaluator:
    """Evaluates one run. All ranks must make the same calls, beginning with `resume`.

    Args:
      evaluation: None: no evaluation is ever due.
      patience: the number of evaluations without a better score that ends the training; None: it is never ended.
      checkpoints: the folder of the checkpoints.
      num_updates: of the whole training; the weights after the last one are always scored.
    """

    def __init__(
        self,
        evaluation: Evaluation | None,
        patience: int | None,
        checkpoints: Path,
        *,
        num_updates: int,
        workers: Workers,
        telemetry: Telemetry,
    ):
        self._evaluation, self._patience, self._folder = evaluation, patience, checkpoints
        self._num_updates, self._workers, self._telemetry = num_updates, workers, telemetry
        self._last = self._best = self._num_since_best = 0  # the same on all ranks

    def resume(self, update: int) -> None:
        """Reads the stored scores up to `update`, from which the run is resumed.

        Scores of another kind or other data are dropped, unless the run has ended: they chose its best checkpoint.
        """
        if not (evaluation := self._evaluation):
            return
        self._scored = Evaluations(evaluation.main_score, evaluation.lower_is_better, evaluation.data)
        with self._workers.keep_alive():
            stored = read_evaluations(self._folder) if self._workers.is_chief else None
        if stored:
            earlier = stored.up_to(update)
            has_ended = update >= self._num_updates or self._ends(earlier.num_since_best)
            if dataclasses.replace(earlier, by_update={}) == self._scored:
                self._scored = earlier
            elif has_ended and update in earlier.by_update:
                self._scored = earlier
                self._telemetry.note("the run has ended, and its best checkpoint stays the one by its own evaluations")
            else:
                self._telemetry.note("earlier evaluations were of another score or other data, and do not count")
        self._share()

    def is_due(self, update: int) -> bool:
        """Whether to score the weights after `update`."""
        if not self._evaluation or update <= self._last:
            return False
        # Evaluations due up to each update; 1e-9, because 0.3 / 0.1 is less than 3 in floating point.
        num_before, num_due = (int(number / self._evaluation.interval + 1e-9) for number in (update - 1, update))
        return num_due > num_before or update >= self._num_updates

    def evaluate(self, update: int) -> bool:
        """Scores the weights; returns whether they are the best so far."""
        evaluation = self._evaluation
        assert evaluation
        started = time.monotonic()
        scores = evaluation.scores(self._telemetry, update)
        with self._workers.keep_alive():
            if self._workers.is_chief:
                self._telemetry.evaluation(update, **scores, evaluation_secs=time.monotonic() - started)
                if evaluation.main_score not in scores:
                    fault = f"the held-out data give no {evaluation.main_score}"
                    raise UserError(f"--eval_steps: {fault}; use data that do")
                by_update = {**self._scored.by_update, update: scores[evaluation.main_score]}
                self._scored = dataclasses.replace(self._scored, by_update=by_update)
                self._telemetry.write(EVALUATIONS, self._scored.write, self._folder)
        self._share()
        if self.has_converged:
            self._telemetry.note(
                f"no better {evaluation.main_score} in {self._num_since_best} evaluation(s) since update "
                f"{self._best:,}: the training ends (--early_stopping)"
            )
        return self._best == update

    @property
    def has_converged(self) -> bool:
        return self._ends(self._num_since_best)

    def _ends(self, num_since_best: int) -> bool:
        return self._patience is not None and num_since_best >= self._patience

    def _share(self) -> None:
        """Gives all ranks the chief's last and best update, and the number of evaluations since the best."""
        scored = self._scored
        facts = [max(scored.by_update, default=0), scored.best or 0, scored.num_since_best]
        self._last, self._best, self._num_since_best = self._workers.gather(np.array(facts, np.int64))[0].tolist()
