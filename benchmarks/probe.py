"""What more pre-training is worth: the same fine-tuning from several checkpoints of one run, and from random weights.

    python -m benchmarks probe --run RUN --probes FOLDER --score f1 --finetune "run_squad.py --train_file=TRAIN.json
        --predict_file=DEV.json --max_seq_length=128 --doc_stride=64 --train_batch_size=16 --learning_rate=6e-4
        --num_train_epochs=5"

RUN is a pre-training run that kept its checkpoints (--keep_checkpoints), --finetune the command to fine-tune with
(run_squad.py or run_classifier.py) without --init_checkpoint, --model_dir and --seed, and --score the line of its
eval_results.txt. Each fine-tuning has a folder in FOLDER; one that was interrupted continues, a finished one is only
scored again, and one with other settings is refused.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from benchmarks.frame import CHECKOUT, Bench, existing_path, read_scores, run_command
from benchmarks.trials import mean_and_spread
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.launch.environment import flag_texts

NEEDS = "--run with its checkpoints, and questions or sentences to fine-tune on"
ROUNDS = 1
RANDOM = "random"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=existing_path, required=True, help="run folder of a pre-training")
    parser.add_argument("--probes", type=Path, required=True, help="folder for the fine-tuning runs")
    parser.add_argument("--finetune", type=shlex.split, required=True, help="command and flags, in one argument")
    parser.add_argument("--score", required=True, help="a name in eval_results.txt, such as f1 or matthews_correlation")
    parser.add_argument("--seeds", type=int, default=3)


def run(bench: Bench) -> None:
    options, seeds = bench.options, range(1, bench.options.seeds + 1)
    checkpoints = sorted((options.run / "checkpoints").glob("ckpt-*"))
    if not checkpoints:
        raise UserError(f"--run {options.run} holds no checkpoints; name the run folder of a pre-training")
    identity = json.loads((options.run / "config.json").read_text(encoding="utf-8"))["identity"]
    updates = {RANDOM: 0, **{str(path): int(path.name.partition("-")[2]) for path in checkpoints}}
    scores: dict[str, list[float]] = {start: [] for start in updates}
    for seed in Progress(seeds, unit="seeds", description="fine-tuning"):
        for start in Progress(updates, unit="checkpoints", description=f"seed {seed}"):
            scores[start].append(_probe(options, start, seed))
    rows = [
        [f"{update:,}", f"{update * identity['global_batch_size']:,}", mean_and_spread(scores[start])]
        for start, update in updates.items()
    ]
    columns = ["updates of pre-training", "sequences", f"{options.score}, mean ± spread of {len(seeds)} seeds"]
    bench.table("After the same fine-tuning", columns, rows)


def _probe(options: argparse.Namespace, start: str, seed: int) -> float:
    """The score after fine-tuning from `start`."""
    folder = options.probes.absolute() / f"{Path(start).name}_{seed}"
    flags: dict[str, Any] = {"model_dir": folder, "seed": seed, "init_checkpoint": start}
    if start == RANDOM:
        run = options.run
        flags.update(init_checkpoint=None, bert_config_file=run / "bert_config.json", vocab_file=run / "vocab.txt")
    run_command([sys.executable, CHECKOUT / options.finetune[0], *options.finetune[1:], *flag_texts(flags)])
    scores = read_scores(folder)
    if options.score not in scores:
        raise UserError(
            f"--score {options.score}: this fine-tuning has the scores {', '.join(scores)}; name one of them"
        )
    return scores[options.score]
