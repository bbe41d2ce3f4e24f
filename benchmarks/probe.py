"""What more pre-training is worth: the same fine-tuning from several checkpoints of one run, and from random weights.

    python -m benchmarks probe --run RUN --probes FOLDER --score f1 --finetune "run_squad.py --train_file=TRAIN.json
        --predict_file=DEV.json --max_seq_length=128 --doc_stride=64 --train_batch_size=16 --learning_rate=6e-4
        --num_train_epochs=5"

RUN is a pre-training run that kept its checkpoints (--keep_checkpoints), --finetune the command to fine-tune with
(run_squad.py or run_classifier.py) without --init_checkpoint, --model_dir and --seed, and --score the line of its
eval_results.txt. Each fine-tuning has a folder in FOLDER; one that was interrupted goes on, a finished one is only
scored again, and one of other settings is refused.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from benchmarks.frame import CHECKOUT, Bench, existing, run_command
from benchmarks.trials import mean_and_spread
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.tasks.glue.tasks import CUSTOM, EVAL, custom_task, find_task
from bert_tf.tasks.squad.metrics import SCORES, SCORES_VERSION_2

NEEDS = "--run with its checkpoints, and questions or sentences to fine-tune on"
ROUNDS = 1
RANDOM = "random"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", type=existing, required=True, help="run folder of a pre-training")
    parser.add_argument("--probes", type=Path, required=True, help="folder for the fine-tuning runs")
    parser.add_argument("--finetune", type=shlex.split, required=True, help="command and flags, in one argument")
    parser.add_argument("--score", required=True, help="a name in eval_results.txt, such as f1 or matthews_correlation")
    parser.add_argument("--seeds", type=int, default=3)


def run(bench: Bench) -> None:
    options, seeds = bench.options, range(1, bench.options.seeds + 1)
    checkpoints = sorted((options.run / "checkpoints").glob("ckpt-*"))
    if not checkpoints:
        raise UserError(f"--run {options.run} holds no checkpoints; name the run folder of a pre-training")
    if options.seeds < 1:
        raise UserError(f"--seeds is {options.seeds}; at least one is needed")
    if options.score not in (names := _score_names(options.finetune)):
        raise UserError(
            f"--score {options.score}: such a fine-tuning has the scores {', '.join(names)}; name one of them"
        )
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


def _score_names(command: Sequence[str]) -> Sequence[str]:
    """The scores that eval_results.txt has after this fine-tuning. Raises: UserError for a command that is none."""
    program = command[0] if command else ""
    if program not in ("run_squad.py", "run_classifier.py"):
        raise UserError(f"--finetune begins with {program!r}, and must with run_squad.py or run_classifier.py")
    typed = flags.FlagValues()  # those of the command that decide which scores there are
    for name in ("task_name", "eval_file"):
        flags.DEFINE_string(name, "", "", flag_values=typed)
    for name in ("version_2_with_negative", "regression"):
        flags.DEFINE_bool(name, False, "", flag_values=typed)
    typed.set_gnu_getopt()  # flags with a value of their own, which are not known here, do not end the flags
    try:
        typed(command, known_only=True)
    except flags.Error as error:
        raise UserError(f"--finetune: {error}") from None
    if program == "run_squad.py":
        return SCORES_VERSION_2 if typed.version_2_with_negative else SCORES
    is_custom = typed.task_name.lower() == CUSTOM
    task = custom_task("text", "label", typed.regression) if is_custom else find_task(typed.task_name)
    parts = [""] if typed.eval_file else task.files[EVAL]
    return [f"{part}_{name}" if part else name for part in parts for name in (*task.metrics, "eval_loss")]


def _probe(options: argparse.Namespace, start: str, seed: int) -> float:
    """The score after fine-tuning from `start`."""
    folder = options.probes.absolute() / f"{Path(start).name}_{seed}"
    command = [sys.executable, CHECKOUT / options.finetune[0], *options.finetune[1:]]
    command += [f"--model_dir={folder}", f"--seed={seed}"]
    if start == RANDOM:
        files = {"bert_config_file": "bert_config.json", "vocab_file": "vocab.txt"}
        command += [f"--{flag}={options.run / name}" for flag, name in files.items()]
    else:
        command += [f"--init_checkpoint={start}"]
    run_command(command)
    results = (folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    for name, _, value in (line.partition(" = ") for line in results):
        if name == options.score:
            return float(value)
    raise UserError(f"{folder / 'eval_results.txt'} has no line for --score {options.score}; it has: {results}")
