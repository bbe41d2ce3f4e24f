"""Which choices of pre-training learn the most from the same processor seconds, by the held-out masked words' loss.

A choice changes flags of run_pretraining.py, the model, or begins with a phase of shorter sequences. How many times as
much as one of the base an update costs is measured once for each choice, by short runs of both by turns, so that a busy
machine slows both; a trial has as many updates as cost the same as the base's, and its schedule ends with them.
Afterwards all are asked alike, without next sentences and with 15 % of the words masked, about text that none has
read, and fine-tuned alike on questions and on entities, where given.

    python -m benchmarks budget --data .../tokens/... --trials benchmarks/results/budget_trials \
      --questions data/download/sample --entities .../ncbi_disease --peer_python .../bin/python --peer_text .../training

An interrupted trial goes on from its checkpoint, and finished ones are kept in the folder's `finished.jsonl`. `--only`
names the choices to run; the table has all that are finished. The data are token files (docs/preparing_data.md). The
peer is transformers' Trainer, set as its example run_mlm.py sets it, see `run_mlm.py` here; it reads the sharded text
that the token files were made from.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.finished import Finished
from benchmarks.frame import CHECKOUT, NUM_SHOWN_LINES, Bench, existing
from benchmarks.trials import mean_and_spread
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress
from bert_tf.bert_config import BertConfig
from bert_tf.text.vocabulary import load_pieces

NEEDS = "--data: token files, and hours"
ROUNDS = 1
COST_UPDATES = (10, 50)  # of the two runs by which an update's cost is measured
COST_TURNS = 3
WARMUP_SHARE = 0.1
EVALUATED = "masked_lm_loss"


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a model is pre-trained: flags of run_pretraining.py (None: without it), and the model's size and dropout."""

    flags: Mapping[str, Any]
    layers: int = 2
    hidden_size: int = 128
    dropout: float = 0.1
    warmup_share: float = WARMUP_SHARE


BASE = Choice(
    {
        "optimizer_type": "adamw",
        "learning_rate": 5e-4,
        "train_batch_size": 32,
        "max_seq_length": 128,
        "max_predictions_per_seq": 20,
        "masked_lm_prob": 0.15,
        "no_next_sentence": True,
    }
)


def changed(warmup_share: float = WARMUP_SHARE, model: Mapping[str, Any] | None = None, **flags: Any) -> Choice:
    return dataclasses.replace(BASE, flags={**BASE.flags, **flags}, warmup_share=warmup_share, **(model or {}))


