r"""Which choices of pre-training learn the most from the same processor seconds, by the held-out masked words' loss.

The preset is that of `run_pretraining_budget.sh`, for a small model. It differs from "the base" in what was found with
this benchmark last: fewer updates of short sequences, and a longer warm-up. Most choices change one thing of the base:
flags of run_pretraining.py, the model, or how the updates are shared by the two lengths; those that lose by far were
tried while the base masked 15 % of the words, and their names say so. What an update costs is measured once for each
computation, by short runs of it and of short sequences with 15 % masked, one after the other, which a busy machine
slows alike; a trial has as many updates as cost the same as --updates with 15 % masked, and its schedule ends with
them. Afterwards all are evaluated alike on held-out text, without next sentences and with 15 % of the words masked, and
fine-tuned alike on questions and on entities, where given.

    python -m benchmarks budget --data .../tokens/... --trials benchmarks/results/budget_trials \
      --questions data/download/sample --entities .../ncbi_disease --peer_python .../bin/python --peer_text .../training

An interrupted trial goes on from its checkpoint, the peer's from its beginning, and finished ones are kept in the
folder's `finished.jsonl`. `--only` names the choices to run, so that several processes, each on a core of its own, can
share the folder; the tables have all that are finished. `--times 0.5 2` runs them for half and twice the budget, and a
second table shows the loss by budget. The data are token files (docs/preparing_data.md). The peer is transformers'
Trainer, set as its example run_mlm.py sets it, see `variants/run_mlm.py`; it reads the sharded text that the token
files were made from.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Union

import numpy as np

from benchmarks.child import timed
from benchmarks.finished import Finished, Line
from benchmarks.frame import CHECKOUT, Bench, existing_path, read_scores, run_command
from benchmarks.trials import data_digest, mean_and_spread, small_model
from bert_tf.base.errors import UserError
from bert_tf.base.progress import Progress, print_beside_bars
from bert_tf.launch.environment import flag_texts
from bert_tf.records.manifest import MANIFEST_NAME, read_manifest

NEEDS = "--data: token files, and hours"
ROUNDS = 1
COST_UPDATES = (10, 310)  # of the two runs by which an update's cost is measured
SCORES = {
    "loss": "held-out masked-word loss, mean ± spread of seeds",
    "answers": "F1 of answers",
    "entities": "F1 of entities",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a model is pre-trained: flags of run_pretraining.py (None: without it), and the model's size."""

    flags: Mapping[str, Any]
    layers: int = 2
    hidden_size: int = 128
    warmup_share: float = 0.02
    decay_share: float | None = None  # None: the rate falls from the end of the warm-up on
    first_phase: Choice | None = None  # a phase before this one
    first_share: float = 0.9  # of the updates, as in the recipe; the rest is this one's

    def with_changes(self, **changes: Any) -> Choice:
        """A copy with other fields or flags, and with as many predictions as the share of masked tokens needs."""
        fields = {name: changes.pop(name) for name in list(changes) if name in self.__dataclass_fields__}
        flags = {**self.flags, **changes}
        flags["max_predictions_per_seq"] = math.ceil(flags["masked_lm_prob"] * flags["max_seq_length"])
        return dataclasses.replace(self, **fields, flags=flags)

    @property
    def computation(self) -> dict[str, Any]:
        """What an update's cost depends on."""
        flags = {name: value for name, value in self.flags.items() if name != "learning_rate" and value is not None}
        return {**flags, "layers": self.layers, "hidden_size": self.hidden_size}


@dataclasses.dataclass(frozen=True)
class Peer:
    """The preset's model, trained by transformers' Trainer with its defaults but for these."""

    flags: Mapping[str, Any]

    @property
    def computation(self) -> dict[str, Any]:
        return {"peer": {name: value for name, value in self.flags.items() if name != "learning_rate"}}


ChoiceOrPeer = Union[Choice, Peer]


class Trial(NamedTuple):
    """A choice, trained from a seed for `times` times the budget."""

    name: str
    seed: int
    times: float


