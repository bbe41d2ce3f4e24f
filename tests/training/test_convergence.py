"""200 updates of a small model follow the committed curves, in fp32 and bf16.

The curves are those of one seed. Other processors, libraries and splits of the batch round otherwise, so the limits
are in units of the spread (standard deviation) of eight seeds at each point: what stays near the curve is the same
training, where another seed would be one of them away. As a program this file writes new curves.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import pytest

from bert_tf.bert_config import BertConfig
from bert_tf.run.device import has_fast_bf16
from bert_tf.run.run_folder import provenance
from bert_tf.settings.training import PretrainingConfig
from tests.jobs import events
from tests.pretraining_data import pretrain, write_records

GOLDEN = Path(__file__).parents[1] / "golden" / "convergence.json"
LENGTH, PREDICTIONS, NUM_TOPICS = 24, 4, 8
MODEL = BertConfig(5 + 5 * NUM_TOPICS, 64, 2, 2, 128, max_position_embeddings=LENGTH, initializer_range=0.1)
NUM_UPDATES, NUM_SEEDS = 200, 8
LOSSES = ("mlm_loss", "nsp_loss")
PRECISIONS = ["fp32", *(["bf16"] if has_fast_bf16() else [])]
# Of the mean and of the largest. bf16's roundings grow within 100 updates; without oneDNN fp32 stays within 0.01.
LIMITS = {"fp32": (0.1, 0.5), "bf16": (0.5, 3.0)}
WHEN_TO_CHANGE = (
    "New curves are legitimate only if the recipe was meant to change (initial weights, dropout, order, schedule, "
    "optimizer) and CHANGELOG.md says so; then run: PYTHONPATH=. python tests/training/test_convergence.py"
)


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


def train(folder: Path, precision: str, seed: int = 1) -> dict[str, list[float]]:
    """Trains on data.tfrecord, which `write_data` has left in `folder`. Returns each loss, the mean of ten updates."""
    batch = dict(train_batch_size=16, num_accumulation_steps=2, max_seq_length=LENGTH)
    batch |= dict(max_predictions_per_seq=PREDICTIONS, precision=precision, seed=seed)
    steps = dict(num_train_steps=NUM_UPDATES, warmup_steps=NUM_UPDATES // 10, save_checkpoint_steps=NUM_UPDATES)
    config = PretrainingConfig(learning_rate=0.01, display_loss_steps=10, **steps, **batch)
    files = dict(input_files=str(folder / "data.tfrecord"), bert_config_file=str(folder / "model.json"))
    run_folder = folder / f"{precision}_{seed}"
    assert pretrain(config, run_folder, **files)
    lines = events(run_folder, "train")
    return {name: [round(line[name], 4) for line in lines] for name in LOSSES}


@pytest.mark.parametrize(
    "precision", [pytest.param(each, marks=[pytest.mark.computes] if each == "fp32" else []) for each in PRECISIONS]
)
def test_one_rank_learns_as_it_did(tmp_path, precision):
    write_data(tmp_path / "data.tfrecord")
    found, golden = train(tmp_path, precision), json.loads(GOLDEN.read_text())[precision]
    for name in LOSSES:
        curves = zip(found[name], golden[name]["curve"], golden[name]["spread"])
        apart = [abs(value - expected) / max(spread, 0.01) for value, expected, spread in curves]
        mean_limit, limit = LIMITS[precision]
        assert len(apart) == 20 and statistics.mean(apart) <= mean_limit and max(apart) <= limit, (
            f"{name} in {precision} is {statistics.mean(apart):.2f} times the spread of seeds away from {GOLDEN.name} "
            f"(at most {max(apart):.2f}); means of ten updates each: {found[name]}. {WHEN_TO_CHANGE}"
        )


def write_golden() -> None:
    found: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name) / "data.tfrecord")
        for precision in ("fp32", "bf16"):
            curves = [train(Path(name), precision, seed) for seed in range(1, NUM_SEEDS + 1)]
            found[precision] = {}
            for loss in LOSSES:
                spread = [round(statistics.stdev(values), 4) for values in zip(*(one[loss] for one in curves))]
                found[precision][loss] = {"curve": curves[0][loss], "spread": spread}
    made_on = {name: value for name, value in provenance().items() if name in ("processor", "versions")}
    GOLDEN.write_text(json.dumps({"made_on": made_on, "seeds": NUM_SEEDS, **found}, indent=1) + "\n")


if __name__ == "__main__":
    write_golden()
