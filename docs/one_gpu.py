"""Writes the table of docs/one_gpu.md anew from the memory plan: ``python docs/one_gpu.py``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.results import with_tables  # noqa: E402
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig  # noqa: E402
from bert_tf.memory.plan import GIB, Workload, fits, largest_micro_batch  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
GPUS = (8, 11, 16, 24, 40, 80)  # GiB
# What is trained, its length and predictions, and the sequences of an update, which the micro-batch must divide.
WORK = (("", 128, 20, 65536), ("", 512, 80, 32768), (" SQuAD", 384, 0, 80))


def write_table() -> str:
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


def renewed(page: str) -> str:
    """The text of docs/one_gpu.md with the table of today's plan."""
    return with_tables(page, "docs/one_gpu.py", write_table())


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
