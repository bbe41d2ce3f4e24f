"""What the classes of a model mean: the labels of the weights that it starts from or predicts with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bert_tf.base.errors import UserError
from bert_tf.interchange.labels import TASK_FILE, read_task
from bert_tf.interchange.weights import Weights
from bert_tf.tasks.entities.schemes import fault_of
from bert_tf.tasks.entities.task import TOKEN_HEAD


class Fitted(NamedTuple):
    """The labels in the order of a model's classes.

    Attributes:
      keeps_head: whether a training takes over the initial classifier; if not, it starts with the encoder alone.
      note: about a new classifier; "" if there is nothing to say.
    """

    labels: Sequence[str]
    keeps_head: bool = True
    note: str = ""


def as_started(labels: Sequence[str], weights: Weights | None) -> Fitted:
    """For training, which makes a new classifier if that of the weights has other labels."""
    if weights is None or TOKEN_HEAD.variable not in weights.shapes:
        return Fitted(labels)
    trained = read_task(weights, TOKEN_HEAD.variable)
    if trained and sorted(trained.labels) == sorted(labels):
        return Fitted(trained.labels)
    other = trained or "labels that are not known"
    return Fitted(labels, False, f"{weights.source} was fine-tuned for {other}: a new classifier is made")


def as_trained(weights: Weights) -> Fitted:
    """For prediction. Raises: UserError if the weights' labels are not known, or are none of tokens."""
    trained = read_task(weights, TOKEN_HEAD.variable)
    if trained is None:
        raise UserError(
            f"{weights.folder / TASK_FILE} does not exist, so the model's labels are not known; use a checkpoint of "
            "this program"
        )
    if fault := next(filter(None, map(fault_of, trained.labels)), ""):
        raise UserError(f"{trained.file}: {fault}; give the model's labels there, or use another checkpoint")
    return Fitted(trained.labels)
