"""What must be settled before TensorFlow is imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping


def choose_device(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Applies --device ("auto" or "cpu")."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = "-1"
