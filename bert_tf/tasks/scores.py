"""What tasks compute from the logits of classes. F rows, C classes."""

from __future__ import annotations

import numpy as np


def mean_loss(logits_FxC: np.ndarray, labels_F: np.ndarray) -> float:
    """Mean cross-entropy of classes, or mean squared error of numbers (float labels)."""
    logits_FxC = logits_FxC.astype(np.float64)
    if labels_F.dtype == np.float32:
        return float(np.mean((logits_FxC[:, 0] - labels_F) ** 2))
    label_logits_F = logits_FxC[np.arange(len(labels_F)), labels_F]
    return float(np.mean(np.logaddexp.reduce(logits_FxC, axis=1) - label_logits_F))


def probabilities(logits_FxC: np.ndarray) -> np.ndarray:
    """Softmax over the classes."""
    weights_FxC = np.exp(logits_FxC - logits_FxC.max(axis=1, keepdims=True))
    return weights_FxC / weights_FxC.sum(axis=1, keepdims=True)
