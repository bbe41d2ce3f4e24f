"""The table of docs/one_gpu.md: the largest micro-batches by the memory plan."""

from __future__ import annotations

from bert_tf.base.machine import GIB
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import Workload, fits, largest_micro_batch

GPUS = (8, 11, 16, 24, 40, 80)  # GiB
# What is trained, its length and predictions, and the sequences of an update, which the micro-batch must divide.
WORK = (("", 128, 20, 65536), ("", 512, 80, 32768), (" SQuAD", 384, 0, 80))


def tables() -> str:
    """A line for each model, precision and work; for each GPU the largest micro-batch, kept and recomputed."""
    lines = ["| model | length | " + " | ".join(f"{gpu} GB" for gpu in GPUS) + " |", "|---" * (2 + len(GPUS)) + "|"]
    for model in ("large", "base"):
        for precision, name in (("fp16", "16 bit"), ("fp32", "32 bit")):
            for task, length, num_predictions, num_rows in WORK:
                cells = []
                for gpu in GPUS:
                    sizes = []
                    for scope, recompute in (("step", False), ("blocks", True)):
                        config = BertConfig.preset(model, GOOGLE_VOCAB_SIZE)
                        work = Workload(config, length, num_predictions, scope, 1, precision, recompute)
                        found = largest_micro_batch(work, gpu * GIB, num_rows)
                        sizes.append(str(found) if fits(work, gpu * GIB) else "-")
                    cells.append(" / ".join(sizes))
                lines.append(f"| {model}, {name} | {length}{task} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
