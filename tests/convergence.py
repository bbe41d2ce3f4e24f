"""The golden curves of tests/golden/convergence.json: how a small model learns in 200 updates.

As a program it writes them again, eight seeds for each precision:

    PYTHONPATH=. python tests/convergence.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

import numpy as np

from bert_tf.bert_config import BertConfig
from bert_tf.ranks.workers import Workers
from bert_tf.run.run_folder import provenance
from bert_tf.settings.training import PretrainingConfig
from tests.pretraining_data import pretrain, write_records

GOLDEN = Path(__file__).parent / "golden" / "convergence.json"
LENGTH, PREDICTIONS, NUM_TOPICS = 24, 4, 8
MODEL = BertConfig(5 + 5 * NUM_TOPICS, 64, 2, 2, 128, max_position_embeddings=LENGTH, initializer_range=0.1)
NUM_UPDATES, UPDATES_A_LINE, GLOBAL_BATCH, PEAK_RATE = 200, 10, 32, 0.01
SEEDS = range(1, 9)
LOSSES = ("mlm_loss", "nsp_loss")


def write_data(path: Path, count: int = 3000) -> None:
    """Pairs of sentences. Each speaks of one of eight topics, in five words of its own; B goes on with A's, or not."""
    rng = np.random.default_rng(1)
    half = (LENGTH - 3) // 2
    topics, is_random = rng.integers(0, NUM_TOPICS, [2, count, 1]), rng.integers(0, 2, [count, 1])
    topic = np.where((np.arange(2 * half) >= half) & (is_random == 1), topics[1], topics[0])
    words = rng.choice(5, p=[0.4, 0.2, 0.2, 0.1, 0.1], size=topic.shape)
    pieces = 5 + 5 * topic + words
    ids = np.zeros([count, LENGTH], np.int64)
    ids[:, 0], ids[:, half + 1], ids[:, 2 * half + 2] = 2, 3, 3
    ids[:, 1 : half + 1], ids[:, half + 2 : 2 * half + 2] = pieces[:, :half], pieces[:, half:]
    candidates = np.concatenate([np.arange(1, half + 1), np.arange(half + 2, 2 * half + 2)])
    positions = np.sort([rng.permutation(candidates)[:PREDICTIONS] for _ in range(count)], axis=1)
    labels = np.take_along_axis(ids, positions, axis=1)
    np.put_along_axis(ids, positions, 4, axis=1)
    is_token = np.arange(LENGTH) < 2 * half + 3
    arrays = {
        "input_ids": ids,
        "input_mask": np.broadcast_to(is_token, ids.shape).astype(np.int64),
        "segment_ids": (is_token & (np.arange(LENGTH) > half + 1)) * np.ones_like(ids),
        "masked_lm_positions": positions,
        "masked_lm_ids": labels,
        "masked_lm_weights": np.ones(labels.shape, np.float32),
        "next_sentence_labels": is_random,
    }
    write_records(path, arrays)
    path.with_name("model.json").write_text(MODEL.to_json())


def train(folder: Path, workers: Workers, precision: str, seed: int = SEEDS[0]) -> None:
    """Trains the model in a folder of its own beside data.tfrecord, which `write_data` has left in `folder`."""
    config = PretrainingConfig(
        learning_rate=PEAK_RATE / workers.size,
        train_batch_size=GLOBAL_BATCH // 2,
        num_accumulation_steps=2 // workers.size,
        precision=precision,
        seed=seed,
        num_train_steps=NUM_UPDATES,
        warmup_steps=NUM_UPDATES // 10,
        max_seq_length=LENGTH,
        max_predictions_per_seq=PREDICTIONS,
        save_checkpoint_steps=NUM_UPDATES,
        display_loss_steps=UPDATES_A_LINE,
    )
    files = dict(input_files=str(folder / "data.tfrecord"), bert_config_file=str(folder / "model.json"))
    assert pretrain(config, run_folder(folder, precision, workers.size, seed), workers, **files)


def run_folder(folder: Path, precision: str, num_ranks: int, seed: int) -> Path:
    return folder / f"{precision}_ranks{num_ranks}_seed{seed}"


def read_curve(folder: Path, precision: str, num_ranks: int, seed: int = SEEDS[0]) -> dict[str, list[float]]:
    """Each loss of a run, the mean of every ten updates."""
    path = run_folder(folder, precision, num_ranks, seed) / "metrics.jsonl"
    lines = [event for event in map(json.loads, path.read_text().splitlines()) if event["event"] == "train"]
    return {name: [round(line[name], 4) for line in lines] for name in LOSSES}


def write_golden() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.tfrecord")
        found: dict[str, dict] = {}
        for precision in ("fp32", "bf16"):
            for seed in SEEDS:
                train(folder, Workers(), precision, seed)
            curves = [read_curve(folder, precision, 1, seed) for seed in SEEDS]
            found[precision] = {
                loss: {
                    "curve": curves[0][loss],
                    "spread": [round(statistics.stdev(values), 4) for values in zip(*(one[loss] for one in curves))],
                }
                for loss in LOSSES
            }
    made_on = {name: value for name, value in provenance().items() if name in ("processor", "versions")}
    GOLDEN.write_text(json.dumps({"made_on": made_on, "seeds": len(SEEDS), **found}, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
