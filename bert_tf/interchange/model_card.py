"""The model card of an exported model: what its runs recorded, and what its author has to add.

It reveals nothing about the machine's files: only the last part of each path.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from bert_tf.bert_config import BertConfig
from bert_tf.report.figures import write_value
from bert_tf.report.runs import RunRecord, read_run
from bert_tf.run.checkpoint import PREFIX, STATE, read_state
from bert_tf.run.run_folder import read_config

CARD = "README.md"
_TEMPLATE = "model_card.md"
_PIPELINES = {
    "BertForPreTraining": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "BertForQuestionAnswering": "question-answering",
    "BertForSequenceClassification": "text-classification",
}
# What is told of a run: the row's name, and the setting, or the count of its data.
_SETTINGS = {
    "task": "task",
    "updates": "total_updates",
    "epochs": "num_train_epochs",
    "sequences in an update": "global_batch_size",
    "tokens in a sequence": "max_seq_length",
    "masked tokens in a sequence": "max_predictions_per_seq",
    "optimizer": "optimizer_type",
    "peak learning rate": "effective_learning_rate",
    "updates of warm-up": "warmup_steps",
    "share of warm-up": "warmup_proportion",
    "precision": "precision",
    "seed": "seed",
    "ranks": "num_ranks",
    "device": "device",
    "code": "commit",
}
_COUNTS = {
    "documents": "num_documents",
    "sentences": "num_sentences",
    "tokens": "num_tokens",
    "instances for training": "num_instances_training",
    "instances held out": "num_instances_test",
}


def read_history(checkpoint: Path) -> list[RunRecord]:
    """The runs that led to a checkpoint folder, oldest first, with the last one up to this checkpoint.

    Empty if the checkpoint is not in a run folder. The history ends where the folder of an earlier run is gone.

    Raises:
      UserError: the run's ``config.json`` is missing or damaged.
    """
    folder = _run_of(checkpoint)
    if folder is None:
        return []
    read_config(folder)
    run = read_run(folder)
    if (checkpoint / STATE).is_file():
        run = _up_to(run, read_state(checkpoint)["updates_applied"])
    runs = [run]
    while (earlier := _earlier(runs[0])) and earlier.resolve() not in [run.folder.resolve() for run in runs]:
        runs.insert(0, read_run(earlier))
    return runs


def _run_of(path: Path) -> Path | None:
    """The run folder that a path names or lies in."""
    for folder in (path, *list(path.parents)[:3]):
        if (folder / "checkpoints").is_dir():
            return folder
    return None


def _earlier(run: RunRecord) -> Path | None:
    """The folder of the run whose weights `run` began with; also found beside `run` if both were moved together."""
    origin = run.setting("init_checkpoint")
    if not isinstance(origin, str):
        return None
    return _run_of(Path(origin)) or _run_of(run.folder.resolve().parent / Path(origin).name)


def _up_to(run: RunRecord, update: int) -> RunRecord:
    events = {kind: [event for event in run.events[kind] if event["update"] <= update] for kind in run.events}
    return dataclasses.replace(run, events=collections.defaultdict(list, events))


def write_card(
    name: str,
    architecture: str,
    config: BertConfig,
    *,
    do_lower_case: bool,
    num_weights: int,
    runs: Sequence[RunRecord],
) -> str:
    """The text of ``README.md`` in Markdown. `runs`: from `read_history`."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = environment.from_string(Path(__file__).with_name(_TEMPLATE).read_text(encoding="utf-8"))
    return template.render(
        name=name,
        architecture=architecture,
        pipeline=_PIPELINES.get(architecture, "feature-extraction"),
        config=config,
        do_lower_case=do_lower_case,
        num_weights=num_weights,
        origin=_origin(runs),
        runs=[(run.folder.resolve().name, _facts(run)) for run in runs],
    )


def _origin(runs: Sequence[RunRecord]) -> str:
    """The name of what the first run began with; "" for random weights."""
    stored = runs[0].setting("init_checkpoint") if runs else None
    origin = Path(stored if isinstance(stored, str) else "")
    return origin.parent.name if origin.name == PREFIX else origin.name


def _facts(run: RunRecord) -> dict[str, str]:
    """A run's data, settings and last scores, as they are written; what it does not record is left out."""
    data = run.config.get("data")
    data = data if isinstance(data, dict) else {}
    counts = data.get("counts")
    counts = counts if isinstance(counts, dict) else {"num_instances_training": data.get("instances")}
    facts = {
        "data": data.get("dataset") or Path(str(data.get("first_file", ""))).name or None,
        **{label: counts.get(name) for label, name in _COUNTS.items()},
        **{label: run.setting(name) for label, name in _SETTINGS.items()},
        "optimizer": run.setting("optimizer_type", "adamw"),  # that of fine-tuning, which has no other
        "seed": None if run.setting("seed") is None else str(run.setting("seed")),  # not a count
        "updates done": run.last_update,
        **{f"{name.replace('_', ' ')}, held out": value for name, value in run.scores.items()},
    }
    return {label: _written(value) for label, value in facts.items() if value is not None}


def _written(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return write_value(value) if isinstance(value, float) and math.isfinite(value) else str(value)
