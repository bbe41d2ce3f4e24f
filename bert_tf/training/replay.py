"""Replays one update of a run, from the last checkpoint before it, and prints what it did.

An update is a function of (weights, batch number, seed, data), all of which the run folder contains or
names. One process can replay a run of several ranks: it computes their micro-batches one after the
other, so that only the rounding of sums differs. Nothing in the folder is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object
from bert_tf.base.progress import Progress
from bert_tf.batches.masking import MaskingRules
from bert_tf.batches.open import open_instances
from bert_tf.bert_config import BertConfig
from bert_tf.ranks.workers import Workers
from bert_tf.report.runs import RunRecord, read_run
from bert_tf.run.checkpoint import CheckpointFolder, find_damage
from bert_tf.run.events import is_number
from bert_tf.run.run_folder import CONFIG, find_checkpoints
from bert_tf.run.statistics import UpdateResult, UpdateStatistics, first_non_finite
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import PretrainingConfig
from bert_tf.training.diverged import max_skips
from bert_tf.training.pretraining import PretrainingInputs, make_training, run_identity
from bert_tf.training.trainer import make_step, name_metrics

_COMPARED = ("total_loss", "mlm_loss", "nsp_loss", "gradient_norm", "learning_rate")


@dataclasses.dataclass
class Attempt:
    """One attempt at the update. All attempts start from the same weights: all but the last were skipped."""

    batch_number: int
    records: list[str]
    result: UpdateResult
    non_finite: str | None  # the first tensor that is not finite
    norms: list[tuple[str, float, float, float, float]]  # name; norms of gradient, weight and change; trust ratio
    metrics: dict[str, float]

    def describe(self) -> Iterator[str]:
        result = self.result
        figures = {
            **self.metrics,
            "gradient_norm": result.gradient_norm,
            "learning_rate": result.learning_rate,
            "loss_scaler": result.loss_scale,
        }
        described = ", ".join(f"{name} {float(value):.6g}" for name, value in figures.items())
        yield f"global batch {self.batch_number}: {described}"
        yield f"first tensor that is not finite: {self.non_finite or 'none'}"
        if not bool(self.result.is_finite):
            yield "so this batch was skipped and changed nothing"
        yield f"{'norms of: gradient':>24}{'weight':>12}{'change':>12}{'trust ratio':>12}  variable"
        for name, *norms in self.norms:
            yield f"{norms[0]:>24.5g}" + "".join(f"{value:>12.5g}" for value in norms[1:]) + f"  {name}"
        yield "records (file, number in it):"
        yield from (f"  {name}" for name in self.records)


class Replay:
    """A replayed update.

    Args:
      update: its number as logged, counting applied updates. Batches skipped just before it are replayed, too.
      input_files: where the run's records are now; None if they have not moved.

    Attributes:
      started_from: the checkpoint, or the start of the run.
      attempts: the attempts at this update.
      logged: which updates the run's log line covers, or why nothing can be compared.
      compared: name -> (replayed, logged); empty if nothing can be compared.

    Raises:
      UserError: the folder contains no run, the run has fewer updates, or its records are gone.
    """

    def __init__(self, model_dir: Path, update: int, input_files: str | None = None):
        self._config, self._inputs, identity = _read_run_folder(model_dir, input_files)
        if not 1 <= update <= self._config.num_train_steps:
            raise UserError(
                f"--replay_update={update}: the run in {model_dir} has the updates 1 to {self._config.num_train_steps}"
            )
        self.update = update
        self._training = make_training(self._config, self._inputs, identity, Workers())
        self._state, self._step = make_step(self._config, self._training, Workers())
        state = self._state
        self.started_from = self._restore(model_dir)
        self._batches = self._training.data.batches(state.batches_consumed)
        self._first_update = state.updates_applied
        self._results: list[tuple[int, UpdateResult]] = []  # each with the number of updates applied by then
        with Progress(total=update - 1, initial=state.updates_applied, unit="updates", description="up to it") as bar:
            while state.updates_applied < update - 1:
                bar.update(int(bool(self._advance().is_finite)))
                self._check_skips()
        self.attempts: list[Attempt] = []
        while state.updates_applied < update and len(self.attempts) < max_skips(state.loss_scale):
            self.attempts.append(self._attempt())
        self.compared: dict[str, tuple[float, float]] = {}
        self.logged = self._compare(read_run(model_dir))

    def describe(self) -> Iterator[str]:
        yield f"update {self.update}, made again from {self.started_from}"
        for attempt in self.attempts:
            yield from attempt.describe()
        yield f"metrics.jsonl: {self.logged}"
        for name, (replayed, logged) in self.compared.items():
            same = "equal to the last bit" if replayed == logged else f"apart by {abs(replayed - logged):.2g}"
            yield f"  {name}: {replayed:.9g} now, {logged:.9g} logged, {same}"

    def _restore(self, model_dir: Path) -> str:
        vocab_size = self._inputs.bert_config.vocab_size
        checkpoints = CheckpointFolder(model_dir / "checkpoints", keep=1, vocab_size=vocab_size, companions={})
        for number, path in reversed(find_checkpoints(checkpoints.folder).items()):
            if number < self.update and find_damage(path) is None:
                self._state.restore(checkpoints, path)
                return str(path)
        silent = Telemetry(model_dir, is_chief=False, total_updates=0)
        self._training.initialise(silent)
        return "the start of the run, since no sound checkpoint before it is left"

    def _advance(self) -> UpdateResult:
        batch, state = next(self._batches), self._state
        result = self._step(batch.features, state.batches_consumed, num_micro_batches=batch.num_micro_batches)
        state.batches_consumed += 1
        self._results.append((state.updates_applied, result))
        return result

    def _check_skips(self) -> None:
        limit, applied = max_skips(self._state.loss_scale), self._state.updates_applied
        if self._state.loss_scale.num_consecutive_skips() > limit:
            raise UserError(
                f"more than {limit} updates in a row after update {applied} have a non-finite gradient; "
                f"--replay_update={applied + 1} shows them"
            )

    def _attempt(self) -> Attempt:
        number, variables = self._state.batches_consumed, self._step.variables
        slots = self._state.optimizer.slot_variables
        unsound = _find_non_finite("weights", variables) or _find_non_finite("moments", slots)
        result = self._advance()
        gradients, changes = result.norm_by_variable.numpy(), result.change_by_variable.numpy()
        bad = first_non_finite(variables, gradients)
        if not bool(result.is_finite):
            changes[:, 1:] = 0.0, np.nan  # nothing has changed, so the optimizer's figures are meaningless
        names = [variable.name.split(":")[0] for variable in variables]
        records = self._training.data.name_records(number)
        metrics = name_metrics(self._training.objective, result.metrics.numpy())
        norms = [(name, float(gradient), *map(float, row)) for name, gradient, row in zip(names, gradients, changes)]
        return Attempt(number, records, result, unsound or (f"gradient of {bad}" if bad else None), norms, metrics)

    def _compare(self, run: RunRecord) -> str:
        """Fills `compared` with the replay's means and those of the run's log line; returns `logged`."""
        event = next((event for event in run.events["train"] if event.get("update") == self.update), None)
        if event is None:
            return f"no line for update {self.update}"
        begun: list[Any] = [
            start["update"] for start in run.events["start"] if start["time_unix"] <= event["time_unix"]
        ][-1:]
        begun += [other["update"] for other in run.events["train"] if other["update"] < self.update]
        first = max(begun, default=0)
        if first < self._first_update:
            return (
                f"the line of update {self.update} is a mean over the updates from {first + 1} on, and the replay "
                f"began after update {self._first_update}"
            )
        statistics = UpdateStatistics()
        for applied, result in self._results:
            if first < applied <= self.update:
                statistics.add(result)
        figures = statistics.read(self._config.global_batch_size)
        figures.update(name_metrics(self._training.objective, figures["means"]))
        self.compared = {name: (figures[name], float(event[name])) for name in _COMPARED if is_number(event.get(name))}
        if first == self.update - 1:
            return f"update {self.update}"
        return f"the mean over the updates {first + 1} to {self.update}"


def _read_run_folder(
    model_dir: Path, input_files: str | None
) -> tuple[PretrainingConfig, PretrainingInputs, dict[str, Any]]:
    """Settings, inputs and identity of the run."""
    path = model_dir / CONFIG
    record = read_json_object(path, "name the folder of a pre-training run by --model_dir")
    try:
        identity = record["identity"]
        config = PretrainingConfig(**record["settings"])
        bert_config = BertConfig.from_dict(identity["bert_config"], str(path))
        patterns = input_files or record["data"]["input_files"]
        default = {"max_predictions_per_seq": config.max_predictions_per_seq}
        rules = MaskingRules.from_json(record["data"].get("masking_rules", default))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is not what this version writes for a pre-training run "
            f"({type(error).__name__}: {error}); replay with the version the run was made with"
        ) from None
    training = open_instances(patterns, "input_files", config.max_seq_length, rules)
    # What may be missing in the initial weights was decided when the run began.
    inputs = PretrainingInputs(bert_config, {}, training, None, identity["init_checkpoint"], allow_missing_weights=True)
    now = run_identity(config, inputs)
    changed = [name for name in identity if identity[name] != now.get(name)]
    if changed:
        raise UserError(
            f"{patterns} or the settings are no longer those of the run in {model_dir} "
            f"({', '.join(changed)} differ); name the run's own records with --input_files"
        )
    return config, inputs, now


def _find_non_finite(kind: str, variables: Sequence[tf.Variable]) -> str | None:
    sums = np.array([np.sum(variable.numpy(), dtype=np.float64) for variable in variables])
    name = first_non_finite(variables, sums)
    return f"{kind} {name}, before the update" if name else None
