"""Training objectives: losses and metrics as sums over instances, never means.

A mean over a micro-batch depends on how the global batch was split. So an objective returns sums,
and the training step divides them by the denominators of the whole update (`training.step`).

Shape letters: A micro-batches of an update, B batch, S sequence, P masked positions, C classes, V vocabulary,
K losses, M metrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_tf.base.tensorflow import keras, tf
from bert_tf.model.backends.plain import Plain
from bert_tf.model.randomness import DropoutKey
from bert_tf.model.visibility import Features


class Objective:
    """Base class. An instance whose `example_weights` entry is 0 only fills up a batch and does not count.

    Attributes:
      denominator_names: for each loss, the feature whose sum over the update divides it.
      metric_names: the losses, then other metrics of each; of two losses, in turn.
    """

    denominator_names: tuple[str, ...] = ("example_weights",)
    metric_names: tuple[str, ...] = ("total_loss",)

    def local_denominators(self, features: Features) -> np.ndarray:
        """The denominators of features with leading dimensions [A, B]: float32 [K].

        By NumPy on the host, where the inputs are: TensorFlow's sums would be queued behind pending GPU work.
        """
        return np.array([np.sum(features[name]) for name in self.denominator_names], np.float32)

    def metric_denominators(self, denominators_K: np.ndarray) -> np.ndarray:
        """What divides the sum of each metric: [M]."""
        return np.resize(denominators_K, len(self.metric_names))

    def name_metrics(self, means_M: np.ndarray) -> dict[str, float]:
        """Mean metrics under NVIDIA's names; with several losses also their sum."""
        metrics = dict(zip(self.metric_names, map(float, means_M)))
        losses = [value for name, value in metrics.items() if name.endswith("_loss")]
        return metrics if "total_loss" in metrics else {"total_loss": sum(losses), **metrics}

    def __call__(
        self, model: keras.Model, features: Features, dropout: DropoutKey | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Loss sums float32 [K] and metric sums float32 [M] of one micro-batch."""
        sums = self._sums(self._outputs(model, features, dropout), features, model.backend)
        return tf.stack(sums[: len(self.denominator_names)]), tf.stack(sums)

    def _outputs(self, model: keras.Model, features: Features, dropout: DropoutKey | None) -> Any:
        return model(features, dropout=dropout)

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        """The sum of each metric, a scalar, for the model's outputs; `backend` is the model's."""
        raise NotImplementedError


def _flat(features: Features, *names: str) -> list[tf.Tensor]:
    """These features in one dimension."""
    return [tf.reshape(features[name], [-1]) for name in names]


class MaskedWordObjective(Objective):
    """Masked-LM cross-entropy."""

    denominator_names: tuple[str, ...] = ("masked_lm_weights",)
    metric_names: tuple[str, ...] = ("mlm_loss", "mlm_accuracy")

    @staticmethod
    def untrained_loss(vocab_size: int) -> float:
        """The total loss of a model that has learned nothing."""
        return math.log(vocab_size)

    def _outputs(self, model: keras.Model, features: Features, dropout: DropoutKey | None) -> Any:
        return model.logits_before_bias(features, dropout)

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        return backend.word_loss(outputs, *_flat(features, "masked_lm_ids", "masked_lm_weights"))


class PretrainingObjective(MaskedWordObjective):
    """Masked-LM plus next-sentence cross-entropy (arXiv 1810.04805, section 3.1).

    Two losses with two denominators: masked tokens and instances. A packed row has several labels and weights
    (`packing`).
    """

    denominator_names = ("masked_lm_weights", "example_weights")
    metric_names = ("mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy")

    @staticmethod
    def untrained_loss(vocab_size: int) -> float:
        return math.log(vocab_size) + math.log(2)

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        word_logits, nsp_logits_Rx2 = outputs
        mlm_loss, mlm_correct = super()._sums(word_logits, features, backend)
        labels_and_weights = _flat(features, "next_sentence_labels", "example_weights")
        nsp_loss, nsp_correct = backend.cross_entropy(nsp_logits_Rx2, *labels_and_weights)
        return mlm_loss, nsp_loss, mlm_correct, nsp_correct


class SpanObjective(Objective):
    """Mean of two cross-entropies over the positions: for an answer's first and for its last token."""

    metric_names = ("total_loss", "start_accuracy", "end_accuracy")

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        start_logits_BxS, end_logits_BxS = outputs
        weights_B = features["example_weights"]
        start_loss, start_correct = backend.cross_entropy(start_logits_BxS, features["start_positions"], weights_B)
        end_loss, end_correct = backend.cross_entropy(end_logits_BxS, features["end_positions"], weights_B)
        return (start_loss + end_loss) / 2.0, start_correct, end_correct


class ClassificationObjective(Objective):
    """Cross-entropy of the class "labels" int32 [B]."""

    metric_names = ("total_loss", "train_accuracy")

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        return backend.cross_entropy(outputs, features["labels"], features["example_weights"])


class WeightedClassificationObjective(ClassificationObjective):
    """Cross-entropy in which each class has a factor for the losses of its instances.

    The mean divides by the instances, not by their factors, as with Keras's `class_weight`. Accuracy is unweighted.
    """

    def __init__(self, class_weights_C: np.ndarray):
        self._class_weights_C = class_weights_C.astype(np.float32)

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        _, correct = super()._sums(outputs, features, backend)
        weights_B = features["example_weights"] * tf.gather(self._class_weights_C, features["labels"])
        loss, _ = backend.cross_entropy(outputs, features["labels"], weights_B)
        return loss, correct


class TokenObjective(Objective):
    """Cross-entropy of each position's class "label_ids" int32 [B, S]; "label_weights" [B, S] is 1 where it counts.

    The mean is over the labelled positions of the whole update, however many a row has.
    """

    denominator_names = ("label_weights",)
    metric_names = ("total_loss", "train_accuracy")

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        logits_RxC = tf.reshape(outputs, [-1, outputs.shape[2]])
        return backend.cross_entropy(logits_RxC, *_flat(features, "label_ids", "label_weights"))


class RegressionObjective(Objective):
    """Squared error of the predicted number; "labels" float32 [B]."""

    def _sums(self, outputs: Any, features: Features, backend: Plain) -> Sequence[tf.Tensor]:
        errors_B = outputs[:, 0] - features["labels"]
        return [tf.reduce_sum(tf.square(errors_B) * features["example_weights"])]
