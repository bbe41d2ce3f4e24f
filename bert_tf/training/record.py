"""What ``config.json`` records besides a run's identity, so that a run can be understood and repeated."""

from __future__ import annotations

from typing import Any

from bert_tf.config import BertConfig, TrainingConfig
from bert_tf.memory.plan import PROGRAM, Workload, predict, split_into
from bert_tf.memory.split import micro_batches_at_once
from bert_tf.run.device import device_name
from bert_tf.run.run_folder import provenance


def run_record(config: TrainingConfig, bert_config: BertConfig, **facts: Any) -> dict[str, Any]:
    """Settings, `facts`, machine and software, and what the memory plan says of all that."""
    record = {
        "settings": config.to_dict(),
        "bert_config": bert_config.to_dict(),
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        **facts,
        "device": device_name(),
        **provenance(),
    }
    settings = record["settings"]
    work = Workload.from_flags(
        {**settings, "num_at_once": micro_batches_at_once(config.xla_scope)}, bert_config, config.num_ranks
    )
    work = split_into(work, config.train_batch_size, config.num_accumulation_steps)
    planned = {"num_parameters": work.num_parameters}
    if not settings.get("packing"):  # the memory plan does not cover packed rows
        # On a CPU the peak is the whole process's, so it includes the program itself.
        bytes_planned = predict(work).total + (PROGRAM if record["device"] == "CPU" else 0)
        planned["memory_mib"] = round(bytes_planned / 2**20)
    return {**record, "planned": planned}
