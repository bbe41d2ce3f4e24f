"""Training objectives: losses and metrics as sums over instances, never means.

A mean over a micro-batch depends on how the global batch was split. So an objective returns sums,
and the training step divides them by the denominators of the whole update (`training.step`).

Shape letters: A micro-batches of an update, B batch, S sequence, P masked positions, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from bert_tf.model.randomness import DropoutKey

Features = dict[str, tf.Tensor]


def _host_sums(*weights: tf.Tensor) -> np.ndarray:
    """Sums by NumPy on the host, where the inputs are: TensorFlow's would be queued behind pending GPU work."""
    return np.array([np.sum(values) for values in weights], np.float32)


class PretrainingObjective:
    """Masked-LM plus next-sentence cross-entropy (arXiv 1810.04805, section 3.1).

    Two losses with two denominators: masked tokens and instances. An instance whose
    `example_weights` entry is 0 only fills up a batch and does not count. A packed row has several
    labels and weights (`packing`).
    """

    denominator_names = ("masked_tokens", "instances")
    metric_names = ("mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")
    # For each metric, the index of the denominator that divides its sum.
    metric_denominators = (0, 1, 0, 1)

    def local_denominators(self, features: Features) -> np.ndarray:
        """Masked tokens and instances in features with leading dimensions [A, B]: float32 [2]."""
        return _host_sums(features["masked_lm_weights"], features["example_weights"])

    def __call__(
        self, model: tf.keras.Model, features: Features, dropout: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss sums float32 [2] and metric sums float32 [4] of one micro-batch."""
        mlm_logits_BxPxV, nsp_logits_Rx2 = model(features, dropout=dropout)
        cross_entropy = model.backend.cross_entropy
        mlm_loss, mlm_correct = cross_entropy(
            tf.reshape(mlm_logits_BxPxV, [-1, mlm_logits_BxPxV.shape[2]]),
            tf.reshape(features["masked_lm_ids"], [-1]),
            tf.reshape(features["masked_lm_weights"], [-1]),
        )
        nsp_loss, nsp_correct = cross_entropy(
            nsp_logits_Rx2,
            tf.reshape(features["next_sentence_labels"], [-1]),
            tf.reshape(features["example_weights"], [-1]),
        )
        losses = tf.stack([mlm_loss, nsp_loss])
        return losses, tf.concat([losses, tf.stack([mlm_correct, nsp_correct])], axis=0)


class _OverInstances:
    """Base of the objectives whose only denominator is the number of instances."""

    denominator_names = ("instances",)

    def local_denominators(self, features: Features) -> np.ndarray:
        """Instances in features with leading dimensions [A, B]: float32 [1]."""
        return _host_sums(features["example_weights"])


class SpanObjective(_OverInstances):
    """Mean of two cross-entropies over the positions: for an answer's first and for its last token."""

    metric_names = ("total_loss", "start_accuracy", "end_accuracy")
    metric_denominators = (0, 0, 0)

    def __call__(
        self, model: tf.keras.Model, features: Features, dropout: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss sums float32 [1] and metric sums float32 [3] of one micro-batch."""
        start_logits_BxS, end_logits_BxS = model(features, dropout=dropout)
        weights_B = features["example_weights"]
        start_loss, start_correct = model.backend.cross_entropy(
            start_logits_BxS, features["start_positions"], weights_B
        )
        end_loss, end_correct = model.backend.cross_entropy(end_logits_BxS, features["end_positions"], weights_B)
        loss = (start_loss + end_loss) / 2.0
        return loss[tf.newaxis], tf.stack([loss, start_correct, end_correct])


class ClassificationObjective(_OverInstances):
    """Cross-entropy of the class "labels" int32 [B]."""

    metric_names = ("total_loss", "train_accuracy")
    metric_denominators = (0, 0)

    def __call__(
        self, model: tf.keras.Model, features: Features, dropout: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss sums float32 [1] and metric sums float32 [2] of one micro-batch."""
        logits_BxC = model(features, dropout=dropout)
        loss, correct = model.backend.cross_entropy(logits_BxC, features["labels"], features["example_weights"])
        return loss[tf.newaxis], tf.stack([loss, correct])


class RegressionObjective(_OverInstances):
    """Squared error of the predicted number; "labels" float32 [B]."""

    metric_names = ("total_loss",)
    metric_denominators = (0,)

    def __call__(
        self, model: tf.keras.Model, features: Features, dropout: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss sums float32 [1] and metric sums float32 [1] of one micro-batch."""
        numbers_B = model(features, dropout=dropout)[:, 0]
        loss = tf.reduce_sum(tf.square(numbers_B - features["labels"]) * features["example_weights"])
        return loss[tf.newaxis], loss[tf.newaxis]
