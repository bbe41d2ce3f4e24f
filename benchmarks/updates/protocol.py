"""One variant of the benchmark as a process of its own: settings in, seconds of one update after another out.

A line of JSON on stdin holds the settings; the variant makes its update, runs it twice (which traces
and compiles) and prints a line of JSON with its versions. Then each line on stdin runs it once more,
and is answered with the seconds that took. NumPy is all that this module needs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable

import numpy as np

LEARNING_RATE = 1e-4


def random_batch(settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Features [A, B, ...] of one update: full rows, all predictions used."""
    rng = np.random.default_rng(0)
    leading = (settings["num_accumulation_steps"], settings["micro_batch_size"])
    length, predictions, vocab_size = (settings[name] for name in ("seq_length", "predictions", "vocab_size"))
    return {
        "input_ids": rng.integers(5, vocab_size, [*leading, length]).astype(np.int32),
        "input_mask": np.ones([*leading, length], np.int32),
        "segment_ids": np.zeros([*leading, length], np.int32),
        "masked_lm_positions": rng.integers(1, length, [*leading, predictions]).astype(np.int32),
        "masked_lm_ids": rng.integers(5, vocab_size, [*leading, predictions]).astype(np.int32),
        "masked_lm_weights": np.ones([*leading, predictions], np.float32),
        "next_sentence_labels": rng.integers(0, 2, [*leading, 1]).astype(np.int32),
        "example_weights": np.ones(leading, np.float32),
    }


def serve(make_update: Callable[[dict[str, Any]], Callable[[], float]], versions: Callable[[], dict[str, str]]) -> None:
    """Runs the protocol; `make_update(settings)` returns a function that makes an update and waits for it."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to stderr
    settings = json.loads(sys.stdin.readline())
    clock = time.process_time if settings.get("clock") == "processor" else time.perf_counter
    update = make_update(settings)
    update()
    update()
    print(json.dumps(versions()), file=answers, flush=True)
    for _ in sys.stdin:
        started = clock()
        update()
        print(clock() - started, file=answers, flush=True)


def read_questions(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """(question, text) of every question in a file of `settings`."""
    with open(settings["questions"], encoding="utf-8") as file:
        return [tuple(pair) for pair in json.load(file)]


def span_head(hidden_size: int) -> np.ndarray:
    """Weights [2, H] of a question answering head, the same for everybody: the model has none."""
    return np.random.default_rng(0).normal(0, 0.5, [2, hidden_size]).astype(np.float32)