# The preset's second phase (bert_tf.contrib.budget).
LONG = Choice(
    {
        "optimizer_type": "adamw",
        "learning_rate": 1e-3,
        "train_batch_size": 8,
        "num_accumulation_steps": 4,
        "max_seq_length": 128,
        "max_predictions_per_seq": 39,
        "masked_lm_prob": 0.3,
        "no_next_sentence": True,
        "dropout": 0,
        "enable_xla": True,
    }
)


def _short(choice: Choice, **changes: Any) -> Choice:
    """The phase before a choice: sequences a quarter as long, twice as many in an update, a constant learning rate."""
    names = ("max_seq_length", "train_batch_size", "num_accumulation_steps")
    length, size, num_steps = (choice.flags[name] for name in names)
    shape = dict(zip(names, (length // 4, size * 4, num_steps // 2)))
    constant = {"warmup_share": 0.06, "decay_share": 0.01}  # next to no decay, as in the preset
    return choice.with_changes(**{**shape, **constant, **changes})


def _after_short(choice: Choice, **changes: Any) -> Choice:
    """The choice after a phase of short sequences; `changes`: those of that phase."""
    return choice.with_changes(first_phase=_short(choice, **changes))


MASKED_15 = LONG.with_changes(masked_lm_prob=0.15)
UNIT = _after_short(MASKED_15)  # an update of this is the unit of the budget
UNIT_SHORT = _short(MASKED_15)
HALF_BATCH = LONG.with_changes(train_batch_size=4, learning_rate=8e-4)
LAMB = LONG.with_changes(optimizer_type="lamb", learning_rate=0.01)
NVIDIA_LONG = MASKED_15.with_changes(
    optimizer_type="lamb", learning_rate=0.0067, warmup_share=200 / 1563, no_next_sentence=None, dropout=None
)
CHOICES: dict[str, ChoiceOrPeer] = {
    "the preset": _after_short(LONG, warmup_share=0.2).with_changes(first_share=0.5),
    "the base": _after_short(LONG),
    "next sentence": _after_short(LONG.with_changes(no_next_sentence=None)),
    "packed": _after_short(LONG.with_changes(packing=True), train_batch_size=16, num_accumulation_steps=4),
    "masked 15 %": UNIT,
    "masked 20 %": _after_short(LONG.with_changes(masked_lm_prob=0.2)),
    "masked 40 %": _after_short(LONG.with_changes(masked_lm_prob=0.4)),
    "masked 30 %, then 15 %": _after_short(MASKED_15, masked_lm_prob=0.3),
    "masked 15 %, next sentence": _after_short(MASKED_15.with_changes(no_next_sentence=None)),
    "masked 15 %, dropout 0.1": _after_short(MASKED_15.with_changes(dropout=None)),
    "masked 15 %, one length, 128": MASKED_15.with_changes(warmup_share=0.06, decay_share=0.2),
    "half of the updates short": _after_short(LONG).with_changes(first_share=0.5),
    "a quarter of the updates short": _after_short(LONG).with_changes(first_share=0.25),
    "the rate falls in both phases": _after_short(LONG, decay_share=None),
    "warm-up 2 %": _after_short(LONG, warmup_share=0.02),
    "warm-up 20 %": _after_short(LONG, warmup_share=0.2),
    "half the rate": _after_short(LONG.with_changes(learning_rate=5e-4)),
    "twice the rate": _after_short(LONG.with_changes(learning_rate=2e-3)),
    "half the batch": _after_short(HALF_BATCH),
    "half the batch, half of them short": _after_short(HALF_BATCH).with_changes(first_share=0.5),
    "twice the batch": _after_short(LONG.with_changes(train_batch_size=16, learning_rate=1.26e-3)),
    "LAMB, 0.0025": _after_short(LAMB.with_changes(learning_rate=0.0025)),
    "LAMB, 0.005": _after_short(LAMB.with_changes(learning_rate=0.005)),
    "LAMB, 0.01": _after_short(LAMB),
    "4 layers": _after_short(LONG.with_changes(layers=4)),
    "width 256, half the rate": _after_short(LONG.with_changes(hidden_size=256, learning_rate=5e-4)),
    # Its lengths of 128 and 512 become 32 and 128.
    "NVIDIA's recipe": _after_short(NVIDIA_LONG, learning_rate=0.01, warmup_share=2000 / 7038, decay_share=None),
    "run_mlm": Peer({}),
    "run_mlm, the preset's batch and rate": Peer({"learning_rate": 1e-3, "per_device_train_batch_size": 32}),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    parser.add_argument("--updates", type=int, default=5_000, help="of a trial with 15 %% masked; %(default)s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--times", type=float, nargs="+", default=[1.0], help="how many times the budget; default: 1")
    parser.add_argument("--only", nargs="+", choices=CHOICES, help="choices to run; default: all that can be")


def add_files(parser: argparse.ArgumentParser) -> None:
    """The options that name the files to read and the folder of the trials."""
    parser.add_argument(
        "--data", type=existing_path, required=True, help="token files of a dataset: training/ and test/"
    )
    parser.add_argument("--trials", type=Path, required=True, help="folder of what is finished, and of the runs")
    parser.add_argument("--questions", type=existing_path, help="folder with train-v1.1.json and dev-v1.1.json")
    parser.add_argument("--fine_tuning_rate", type=float, default=6e-4, help="%(default)g; less for a wider model")
    parser.add_argument("--entities", type=existing_path, help="folder with train.tsv and devel.tsv")
    parser.add_argument("--peer_python", type=existing_path, help="a Python with torch, transformers and accelerate")
    parser.add_argument("--peer_text", type=existing_path, help="folder of the sharded training text, for the peer")


def run(bench: Bench) -> None:
    options = bench.options
    has_peer = options.peer_python and options.peer_text
    names = options.only or [name for name, choice in CHOICES.items() if has_peer or isinstance(choice, Choice)]
    if not has_peer and any(isinstance(CHOICES[name], Peer) for name in names):
        raise UserError("run_mlm needs --peer_python and --peer_text; give both, or leave it out of --only")
    facts = {"data": data_digest(options.data), "updates": options.updates}
    finished = Finished(options.trials / "finished.jsonl", facts)
    # All choices with one seed first, so that an interrupted benchmark can already compare them.
    seeds = range(1, options.seeds + 1)
    trials = [Trial(name, seed, times) for seed in seeds for name in names for times in options.times]
    for trial in Progress(trials, unit="trials", description="pre-training"):
        if not finished.find(list(trial)):
            finished.add(list(trial), _run_trial(options, finished, trial))
    columns = ["choice", *SCORES.values(), "seeds", "updates"]
    title = f"After the seconds of {options.updates:,} updates with 15 % masked"
    bench.table(title, columns, _rows(finished))
    budgets = sorted({trial.times for name in CHOICES for trial, _ in _trials_of(name, finished)})
    title = f"The same loss by budget, in {options.updates:,} updates with 15 % masked"
    if rows := _by_budget(finished, budgets):
        bench.table(title, ["choice", *map("{:g}".format, budgets), "less by each doubling"], rows)


def _trials_of(name: str, finished: Finished) -> list[tuple[Trial, Line]]:
    """The finished trials of a choice, with their lines."""
    return [(Trial(*line["row"]), line) for line in finished.lines if "loss" in line and line["row"][0] == name]


def _rows(finished: Finished) -> list[list[Any]]:
    """The table's rows for trials of one budget (`times` 1), the lowest loss first."""
    rows = []
    for name in CHOICES:
        lines = [line for trial, line in _trials_of(name, finished) if trial.times == 1]
        if lines:
            scores_of_seeds = [[line[name] for line in lines if name in line] for name in SCORES]
            scores = [mean_and_spread(values) if values else "-" for values in scores_of_seeds]
            updates = sorted({line["updates"] for line in lines})  # several, if the cost was measured again
            rows.append([name, *scores, len(lines), ", ".join(map("{:,}".format, updates))])
    return sorted(rows, key=lambda row: float(row[1].split()[0]))


def _by_budget(finished: Finished, budgets: Sequence[float]) -> list[list[Any]]:
    """A row for each choice with several budgets: its losses, and their mean fall by each doubling (a fitted line)."""
    rows = []
    for name in CHOICES:
        losses = [(trial.times, line["loss"]) for trial, line in _trials_of(name, finished)]
        cells = [[loss for times, loss in losses if times == budget] for budget in budgets]
        if sum(map(bool, cells)) > 1:
            slope, _ = np.polyfit([np.log2(times) for times, _ in losses], [loss for _, loss in losses], 1)
            rows.append([name, *[mean_and_spread(cell) if cell else "-" for cell in cells], f"{-slope:.3f}"])
    return rows


def _run_trial(options: argparse.Namespace, finished: Finished, trial: Trial) -> dict[str, Any]:
    choice, folder = CHOICES[trial.name], options.trials / "_".join(map(str, trial)).replace(" ", "_")
    costs = [_cost_of(options, finished, each, folder) for each in (choice, UNIT)]
    updates = round(trial.times * options.updates * costs[1] / costs[0])
    secs, weights = 0.0, None
    for number, (phase, share) in enumerate(_phases(choice), 1):
        start, weights = weights, folder / f"phase_{number}"
        secs += _pretrain(options, phase, weights, round(share * updates), trial.seed, start)
    assert weights
    outcome = {"updates": updates, "all_cpu_secs": secs, **judge(options, weights, trial.seed)}
    shutil.rmtree(folder)
    return outcome


def _phases(choice: ChoiceOrPeer) -> list[tuple[ChoiceOrPeer, float]]:
    """The phases, with their shares of the updates."""
    if isinstance(choice, Peer) or not choice.first_phase:
        return [(choice, 1.0)]
    share = choice.first_share
    return [(choice.first_phase, share), (dataclasses.replace(choice, first_phase=None), 1 - share)]


def _cost_of(options: argparse.Namespace, finished: Finished, choice: ChoiceOrPeer, folder: Path) -> float:
    """How many times as much an update costs, in processor seconds, as one of `UNIT_SHORT`."""

    def secs(phase: ChoiceOrPeer) -> float:
        """Those of many updates, without what a run costs besides."""
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted measurement has left
        few, more = (_pretrain(options, phase, folder / f"cost_{count}", count, 1) for count in COST_UPDATES)
        shutil.rmtree(folder)
        return more - few

    def times_short(phase: ChoiceOrPeer) -> float:
        if phase.computation == UNIT_SHORT.computation:
            return 1.0
        row = {"cost": phase.computation}
        cost = finished.find(row) or finished.add(row, {"times_short": secs(phase) / secs(UNIT_SHORT)})
        return cost["times_short"]

    return sum(share * times_short(phase) for phase, share in _phases(choice))


def _pretrain(
    options: argparse.Namespace, choice: ChoiceOrPeer, folder: Path, updates: int, seed: int, start: Path | None = None
) -> float:
    """Trains one phase into `folder`; returns processor seconds. `start`: the folder of the phase before it."""
    folder.mkdir(parents=True, exist_ok=True)
    model_choice = choice if isinstance(choice, Choice) else LONG
    config = small_model(options.data, model_choice.layers, model_choice.hidden_size)
    model = folder.with_suffix(".json")
    model.write_text(config.to_json(), encoding="utf-8")
    if isinstance(choice, Peer):
        return train_peer(options, model, folder, updates, seed, **choice.flags)
    flags = {
        **choice.flags,
        "bert_config_file": model,
        "init_checkpoint": start,
        "input_files": options.data / "training",
        "num_train_steps": updates,
        "warmup_steps": round(choice.warmup_share * updates),
        "decay_steps": max(round(choice.decay_share * updates), 1) if choice.decay_share else None,
        "save_checkpoint_steps": max(updates // 4, 1),
        "keep_checkpoints": 1,
        "seed": seed,
    }
    return _program_secs("run_pretraining.py", flags, folder)


def train_peer(options: argparse.Namespace, config: Path, folder: Path, updates: int, seed: int, **flags: Any) -> float:
    """Pre-trains with run_mlm a model of this bert_config.json; returns processor seconds."""
    manifest = read_manifest(options.data / MANIFEST_NAME, "create_token_files")
    assert manifest, "there are token files"
    flags = {
        "text": options.peer_text,
        "vocab_file": options.data / "vocab.txt",
        **{name: int(manifest.arguments[name]) for name in ("do_lower_case", "strip_accents")},
        "config": config,
        "max_seq_length": LONG.flags["max_seq_length"],
        "max_steps": updates,
        "seed": seed,
        **flags,
        "output_dir": folder,
    }
    return _command_secs([options.peer_python, CHECKOUT / "benchmarks/variants/run_mlm.py"], flags)


def _held_out_loss(options: argparse.Namespace, weights: Path) -> float:
    """The loss of the weights, evaluated after an update that is too small to change any of them."""
    names = ("train_batch_size", "max_seq_length", "max_predictions_per_seq", "masked_lm_prob", "no_next_sentence")
    flags = {
        **{name: MASKED_15.flags[name] for name in names},
        "input_files": options.data / "training",
        "eval_files": options.data / "test",
        "max_eval_steps": 0,
        "eval_batch_size": 32,
        "num_train_steps": 1,
        "learning_rate": 1e-30,
    }
    return _scored("run_pretraining.py", flags, options, weights, "loss")["masked_lm_loss"]


def _f1_of_answers(options: argparse.Namespace, weights: Path, seed: int) -> float:
    train, held_out = options.questions / "train-v1.1.json", options.questions / "dev-v1.1.json"
    flags = {
        **_fine_tuning(options),
        "mode": "train_and_predict",
        "train_file": train,
        "predict_file": held_out,
        "seed": seed,
    }
    return _scored("run_squad.py", {**flags, "doc_stride": 64}, options, weights, "answers")["f1"]


def _f1_of_entities(options: argparse.Namespace, weights: Path, seed: int) -> float:
    train, held_out = options.entities / "train.tsv", options.entities / "devel.tsv"
    flags = {**_fine_tuning(options), "train_file": train, "predict_file": held_out, "seed": seed}
    return _scored("run_ner.py", flags, options, weights, "entities")["f1"]


def _fine_tuning(options: argparse.Namespace) -> dict[str, Any]:
    rate = options.fine_tuning_rate
    return {"max_seq_length": 128, "train_batch_size": 32, "learning_rate": rate, "num_train_epochs": 3}


def judge(options: argparse.Namespace, weights: Path, seed: int) -> dict[str, float]:
    """The `SCORES` of the weights, as far as the files for them are given."""
    scores = {"loss": _held_out_loss(options, weights)}
    if options.questions:
        scores["answers"] = _f1_of_answers(options, weights, seed)
    if options.entities:
        scores["entities"] = _f1_of_entities(options, weights, seed)
    return scores


def _scored(
    program: str, flags: Mapping[str, Any], options: argparse.Namespace, weights: Path, score: str
) -> dict[str, float]:
    """The scores that a program writes after it has started from these weights."""
    folder = weights.parent / score
    _program_secs(program, {**flags, "init_checkpoint": weights}, folder)
    return read_scores(folder)


def _program_secs(program: str, flags: Mapping[str, Any], folder: Path) -> float:
    return _command_secs([sys.executable, CHECKOUT / program], {**flags, "model_dir": folder})


def _command_secs(command: Sequence[str | Path], flags: Mapping[str, Any]) -> float:
    """Runs a program; returns its processor seconds. Says which, because a trial takes many minutes."""
    program, folder = command[-1], flags.get("model_dir") or flags["output_dir"]
    print_beside_bars(f"{os.path.basename(program)} into {folder} ...")
    return timed(lambda: run_command([*command, *flag_texts(flags)]))[1]
