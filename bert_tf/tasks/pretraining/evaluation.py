"""Evaluation of pre-training: losses and accuracies on held-out instances, by the objective of the training."""

from __future__ import annotations

import functools
from typing import Callable, NamedTuple

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import keras, tf
from bert_tf.batches.batches import evaluation_batches
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.memory.split import naming_the_batch
from bert_tf.model.losses import Objective
from bert_tf.ranks.workers import Workers
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import BatchSplit, PretrainingConfig

# The objective's metrics that are reported -> their names in NVIDIA's evaluation.
_REPORTED_NAMES = {
    "mlm_accuracy": "masked_lm_accuracy",
    "mlm_loss": "masked_lm_loss",
    "nsp_accuracy": "next_sentence_accuracy",
    "nsp_loss": "next_sentence_loss",
    "total_loss": "loss",
}


class Scorer(NamedTuple):
    model: keras.Model
    scores: Callable[[Telemetry, int], dict[str, float]] | None  # by update; None: there is no held-out data


def make_scorer(
    config: PretrainingConfig, instances: InstanceSet | None, model: keras.Model, objective: Objective, workers: Workers
) -> Scorer:
    """Makes what scores the model: the mean metrics over the held-out instances, without dropout."""
    if not instances:
        return Scorer(model, None)
    split = BatchSplit(config.eval_batch_size, 1, workers.size, workers.rank)
    num_all_batches = -(-instances.num_instances // split.global_batch_size)
    num_batches = min(num_all_batches, config.max_eval_steps or num_all_batches)
    compiled = tf.function(
        lambda features: objective(model, features, None)[1], jit_compile=model.backend.scope == "step", autograph=False
    )
    num_denominators = len(objective.denominator_names)

    @functools.cache  # the scores of the best weights are needed again at the end
    def scores(telemetry: Telemetry, _: int) -> dict[str, float]:
        if num_batches < num_all_batches:
            telemetry.note(
                f"evaluating {num_batches * split.global_batch_size:,} of {instances.num_instances:,} held-out "
                "instances (--max_eval_steps)"
            )
        batches = evaluation_batches(instances, split, num_batches, vocab_size=model.config.vocab_size)
        sums = np.zeros([num_denominators + len(objective.metric_names)])
        is_silent = not workers.is_chief
        progress = Progress(batches, total=num_batches, unit="batches", description="evaluation", disable=is_silent)
        with workers.keep_alive(), naming_the_batch("eval_batch_size", split.micro_batch_size):
            for features in progress:
                sums[:num_denominators] += objective.local_denominators(features)
                sums[num_denominators:] += compiled(features).numpy()
        totals = workers.gather(sums).sum(axis=0)
        denominators = np.maximum(totals[:num_denominators], 1.0)
        means = objective.name_metrics(totals[num_denominators:] / objective.metric_denominators(denominators))
        return {reported: means[name] for name, reported in _REPORTED_NAMES.items() if name in means}

    return Scorer(model, scores)
