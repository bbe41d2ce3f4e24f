"""The training step that the benchmarks measure, with random weights, and generated records for it."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

from benchmarks.variants.shared import random_batch
from bert_tf.base.tensorflow import tf
from bert_tf.memory.plan import Workload
from bert_tf.model.backends import make_backend
from bert_tf.model.heads import ClassifierModel, PretrainingModel, SpanModel, TokenModel
from bert_tf.model.losses import ClassificationObjective, PretrainingObjective, SpanObjective, TokenObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.settings.training import compute_dtype
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep


class Head(NamedTuple):
    """A task's model and objective, and the targets that it makes of random ids [..., S]."""

    model: Callable[..., Any]
    objective: Callable[[], Any]
    targets: Callable[[tf.Tensor], dict[str, tf.Tensor]]


def _spans(ids: tf.Tensor) -> dict[str, tf.Tensor]:
    starts = ids[..., 0] % ids.shape[-1]
    return {"start_positions": starts, "end_positions": starts}


def _tokens(ids: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"label_ids": ids % 3, "label_weights": tf.ones(ids.shape)}


# Entities have the classes O, B and I; texts have as many as ChemProt.
HEADS = {
    "squad": Head(SpanModel, SpanObjective, _spans),
    "entities": Head(lambda config, backend, seed: TokenModel(config, 3, backend, seed), TokenObjective, _tokens),
    "classes": Head(
        lambda config, backend, seed: ClassifierModel(config, 6, backend, seed),
        ClassificationObjective,
        lambda ids: {"labels": ids[..., 0] % 6},
    ),
}


def make_state(work: Workload, optimizer_type: str = "lamb", head: Head = HEADS["squad"]) -> TrainState:
    """Random weights and an optimizer, as in a run; `head`: where `work` has no masked tokens."""
    backend = make_backend(work.scope, compute_dtype(work.precision), recompute=work.recompute)
    model_class = PretrainingModel if work.num_predictions else head.model
    return TrainState(
        model_class(work.bert_config, backend, seed=1),
        make_optimizer(optimizer_type, 1e-4, 1, 10**6, compiled=work.scope != "off"),
        LossScale(enabled=work.precision == "fp16"),
    )


def make_step(work: Workload, optimizer_type: str = "lamb") -> TrainStep:
    """A training step as in a run, from random weights."""
    objective = PretrainingObjective() if work.num_predictions else SpanObjective()
    return TrainStep(make_state(work, optimizer_type), objective, Workers(), seed=1)


def made_up_rows(work: Workload, num_steps: int, head: Head = HEADS["squad"]) -> dict[str, tf.Tensor]:
    """Features [num_steps, micro-batch, ...] of random records without padding and with all predictions used."""
    sizes = {
        "num_accumulation_steps": num_steps,
        "micro_batch_size": work.micro_batch_size,
        "seq_length": work.sequence_length,
        "predictions": work.num_predictions,
        "vocab_size": work.bert_config.vocab_size,
    }
    features = {name: tf.constant(values) for name, values in random_batch(sizes).items()}
    if work.num_predictions:
        return features
    names = ("input_ids", "input_mask", "segment_ids", "example_weights")
    return {**{name: features[name] for name in names}, **head.targets(features["input_ids"])}
