r"""The recipe for a budget of hours as it is typed, beside Hugging Face's run_mlm in the same hours, on this machine.

    python -m benchmarks budget_hours --hours 0.1 --bert_model small --data .../tokens/... --trials results/hours \
      --peer_python .../bin/python --peer_text .../sharded/.../training

Runs on a GPU if there is one. Ours is `scripts/run_pretraining_budget.sh`, with starts and measurements. The peer, see
`variants/run_mlm.py`, trains with its defaults, and once more with our batch and peak rate, on a GPU in our precision,
and compiled; short runs of it say how many updates take the seconds that ours took. Then all are evaluated alike, as
in `budget`. What is finished is kept in the folder of the trials.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks import budget
from benchmarks.finished import Finished
from benchmarks.frame import CHECKOUT, Bench, run_command
from benchmarks.results import number
from benchmarks.trials import data_digest
from bert_tf.base.errors import UserError
from bert_tf.base.files import write_text
from bert_tf.run.run_folder import read_config

NEEDS = "--data: token files, and hours; --peer_python; better a GPU"
ROUNDS, CORES = 1, 0
OURS, DEFAULTS, AS_OURS = "the recipe for a budget", "run_mlm", "run_mlm, with our batch, rate and precision"
FIRST_PHASE, LAST_PHASE = "phase_1", "phase_2"  # the phases of our run
PROBES = (20, 520)  # updates of the peer's two short runs; they differ by much more than its start varies


def add_options(parser: argparse.ArgumentParser) -> None:
    budget.add_files(parser)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--bert_model", required=True)
    parser.add_argument("--seed", type=int, default=1, help="of the peer and of all fine-tuning")


def run(bench: Bench) -> None:
    options = bench.options
    if not (options.peer_python and options.peer_text):
        raise UserError("--peer_python and --peer_text are missing: without a peer there is nothing to compare")
    facts = {"data": data_digest(options.data), "hours": options.hours, "bert_model": options.bert_model}
    finished = Finished(options.trials / "finished.jsonl", facts)
    results = (options.trials / "ours").absolute()
    ours = finished.find(OURS)
    if not ours:
        shutil.rmtree(results, ignore_errors=True)  # of an interrupted run the seconds are not known
        outcome = _train_ours(options, results)
        ours = finished.add(OURS, {**outcome, **budget.judge(options, results / LAST_PHASE, options.seed)})
    for name, is_as_ours in ((DEFAULTS, False), (AS_OURS, True)):
        if not finished.find(name):
            weights = options.trials / name.replace(" ", "_") / "model"
            shutil.rmtree(weights.parent, ignore_errors=True)
            outcome = _train_peer(options, _config(results / LAST_PHASE), weights, ours["secs"], is_as_ours)
            finished.add(name, {**outcome, **budget.judge(options, weights, options.seed)})
    columns = ["", "hours", "updates", "sequences of an update", *budget.SCORES.values()]
    rows = [
        [line["row"], number(line["secs"] / 3600), f"{line['updates']:,}", line["batch"]]
        + [number(line[name]) if name in line else "-" for name in budget.SCORES]
        for line in finished.lines
    ]
    bench.table(f"{options.bert_model}, {options.hours:g} hours", columns, rows)


def _config(run_folder: Path) -> dict[str, Any]:
    config = read_config(run_folder)
    assert config, "the run has ended"
    return config


def _train_ours(options: argparse.Namespace, results: Path) -> dict[str, Any]:
    script, values = CHECKOUT / "scripts/run_pretraining_budget.sh", (str(options.hours), options.bert_model)
    # The data's folder is tokens/<parameters>/<dataset> below the working directory.
    folders = {"DATA_DIR": options.data.parents[2], "RESULTS_DIR": results}
    environment = {name: str(folder) for name, folder in folders.items()}
    started = time.monotonic()
    run_command(["bash", script, *values, options.data.name], **environment)
    secs = time.monotonic() - started
    phases = [_config(results / name)["identity"] for name in (FIRST_PHASE, LAST_PHASE)]
    return {
        "secs": secs,
        "updates": sum(phase["num_train_steps"] for phase in phases),
        "batch": " and ".join(str(phase["global_batch_size"]) for phase in phases),
    }


def _train_peer(
    options: argparse.Namespace, ours: dict[str, Any], folder: Path, secs: float, is_as_ours: bool
) -> dict[str, Any]:
    """Trains the peer for about `secs`; two short runs show how many updates that takes."""
    flags: dict[str, Any] = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    settings, model = ours["settings"], folder.with_suffix(".json")
    model.parent.mkdir(parents=True)
    write_text(model, json.dumps(ours["bert_config"]))
    if is_as_ours:
        flags = dict(zip(flags, (settings["train_batch_size"], settings["num_accumulation_steps"])))
        flags["learning_rate"] = settings["learning_rate"]
        if ours["device"] != "CPU":
            flags.update({settings["precision"]: True, "torch_compile": True})

    def secs_of(updates: int) -> float:
        started = time.monotonic()
        budget.train_peer(options, model, folder, updates, options.seed, **flags)
        return time.monotonic() - started

    few, more = map(secs_of, PROBES)
    secs_each = (more - few) / (PROBES[1] - PROBES[0])
    updates = max(int((secs - few) / secs_each) + PROBES[0], PROBES[0])
    return {
        "secs": secs_of(updates),
        "updates": updates,
        "batch": str(flags["per_device_train_batch_size"] * flags["gradient_accumulation_steps"]),
    }
