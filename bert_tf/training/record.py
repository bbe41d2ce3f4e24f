"""What ``config.json`` records besides a run's identity, so that a run can be understood and repeated."""

from __future__ import annotations

from typing import Any

from bert_tf.base.tensorflow import keras
from bert_tf.memory.plan import PROGRAM, Workload, predict, split_into
from bert_tf.memory.split import micro_batches_at_once
from bert_tf.run.device import device_name
from bert_tf.run.run_folder import provenance
from bert_tf.settings.training import TrainingConfig


def run_record(config: TrainingConfig, model: keras.Model, **facts: Any) -> dict[str, Any]:
    """Settings, `facts`, machine and software, and what the memory plan says of all that."""
    record = {
        "settings": config.to_dict(),
        "bert_config": model.config.to_dict(),
        "global_batch_size": config.global_batch_size,
        **facts,
        "device": device_name(),
        **provenance(),
    }
    settings, (micro_batch_size, num_micro_batches, num_ranks, _) = record["settings"], config.split()
    uses_pooler = "max_predictions_per_seq" not in settings and model.bert.pooler.trainable
    num_at_once = micro_batches_at_once(model.backend.scope)
    work = Workload.from_flags(
        {**settings, "num_at_once": num_at_once, "uses_pooler": uses_pooler}, model.config, num_ranks
    )
    work = split_into(work, micro_batch_size, num_micro_batches)
    planned = {"num_parameters": work.num_parameters}
    if not settings.get("packing"):  # the memory plan does not cover packed rows
        # On a CPU the peak is the whole process's, so it includes the program itself.
        bytes_planned = predict(work).total + (PROGRAM if record["device"] == "CPU" else 0)
        planned["memory_mib"] = round(bytes_planned / 2**20)
    return {**record, "planned": planned}
