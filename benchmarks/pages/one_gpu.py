"""The table of docs/one_gpu.md: the largest micro-batches by the memory plan."""

from __future__ import annotations

import itertools

from benchmarks.results import table
from bert_tf.base.machine.hardware import GIB
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import Workload, fits, largest_micro_batch

GPUS = (8, 11, 16, 24, 40, 80)  # GiB
# What is trained, its length and predictions, and the sequences of an update, which the micro-batch must divide.
WORKLOADS = (("", 128, 20, 65536), ("", 512, 80, 32768), (" SQuAD", 384, 0, 80))


def tables() -> str:
    """A line for each model, precision and work; for each GPU the largest micro-batch, kept and recomputed."""
    rows = []
    for model, (precision, bits), work in itertools.product(("large", "base"), (("fp16", 16), ("fp32", 32)), WORKLOADS):
        (task, length, num_predictions, num_rows), cells = work, []
        config = BertConfig.preset(model, GOOGLE_VOCAB_SIZE)
        workloads = [
            Workload(config, length, num_predictions, scope, 1, precision, recompute)
            for scope, recompute in (("step", False), ("blocks", True))
        ]
        for limit in (gpu * GIB for gpu in GPUS):
            sizes = [largest_micro_batch(each, limit, num_rows) if fits(each, limit) else "-" for each in workloads]
            cells.append(" / ".join(map(str, sizes)))
        rows.append([f"{model}, {bits} bit", f"{length}{task}", *cells])
    return "\n".join(table(["model", "length", *(f"{gpu} GB" for gpu in GPUS)], rows)) + "\n"
