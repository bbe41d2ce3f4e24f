"""Updates several variables of one shape in one call of a compiled function.

On a GPU most of BERT's variables are updated within microseconds, and a call of a compiled function takes the host
more than that: with a call for each of BERT-Large's 398 variables the GPU would wait for the host.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Callable

import numpy as np

from bert_tf.base.tensorflow import tf

# The time to compile a program grows faster than the number of variables in it: 16 take twice as long as one, 398
# would take a hundred times as long.
_LARGEST_GROUP = 16


def _has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def compile_for_groups(function: Callable[..., tf.Tensor], compiled: bool = True) -> Callable[..., tf.Tensor]:
    """The function, as `call_in_groups` should call it: on a GPU a tf.function, compiled by XLA if `compiled`."""
    return tf.function(function, jit_compile=compiled or None, autograph=False) if _has_gpu() else function


def call_in_groups(keys: Sequence[Hashable], call: Callable[[list[int]], tf.Tensor]) -> tf.Tensor:
    """Calls `call` for V items: on a GPU for several with equal keys at a time, else for each by itself.

    Args:
      keys: one for each item.
      call: takes the numbers of n items with equal keys and returns a tensor [n, ...].

    Returns:
      The results of all items, [V, ...], in the order of `keys`.
    """
    by_key: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        by_key.setdefault(key, []).append(number)
    limit = _LARGEST_GROUP if _has_gpu() else 1
    # Groups have nearly equal sizes, so that few sizes are compiled.
    groups = [part.tolist() for same in by_key.values() for part in np.array_split(same, -(-len(same) // limit))]
    return tf.gather(tf.concat([call(group) for group in groups], axis=0), np.argsort(np.concatenate(groups)))
