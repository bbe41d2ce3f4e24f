"""The training step that the benchmarks measure, with random weights, and generated records for it."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

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
    rng, shape = np.random.default_rng(0), [num_steps, work.micro_batch_size]

    def whole(high: int, *more: int) -> tf.Tensor:
        return tf.constant(rng.integers(0, high, [*shape, *more]), tf.int32)

    length, num_masked = work.sequence_length, work.num_predictions
    features = {
        "input_ids": whole(work.bert_config.vocab_size, length),
        "input_mask": tf.ones([*shape, length], tf.int32),
        "segment_ids": whole(2, length),
        "example_weights": tf.ones(shape),
    }
    if not num_masked:
        return {**features, "start_positions": whole(length), "end_positions": whole(length)}
    return {
        **features,
        "masked_lm_positions": whole(length, num_masked),
        "masked_lm_ids": whole(work.bert_config.vocab_size, num_masked),
        "masked_lm_weights": tf.ones([*shape, num_masked]),
        "next_sentence_labels": whole(2, 1),
    }
