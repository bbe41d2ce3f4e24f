"""TensorFlow's device and messages, settled before its import, and what differs between its versions."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

# A class's instances share the names of up to 30 attributes (SHARED_KEYS_MAX_SIZE of CPython 3.11's dictobject.c).
_MOST_SHARED_NAMES = 30


def choose_device(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Applies --device ("auto" or "cpu")."""
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
    if device == "cpu":
        environ["CUDA_VISIBLE_DEVICES"] = "-1"


def limit_lost_memory() -> None:
    """Reduces what each tensor loses on Python 3.11 with TensorFlow up to 2.15 from 48 to 16 bytes.

    To be called before the first variable. There TensorFlow does not free the array of a tensor's Python attributes
    (its issue 62551). Python makes the array large enough for the attributes of any tensor so far, and a variable's
    tensor is given six; but only as long as fewer than 30 tensors have been made.
    """
    import tensorflow as tf

    for _ in range(_MOST_SHARED_NAMES):
        tf.constant(0)