CHOICES = {
    "base": BASE,
    "next sentence": changed(no_next_sentence=None),
    "packed": changed(packing=True, train_batch_size=8, num_accumulation_steps=4),
    "masked 20 %": changed(masked_lm_prob=0.2, max_predictions_per_seq=26),
    "masked 30 %": changed(masked_lm_prob=0.3, max_predictions_per_seq=39),
    "length 64": changed(max_seq_length=64, max_predictions_per_seq=10, train_batch_size=64),
    "batch 16": changed(train_batch_size=16, learning_rate=3.5e-4),
    "batch 64": changed(train_batch_size=64, learning_rate=7e-4),
    "AdamW, half the rate": changed(learning_rate=2.5e-4),
    "AdamW, twice the rate": changed(learning_rate=1e-3),
    "LAMB, 0.005": changed(optimizer_type="lamb", learning_rate=0.005),
    "LAMB, 0.01": changed(optimizer_type="lamb", learning_rate=0.01),
    "LAMB, 0.02": changed(optimizer_type="lamb", learning_rate=0.02),
    "warm-up 2 %": changed(warmup_share=0.02),
    "warm-up 25 %": changed(warmup_share=0.25),
    "no dropout": changed(model={"dropout": 0.0}),
    "whole words": changed(whole_word_masking=True),
    "1 layer": changed(model={"layers": 1}),
    "4 layers": changed(model={"layers": 4}),
    "hidden size 256": changed(model={"hidden_size": 256}, learning_rate=3.5e-4),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=existing, required=True, help="token files of a dataset: training/ and test/")
    parser.add_argument("--trials", type=Path, required=True, help="folder of what is finished, and of the runs")
    parser.add_argument("--base_updates", type=int, default=2_000, help="of a trial of the base; %(default)s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=[*CHOICES], help="choices to run")


def run(bench: Bench) -> None:
    options = bench.options
    options.trials.mkdir(parents=True, exist_ok=True)
    facts = {"data": options.data.name, "base_updates": options.base_updates}
    finished = Finished(options.trials / "finished.jsonl", facts)
    # One seed of all choices first, so that an interrupted benchmark has something to say.
    trials = [(name, seed) for seed in range(1, options.seeds + 1) for name in options.only]
    for name, seed in Progress(trials, unit="trials", description="pre-training"):
        if not finished.find([name, seed]):
            finished.add([name, seed], _run_trial(options, finished, name, seed))
    rows = []
    for name in CHOICES:
        found = [line for seed in range(1, options.seeds + 1) if (line := finished.find([name, seed]))]
        if found:
            rows.append([name, mean_and_spread(each["loss"] for each in found), len(found), f"{found[0]['updates']:,}"])
    rows.sort(key=lambda row: row[1])
    columns = ["choice", "held-out masked-word loss, mean ± spread of seeds", "seeds", "updates"]
    bench.table(f"After the seconds of {options.base_updates:,} updates of the base", columns, rows)


def _run_trial(options: argparse.Namespace, finished: Finished, name: str, seed: int) -> dict[str, Any]:
    choice, folder = CHOICES[name], options.trials / f"{name.replace(' ', '_')}_{seed}"
    cost = finished.find([name, "cost"])
    if not cost:
        cost = finished.add([name, "cost"], {"times_base": _cost_of(options, choice, folder)})
    updates = round(options.base_updates / cost["times_base"])
    secs = _pretrain(options, choice, folder / "run", updates, seed)
    loss = _held_out_loss(options, folder)
    shutil.rmtree(folder)
    return {"loss": loss, "updates": updates, "all_cpu_secs": secs}


def _cost_of(options: argparse.Namespace, choice: Choice, folder: Path) -> float:
    """How many times as much as one of the base an update costs, in processor seconds: the median of several turns."""
    if choice is BASE:
        return 1.0

    def cost(measured: Choice) -> float:
        """Of an update, without what a run costs besides."""
        few, more = (_pretrain(options, measured, folder / f"cost_{count}", count, 1) for count in COST_UPDATES)
        shutil.rmtree(folder)
        return more - few

    return statistics.median(cost(choice) / cost(BASE) for _ in range(COST_TURNS))


def _pretrain(options: argparse.Namespace, choice: Choice, run_folder: Path, updates: int, seed: int) -> float:
    size = choice.hidden_size
    config = dataclasses.replace(
        BertConfig(len(load_pieces(options.data / "vocab.txt")), size, choice.layers, max(1, size // 64), 4 * size),
        hidden_dropout_prob=choice.dropout,
        attention_probs_dropout_prob=choice.dropout,
    )
    run_folder.mkdir(parents=True, exist_ok=True)
    model = run_folder.parent / "model.json"
    model.write_text(config.to_json(), encoding="utf-8")
    flags = {
        **choice.flags,
        "bert_config_file": model,
        "input_files": options.data / "training",
        "num_train_steps": updates,
        "warmup_steps": round(choice.warmup_share * updates),
        "save_checkpoint_steps": max(updates // 4, 1),
        "keep_checkpoints": 1,
        "seed": seed,
    }
    return _command_secs("run_pretraining.py", {**flags, "model_dir": run_folder})


def _held_out_loss(options: argparse.Namespace, folder: Path) -> float:
    """The loss of a trial's last weights, by an update that changes none of them, and its evaluation."""
    names = ("train_batch_size", "max_seq_length", "max_predictions_per_seq", "masked_lm_prob", "no_next_sentence")
    flags = {
        **{name: BASE.flags[name] for name in names},
        "init_checkpoint": folder / "run",
        "input_files": options.data / "training",
        "eval_files": options.data / "test",
        "max_eval_steps": 0,
        "eval_batch_size": 32,
        "num_train_steps": 1,
        "learning_rate": 1e-30,
        "model_dir": folder / "asked",
    }
    _command_secs("run_pretraining.py", flags)
    results = (folder / "asked" / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    return float(dict(line.split(" = ") for line in results)[EVALUATED])


def _command_secs(program: str, flags: Mapping[str, Any]) -> float:
    """Runs a program; returns its processor seconds."""
    given = [f"--{name}={json.dumps(value) if isinstance(value, bool) else value}" for name, value in flags.items()]
    given = [flag for flag in given if not flag.endswith("=None")]
    with open(Path(flags["model_dir"]).with_suffix(".log"), "w", encoding="utf-8") as log:
        process = subprocess.Popen([sys.executable, CHECKOUT / program, *given], stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        said = Path(log.name).read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_SHOWN_LINES:]
        print("\n".join(said), file=sys.stderr, flush=True)
        raise UserError(f"{program} ended with code {process.returncode}; see above why")
    return used.ru_utime + used.ru_stime
