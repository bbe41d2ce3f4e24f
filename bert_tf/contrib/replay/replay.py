"""Replays one update of a run, from the last checkpoint before it, and prints what it did.

An update is a function of (weights, batch number, seed, data), all of which the run folder contains or
names. One process can replay a run of several ranks: it computes their micro-batches one after the
other, so that only the rounding of sums differs. Nothing in the folder is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object
from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import tf
from bert_tf.batches.batches import Batch
from bert_tf.batches.data_sets import open_instances
from bert_tf.batches.masking import MaskingRules
from bert_tf.bert_config import BertConfig
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, find_damage
from bert_tf.run.device import prepare_device
from bert_tf.run.events import read_events
from bert_tf.run.run_folder import CONFIG, find_checkpoints
from bert_tf.run.statistics import UpdateResult, first_non_finite
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.programs import PretrainingOptions
from bert_tf.settings.training import PretrainingConfig
from bert_tf.tasks.job import make_model, make_training, run_identity
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.tasks.task import Run
from bert_tf.training.record import max_skips
from bert_tf.training.state import TrainState
from bert_tf.training.step import TrainStep
from bert_tf.training.trainer import Training, make_step


class Attempt(NamedTuple):
    """One attempt at the update. All attempts start from the same weights: all but the last were skipped."""

    batch_number: int
    records: list[str]
    is_finite: bool
    non_finite: str | None  # the first tensor that is not finite
    figures: dict[str, float]  # under their names in metrics.jsonl
    norms: list[tuple[str, float, float, float, float]]  # name; norms of gradient, weight and change; trust ratio

    def describe(self) -> Iterator[str]:
        figures = ", ".join(f"{name} {value:.9g}" for name, value in self.figures.items())
        yield f"global batch {self.batch_number}: {figures}"
        yield f"first tensor that is not finite: {self.non_finite or 'none'}"
        if not self.is_finite:
            yield "so this batch was skipped and changed nothing"
        yield "      norms of: gradient      weight      change trust ratio  variable"
        for name, gradient, weight, change, trust_ratio in self.norms:
            yield f"{gradient:>24.5g}{weight:>12.5g}{change:>12.5g}{trust_ratio:>12.5g}  {name}"
        yield "records (file, number in it):"
        yield from (f"  {name}" for name in self.records)


def replay(model_dir: Path, update: int, input_files: str | None = None) -> tuple[str, list[Attempt]]:
    """Where the replay started (a checkpoint, or the start of the run), and the attempts at the update.

    Args:
      update: its number as logged, counting applied updates. Batches skipped just before it are replayed, too.
      input_files: where the run's records are now; None if they have not moved.

    Raises:
      UserError: the folder contains no run, the run has fewer updates, or its records are gone.
    """
    config, training = _open_training(model_dir, input_files)
    # The run may have made updates after its last logged line.
    logged = max((event["update"] for event in read_events(model_dir)), default=training.num_updates)
    last = min(logged + config.display_loss_steps, training.num_updates)
    if not 1 <= update <= last:
        raise UserError(f"--replay_update={update}: the run in {model_dir} has the updates 1 to {last}")
    state, step = make_step(config, training, Workers())
    limit, attempts = max_skips(state.loss_scale), list[Attempt]()
    started_from = _restore(model_dir, update, training, state)
    batches = training.batches(state.batches_consumed)
    with Progress(total=update - 1, initial=state.updates_applied, unit="updates", description="up to it") as bar:
        while state.updates_applied < update - 1:
            bar.update(int(bool(_make_update(state, step, batches).is_finite)))
            applied = state.updates_applied
            if state.loss_scale.num_consecutive_skips() > limit:
                raise UserError(
                    f"more than {limit} updates in a row after update {applied} have a non-finite gradient; "
                    f"--replay_update={applied + 1} shows them"
                )
    while state.updates_applied < update and len(attempts) < limit:
        attempts.append(_attempt(training, state, step, batches))
    return started_from, attempts


def _open_training(model_dir: Path, input_files: str | None) -> tuple[PretrainingConfig, Training]:
    """The settings and the training of the run in a folder, for one process; `input_files` if its records have moved.

    Raises: UserError if the folder has no run of this version, or the records are not those of the run.
    """
    path = model_dir / CONFIG
    record = read_json_object(path, "name the folder of a pre-training run by --model_dir")
    try:
        identity = record["identity"]
        config = PretrainingConfig(**record["settings"])
        bert_config = BertConfig.from_dict(identity["bert_config"], str(path))
        patterns = input_files or record["data"]["input_files"]
        default = {"max_predictions_per_seq": config.max_predictions_per_seq}
        rules = MaskingRules(**record["data"].get("masking_rules", default))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not what this version writes for a pre-training run "
            f"({type(error).__name__}: {error}); replay with the version the run was made with"
        ) from None
    start = identity["init_checkpoint"] and str(model_dir / identity["init_checkpoint"])  # see `locate_start`
    # Whether initial weights may be missing was decided when the run began.
    options = PretrainingOptions(init_checkpoint=start, allow_missing_weights=True)
    run, task = Run(config, options, Workers(), model_dir), PretrainingTask(config.no_next_sentence, config.dropout)
    task.instances = open_instances(patterns, "input_files", config.max_seq_length, rules, config.no_next_sentence)
    task.bert_config = bert_config
    current = run_identity(run, task)
    changed = [name for name in identity if identity[name] != current.get(name)]
    if changed:
        raise UserError(
            f"{patterns} or the settings are no longer those of the run in {model_dir} "
            f"({', '.join(changed)} differ); name the run's own records with --input_files"
        )
    prepare_device(config.precision, config.xla_scope)
    return config, make_training(run, task, make_model(run, task))


def _restore(model_dir: Path, update: int, training: Training, state: TrainState) -> str:
    """Restores the newest undamaged checkpoint before the update, else the start of the run; returns which."""
    vocab_size = training.model.config.vocab_size
    checkpoints = CheckpointFolder(model_dir / "checkpoints", keep=1, vocab_size=vocab_size, companions={})
    for number, path in reversed(find_checkpoints(checkpoints.folder).items()):
        if number < update and find_damage(path) is None:
            state.restore(checkpoints, path)
            return str(path)
    training.initialise(Telemetry(model_dir, is_chief=False))
    return "the start of the run, since no sound checkpoint before it is left"


def _make_update(state: TrainState, step: TrainStep, batches: Iterator[Batch]) -> UpdateResult:
    batch = next(batches)
    result = step(batch.features, state.batches_consumed, num_micro_batches=batch.num_micro_batches)
    state.batches_consumed += 1
    return result


def _attempt(training: Training, state: TrainState, step: TrainStep, batches: Iterator[Batch]) -> Attempt:
    number, variables, slots = state.batches_consumed, step.variables, state.optimizer.slot_variables
    non_finite_state = _find_non_finite("weights", variables) or _find_non_finite("moments", slots)
    result = _make_update(state, step, batches)
    gradients, changes = result.norm_by_variable.numpy(), result.change_by_variable.numpy()
    bad_gradient, is_finite = first_non_finite(variables, gradients), bool(result.is_finite)
    if not is_finite:
        changes[:, 1:] = 0.0, np.nan  # nothing has changed, so the optimizer's figures are meaningless
    names = [variable.name.split(":")[0] for variable in variables]
    return Attempt(
        number,
        training.name_records(number),
        is_finite,
        non_finite_state or (f"gradient of {bad_gradient}" if bad_gradient else None),
        figures={
            **training.objective.name_metrics(result.metrics.numpy()),
            "gradient_norm": float(result.gradient_norm),
            "learning_rate": float(result.learning_rate),
            "loss_scaler": float(result.loss_scale),
        },
        norms=[(name, float(gradient), *map(float, row)) for name, gradient, row in zip(names, gradients, changes)],
    )


def _find_non_finite(kind: str, variables: Sequence[tf.Variable]) -> str | None:
    sums = np.array([np.sum(variable.numpy(), dtype=np.float64) for variable in variables])
    name = first_non_finite(variables, sums)
    return f"{kind} {name}, before the update" if name else None
