"""The training step that the benchmarks measure, with random weights, and generated records for it."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.variants.shared import random_batch
from bert_tf.memory.plan import Workload
from bert_tf.model.backends import make_backend
from bert_tf.model.heads import PretrainingModel, SpanModel
from bert_tf.model.losses import PretrainingObjective, SpanObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.settings.training import compute_dtype
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep


def make_state(work: Workload, optimizer_type: str = "lamb", for_gpu: bool | None = None) -> TrainState:
    """Random weights and an optimizer, as in a run; `for_gpu` as in `make_backend`."""
    backend = make_backend(work.scope, compute_dtype(work.precision), recompute=work.recompute, for_gpu=for_gpu)
    model_class = PretrainingModel if work.num_predictions else SpanModel
    return TrainState(
        model_class(work.bert_config, backend, seed=1),
        make_optimizer(optimizer_type, 1e-4, 1, 10**6, compiled=work.scope != "off"),
        LossScale(enabled=work.precision == "fp16"),
    )


def make_step(work: Workload, optimizer_type: str = "lamb", state: TrainState | None = None) -> TrainStep:
    """A training step as in a run, of `state` or from random weights."""
    objective = PretrainingObjective() if work.num_predictions else SpanObjective()
    return TrainStep(state or make_state(work, optimizer_type), objective, Workers(), seed=1)


def made_up_rows(work: Workload, num_steps: int) -> dict[str, tf.Tensor]:
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
    starts = features["input_ids"][..., 0] % work.sequence_length
    return {**{name: features[name] for name in names}, "start_positions": starts, "end_positions": starts}
