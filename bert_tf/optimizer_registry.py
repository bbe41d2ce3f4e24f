"""The optimizers that a run can choose, by their names in the settings.

A new optimizer is its rule in `optimizer.update_rules`, its class in `optimizer.keras_optimizers`, and its entry here.
The entry is separate from the class because settings and plans need it without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OptimizerEntry(NamedTuple):
    """What must be known about an optimizer before it is created."""

    class_name: str  # in `optimizer.keras_optimizers`
    slots: tuple[str, ...]  # its float32 variables for each weight: the last parts of their names in files
    decay_power: float  # of the learning rate, see `optimizer.schedule`
    # Whether the learning rate is usually continuous at the end of the warm-up. Adam's is, in NVIDIA's code. LAMB's
    # drops there, in the published recipe; LARS follows LAMB, for comparison.
    continuous_join: bool
    # The settings that have an effect with this optimizer only: name of the setting -> argument of the class.
    options: Mapping[str, str] = {}


ADAM_SLOTS = ("adam_m", "adam_v")
OPTIMIZERS: dict[str, OptimizerEntry] = {
    "lamb": OptimizerEntry(
        "NVLAMB",
        slots=ADAM_SLOTS,
        decay_power=0.5,
        continuous_join=False,
        options={"lamb_adapt_excluded": "adapt_excluded"},
    ),
    "adamw": OptimizerEntry(
        "AdamW",
        slots=ADAM_SLOTS,
        decay_power=1.0,
        continuous_join=True,
        options={"adam_bias_correction": "bias_correction"},
    ),
    "lars": OptimizerEntry("LARS", slots=("momentum",), decay_power=0.5, continuous_join=False),
}


def weight_of_slot(name: str) -> str:
    """The name of the variable that a slot of any optimizer belongs to; any other name unchanged."""
    variable, _, slot = name.rpartition("/")
    return variable if any(slot in entry.slots for entry in OPTIMIZERS.values()) else name
