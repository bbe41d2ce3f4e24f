"""The scores of a run's weights on held-out data during training, which tell its best checkpoint.

They are kept in a file beside the checkpoints, not in them. After a kill it may hold scores of updates after the newest
checkpoint; those do not count. Does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

from bert_tf.base.errors import UserError
from bert_tf.base.fields import checked_fields
from bert_tf.base.files import read_json_object, write_text
from bert_tf.run.run_folder import find_checkpoints

EVALUATIONS = "evaluations.json"  # in the folder of the checkpoints


@dataclasses.dataclass(frozen=True)
class Evaluations:
    """The values of the score by which a run's checkpoints are compared.

    Attributes:
      score: its name.
      lower_is_better: true for a loss.
      data: a fingerprint of the held-out data.
      by_update: the score after each update that was evaluated, ascending.
    """

    score: str
    lower_is_better: bool
    data: str
    by_update: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> int | None:
        """The update with the best score, the first of equal ones; None if there is no score. NaN is the worst."""
        sign = -1 if self.lower_is_better else 1
        values = {update: -math.inf if math.isnan(value) else sign * value for update, value in self.by_update.items()}
        return max(values, key=values.__getitem__, default=None)

    @property
    def num_since_best(self) -> int:
        """The number of evaluations after the best one."""
        return sum(update > (self.best or 0) for update in self.by_update)

    def up_to(self, update: int) -> Evaluations:
        scores = {scored: value for scored, value in self.by_update.items() if scored <= update}
        return dataclasses.replace(self, by_update=scores)

    def write(self, checkpoints: Path) -> None:
        """Writes the file; non-finite scores become texts, as strict JSON has no such numbers. Raises OSError."""
        scores = {update: score if math.isfinite(score) else str(score) for update, score in self.by_update.items()}
        content = {**dataclasses.asdict(self), "by_update": scores}
        write_text(checkpoints / EVALUATIONS, json.dumps(content, indent=2) + "\n")


def read_evaluations(checkpoints: Path) -> Evaluations | None:
    """The evaluations in a run's ``checkpoints`` folder; None if it has none. Raises `UserError` for a damaged file."""
    path, remedy = checkpoints / EVALUATIONS, "remove it, and the newest checkpoint counts as the best"
    if not path.exists():
        return None
    stored = read_json_object(path, remedy)
    try:
        fields = checked_fields(stored, {"score": str, "lower_is_better": bool, "data": str, "by_update": dict})
        fields["by_update"] = {int(update): float(value) for update, value in fields["by_update"].items()}
        return Evaluations(**fields)
    except (OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not as a run has written it ({error}); {remedy}") from None


def find_best(checkpoints: Path) -> int | None:
    """The update with the best score, whose checkpoint may be lost; None if none was scored.

    Raises: UserError if the file of scores is damaged.
    """
    evaluations, newest = read_evaluations(checkpoints), max(find_checkpoints(checkpoints), default=0)
    return evaluations.up_to(newest).best if evaluations else None
