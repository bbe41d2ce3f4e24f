"""Statistics of the updates between two log lines, and warnings when the losses make no progress or diverge.

There are two warnings, each given at most once per start of the program. Neither is given for the curves of real runs
in tests/golden/loss_curves.json. Their long plateaus are at the loss of a model that knows only how frequent each piece
is, well below the loss of one that has learned nothing.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bert_tf.base.tensorflow import tf
from bert_tf.model.losses import Objective
from bert_tf.ranks.workers import Workers

if TYPE_CHECKING:  # importing it needs packages that an update does not
    from bert_tf.batches.batches import Batch


class UpdateResult(NamedTuple):
    """What one update did. Reading a tensor waits for the update."""

    stop_requested: bool  # a rank asked all ranks to stop after this update
    own_secs: float  # of this rank's forward and backward passes; all times are measured on the host
    waited_secs: float  # for the other ranks, and to exchange gradients with them
    metrics: tf.Tensor  # float32 [M]: means over the global batch, named by the objective
    gradient_norm: tf.Tensor  # of the global gradient before clipping
    is_finite: tf.Tensor  # bool; if False, nothing was changed
    learning_rate: tf.Tensor
    loss_scale: tf.Tensor
    norm_by_variable: tf.Tensor  # float32 [V]: like gradient_norm, for each trained variable
    change_by_variable: tf.Tensor  # float32 [V, 3]: norms of weights and change, trust ratio (`apply_update`)


class UpdateStatistics:
    """Collects the updates since the last log line. Results stay on the device until `read`.

    Only the first two updates after a line are timed, and the second one (the first, if it is the only one) stands for
    all, because the first may include compilation. Just after a line the device has no work queued, so that waiting for
    it costs next to nothing.

    Attributes:
      num_skipped: skipped updates of the whole run, up to the last `read`.
    """

    def __init__(self, objective: Objective, workers: Workers):
        self._objective, self._workers, self.num_skipped = objective, workers, 0
        self._clear()

    def _clear(self) -> None:
        self._results: list[UpdateResult] = []
        self._num_tokens = self._num_rows = self._num_positions = 0
        self._secs = dict.fromkeys(("input", "compute", "saving", "evaluation"), 0.0)
        self._started = time.monotonic()

    @contextlib.contextmanager
    def timed(self, activity: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self._secs[activity] += time.monotonic() - started

    @property
    def needs_times(self) -> bool:
        """Whether to time the next update (`TrainStep.agree_on_update`)."""
        return len(self._results) < 2

    def add(self, result: UpdateResult, batch: Batch) -> None:
        """Adds one update and its batch."""
        self._results.append(result)
        self._num_tokens += batch.num_tokens
        self._num_rows += batch.num_rows
        self._num_positions += batch.num_rows * batch.features["input_ids"].shape[-1]

    def last_loss(self) -> float:
        """The loss of the last update added; waits for it."""
        with self.timed("compute"):
            metrics = self._results[-1].metrics.numpy()
        return self._objective.name_metrics(metrics)["total_loss"]

    def read(self, global_batch_size: int) -> tuple[dict[str, Any], UpdateResult]:
        """The figures to log for the updates since the last call, and the last update's result; then starts afresh.

        Metrics and norm are means over the applied updates, or over all if all were skipped; the learning rate is the
        last update's. With several ranks, all of which must call this, the figures also compare their times.
        """
        results, last = self._results, self._results[-1]
        with self.timed("compute"):  # waits for the device, which computes asynchronously
            applied = [result for result in results if result.is_finite]
        self.num_skipped += len(results) - len(applied)
        reported = applied or results
        metrics = np.mean([result.metrics.numpy() for result in reported], axis=0)
        gradient_norm = np.mean([float(result.gradient_norm) for result in reported])
        seconds = time.monotonic() - self._started - self._secs.pop("saving") - self._secs.pop("evaluation")
        timed_update, num_instances = results[:2][-1], global_batch_size * len(results)
        all_reduce_secs = min(timed_update.waited_secs * len(results), self._secs["compute"])
        own_secs = timed_update.own_secs + self._secs["input"] / len(results)
        # As seen by the host, whose own share is the remainder.
        secs_by_activity = {
            "input": self._secs["input"],
            "compute": self._secs["compute"] - all_reduce_secs,
            "all_reduce": all_reduce_secs,
            "host": seconds - sum(self._secs.values()),
        }
        figures = {**self._objective.name_metrics(metrics), "skipped_updates": self.num_skipped}
        if self._num_rows:  # the batches say how full the rows were
            figures |= {
                "tokens_per_sec": self._num_tokens / seconds,
                "padding_share": 1.0 - self._num_tokens / self._num_positions,
                "instances_per_row": num_instances / self._num_rows,
            }
        self._clear()
        return figures | {
            "gradient_norm": float(gradient_norm),
            "learning_rate": float(last.learning_rate),
            "loss_scaler": float(last.loss_scale),
            "throughput_train": num_instances / seconds,
            "update_secs": seconds / len(results),
            **{f"{name}_share": max(secs, 0.0) / seconds for name, secs in secs_by_activity.items()},
            **self._compare_ranks(own_secs),
        }, last

    def _compare_ranks(self, own_secs: float) -> dict[str, Any]:
        """Minimum, median and maximum of the ranks' `own_secs`, and the slowest rank and its host.

        `own_secs` is the time of an update on this rank, without its exchange with other ranks.
        """
        if self._workers.size == 1:
            return {}
        by_rank = self._workers.gather(np.array([own_secs]))[:, 0]
        secs, slowest = np.sort(by_rank), int(by_rank.argmax())
        return {
            "rank_secs_min": float(secs[0]),
            # With two ranks the faster one's: their mean describes neither.
            "rank_secs_median": float(secs[(len(secs) - 1) // 2]),
            "rank_secs_max": float(secs[-1]),
            "slowest_rank": slowest,
            "slowest_host": self._workers.hosts[slowest],
        }


def first_non_finite(variables: Sequence[tf.Variable], values_V: np.ndarray) -> str | None:
    """The name of the first variable whose value is not finite, and how many there are; None if all are finite."""
    bad = np.flatnonzero(~np.isfinite(values_V))
    if not bad.size:
        return None
    return f"{variables[bad[0]].name.split(':')[0]} ({bad.size} of {len(variables)} variables)"


# After this many updates the losses of all runs seen had fallen by 2 nats or more; a warm-up delays this.
_NO_PROGRESS_UPDATES, _WARMUP_SHARE, _PROGRESS_NATS = 300, 0.25, 0.2
# A jump exceeds the largest recent loss by the range of the recent losses, and at least by _JUMP_NATS.
_RECENT_REPORTS, _JUDGED_FROM, _JUMP_NATS = 20, 10, 0.5
_CAUSES = (
    "usual causes: duplicated text, records made with another vocabulary than the model's, too high a learning "
    "rate, too short a warm-up"
)


class LossWatch:
    """Warns if the pre-training loss of a run makes no progress, or jumps.

    `untrained_loss` is that of a model that has learned nothing; a long warm-up, `warmup_steps`, delays progress.
    """

    def __init__(self, untrained_loss: float, warmup_steps: int):
        self._untrained_loss = untrained_loss
        self._progress_due = _NO_PROGRESS_UPDATES + int(_WARMUP_SHARE * warmup_steps)
        self._recent: collections.deque[float] = collections.deque(maxlen=_RECENT_REPORTS)
        self._may_warn_of_plateau = self._may_warn_of_jump = True

    def add(self, update: int, loss: float) -> str | None:
        """Adds the mean `loss` of the updates since the last report, up to `update`; returns a warning, or None."""
        warning, recent = None, self._recent
        is_stuck = not loss < self._untrained_loss - _PROGRESS_NATS
        if self._may_warn_of_plateau and is_stuck and update >= self._progress_due:
            warning = (
                f"after {update:,} updates the loss is {loss:.2f} and still near {self._untrained_loss:.2f}, the loss "
                f"of a model that has learned nothing; {_CAUSES} (or too low a rate)"
            )
        self._may_warn_of_plateau &= is_stuck and not warning
        if self._may_warn_of_jump and len(recent) >= _JUDGED_FROM:
            low, high = min(recent), max(recent)
            if loss > high + max(_JUMP_NATS, high - low):
                self._may_warn_of_jump = False
                warning = (
                    f"the loss is {loss:.2f} at update {update:,} and was between {low:.2f} and {high:.2f} in the last "
                    f"{len(recent)} reports; {_CAUSES}. If it stays there, start again from an earlier checkpoint with "
                    "a lower rate"
                )
        if math.isfinite(loss):
            recent.append(loss)
        return warning
