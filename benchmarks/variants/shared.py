"""The inputs that all variants share; this module needs only NumPy."""

from __future__ import annotations

import random
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


def span_head(hidden_size: int) -> np.ndarray:
    """Weights [2, H] of a question answering head, the same for all variants, because the model has none."""
    return np.random.default_rng(0).normal(0, 0.5, [2, hidden_size]).astype(np.float32)


def google_instances(program: Any, tokenization: Any, settings: dict[str, Any]) -> Callable[[], dict[str, float]]:
    """Masked records of a file of sentences by a descendant of Google's create_pretraining_data.py.

    `settings` as of `this_project.instances`.
    """
    from bert_tf.base.machine.hardware import memory_peak_mib

    names = ("max_seq_length", "max_predictions_per_seq", "dupe_factor")
    length, predictions, dupe_factor = (settings[name] for name in names)

    def make() -> dict[str, float]:
        tokenizer = tokenization.FullTokenizer(vocab_file=settings["vocab_file"], do_lower_case=True)
        how = (tokenizer, length, dupe_factor, 0.1, 0.15, predictions, random.Random(12345), False, None)
        made = program.create_training_instances([settings["text"]], *how)
        program.write_instance_to_example_files(
            made, tokenizer, length, predictions, [settings["output"]], False, False
        )
        return {"instances": len(made), "peak MiB": memory_peak_mib()}

    return make
