"""What ``config.json`` records besides a run's identity, and the error message of a run that gives up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.memory.plan import PROGRAM, Workload, predict, split_into
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.run.checkpoint import CheckpointFolder
from bert_tf.run.device import device_name
from bert_tf.run.run_folder import provenance
from bert_tf.run.statistics import first_non_finite
from bert_tf.settings.training import TrainingConfig
from bert_tf.training.state import TrainState


def run_record(config: TrainingConfig, settings: Mapping[str, Any], work: Workload, **facts: Any) -> dict[str, Any]:
    """Settings, `facts`, machine and software, and the number of parameters and the memory that are planned."""
    record = {
        "settings": {**dataclasses.asdict(config), **settings},
        "bert_config": work.bert_config.to_dict(),
        "global_batch_size": config.global_batch_size,
        **facts,
        "device": device_name(),
        **provenance(),
    }
    work = split_into(work, config.train_batch_size, config.num_accumulation_steps)
    planned = {"num_parameters": work.num_parameters}
    if not getattr(config, "packing", False):  # the memory plan does not cover packed rows
        # On a CPU the peak is the whole process's, so it includes the program itself.
        bytes_planned = predict(work).total + (PROGRAM if record["device"] == "CPU" else 0)
        planned["memory_mib"] = round(bytes_planned / 2**20)
    return {**record, "planned": planned}


# A run gives up after this many consecutive updates with a non-finite gradient. With loss scaling some are
# normal until the scale fits; otherwise something is wrong.
MAX_SKIPS_WHILE_SCALING, MAX_SKIPS = 25, 3
# How many ranges of records the error message names; --replay_update lists them all.
_NAMED_RECORDS = 8


class DivergedError(UserError):
    """Too many consecutive updates had a non-finite gradient, so nothing is learned any more."""


def max_skips(loss_scale: LossScale) -> int:
    """The number of consecutive skipped updates after which a run gives up."""
    return MAX_SKIPS_WHILE_SCALING if loss_scale.enabled else MAX_SKIPS


def describe_divergence(
    state: TrainState, norms_V: np.ndarray, records: Sequence[str], checkpoints: CheckpointFolder
) -> str:
    """The error message after too many skipped updates.

    Args:
      norms_V: norms of the last update's gradients, by variable.
      records: ranges of records in its global batch; empty for fine-tuning, whose updates cannot be replayed either.
    """
    bad = first_non_finite(state.model.trainable_variables, norms_V)
    fault = (
        f"first that of {bad} is not finite" if bad else "all gradients are finite, but not the sum of their squares"
    )
    remedy = "a lower learning rate, a longer warm-up or --precision=fp32 may help"
    if records:
        more = [f"and {len(records) - _NAMED_RECORDS} more ranges"] * (len(records) > _NAMED_RECORDS)
        fault += f"; its records (file, number in it): {', '.join([*records[:_NAMED_RECORDS], *more])}"
        remedy = f"--replay_update={state.updates_applied + 1} examines that update; {remedy}"
    saved, _ = checkpoints.newest_undamaged()
    sound = f"{saved.name} is sound" if saved else "there is no sound checkpoint"
    return (
        f"{max_skips(state.loss_scale)} updates in a row had a non-finite gradient, so nothing is learned any more; "
        f"in the last one, of global batch {state.batches_consumed - 1}, {fault}; {sound}. {remedy}"
    )
