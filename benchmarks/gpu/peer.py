"""The process of a peer's row: the same update by Hugging Face's BERT on PyTorch, as fast as its users get it.

SDPA attention, half precision by autocast, the fused AdamW, clipping; embeddings, each layer and heads compiled. The
settings come as JSON in its argument, and figures go as JSON to its last line of output, as with `row`. Needs PyTorch,
transformers and NumPy, and nothing else.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import torch
import transformers

from benchmarks.gpu.jobs import await_turn
from benchmarks.variants.hugging_face import make_update


def run(settings: dict[str, Any]) -> dict[str, Any]:
    torch.backends.cuda.matmul.allow_tf32 = True  # of what autocast leaves in float32
    config = dict(settings["bert_config"], attn_implementation="sdpa")
    update = make_update(settings, settings["device"], config, compiled=True)
    started = time.perf_counter()
    float(update())
    first_call_secs = time.perf_counter() - started
    float(update())
    await_turn()
    float(update())
    started = time.perf_counter()
    for _ in range(settings["num_updates"]):  # as ours: the result is read at the end only
        loss = update()
    is_finite = math.isfinite(float(loss))
    secs = (time.perf_counter() - started) / settings["num_updates"]
    return {
        "first_call_secs": first_call_secs,
        "update_secs": secs,
        "sequences_per_sec": settings["num_accumulation_steps"] * settings["micro_batch_size"] / secs,
        "is_finite": is_finite,
        "memory_peak": torch.cuda.max_memory_allocated() if settings["device"] == "cuda" else None,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
