"""Runs any training: begins or resumes, updates, logs, saves, stops. Tasks differ in the `Training` that they pass."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bert_tf import report
from bert_tf.base.errors import UserError
from bert_tf.base.files import remove_leftovers
from bert_tf.base.signals import STARTED_AT, noted_stop_signals
from bert_tf.base.tensorflow import keras, tf
from bert_tf.batches.batches import Batch
from bert_tf.memory.plan import Workload
from bert_tf.memory.split import TRIAL_UPDATES, OutOfMemoryError, halve
from bert_tf.model.losses import Features
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder
from bert_tf.run.device import device_name
from bert_tf.run.evaluations import EVALUATIONS, read_evaluations
from bert_tf.run.events import CONVERGED, DONE
from bert_tf.run.gpus import peak_tflops
from bert_tf.run.run_folder import REPORT, RunFolder, checkpoint_path
from bert_tf.run.statistics import LossWatch, UpdateResult, UpdateStatistics
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import TrainingConfig, compute_dtype
from bert_tf.training.evaluation import Evaluation, Evaluator
from bert_tf.training.record import DivergedError, describe_divergence, max_skips, run_record
from bert_tf.training.state import BackgroundWriter, TrainState
from bert_tf.training.step import GradientSums, TrainStep

# Ranks whose updates take this long may differ so much that some would exceed the all-reduce's time limit:
# they first wait for each other in `Workers.keep_alive`.
LONG_UPDATE_SECS = 10.0
# The report reads the whole log. After it was made, it rests for so many times as long as that took.
REPORT_REST = 19.0


class Training(NamedTuple):
    """A model, its objective, data and optimizer: everything in which tasks differ."""

    name: str  # of the phase or task, for the log
    model: keras.Model
    objective: Any  # from `bert_tf.model.losses`
    # Yields this rank's batches without end, from a global batch number on. Their order depends neither on the number
    # of ranks nor on how often the run was started.
    batches: Callable[[int], Iterator[Batch]]
    optimizer: Any  # from `bert_tf.optimizer.keras_optimizers`, with a schedule for `num_updates`
    num_updates: int
    warmup_steps: int
    identity: Mapping[str, Any]  # what must not change within a run: settings of model and data
    flops_per_sequence: float
    workload: Workload  # for the memory plan in config.json
    initialise: Callable[[Telemetry], None] = lambda _: None  # loads the weights that a new run starts from
    sources: Mapping[str, str] = {}  # files that hashes in `identity` stand for
    companions: Mapping[str, str] = {}  # text files that belong to the weights
    settings: Mapping[str, Any] = {}  # besides the config, for the "settings" in config.json
    facts: Mapping[str, Any] = {}  # further fields of config.json
    warnings: Sequence[str] = ()  # about the settings
    name_records: Callable[[int], list[str]] = lambda _: []  # ranges of records in a global batch, for messages
    loss_watch: LossWatch | None = None  # None: no warnings about the loss
    evaluation: Evaluation | None = None  # while training; None: none


def make_step(config: TrainingConfig, training: Training, workers: Workers) -> tuple[TrainState, TrainStep]:
    """The state, with the model's present weights, and the step that updates it."""
    compression = getattr(config, "allreduce_compression", "none")
    # Wherever gradients are float16, a loss scale keeps small ones from underflowing.
    loss_scale = LossScale(enabled="fp16" in (config.precision, compression))
    state = TrainState(training.model, training.optimizer, loss_scale)
    return state, TrainStep(state, training.objective, workers, config.seed, compute_dtype(compression))


class Trainer:
    """One training, from its newest checkpoint to its end. `fit` changes its `state`."""

    def __init__(
        self, config: TrainingConfig, training: Training, workers: Workers, *, folder: RunFolder, telemetry: Telemetry
    ):
        self._config, self._training, self._workers = config, training, workers
        self._folder, self._telemetry = folder, telemetry
        self.state, self._step = make_step(config, training, workers)
        self._checkpoints = CheckpointFolder(
            folder.path / "checkpoints",
            keep=config.keep_checkpoints,
            vocab_size=training.model.config.vocab_size,
            companions=training.companions,
        )
        self._evaluator = Evaluator(
            training.evaluation,
            config.early_stopping,
            self._checkpoints.folder,
            num_updates=training.num_updates,
            workers=workers,
            telemetry=telemetry,
        )
        self._writer = BackgroundWriter(self._checkpoints, telemetry, self._renew_report)
        self._statistics = UpdateStatistics(training.objective, workers)
        self._split = config.split(workers.rank)
        self._num_trials = TRIAL_UPDATES if config.may_split_more else 0  # updates that may still halve the micro-batch
        self._is_long = True  # whether an update may take long on this rank: the first one is compiled
        self._note_once = functools.cache(telemetry.note)
        self._num_applied = 0
        self._stopped_by: str | None = None
        self._next_report_at = 0.0

    def fit(self, afterwards: Callable[[Telemetry, int], None] = lambda *_: None) -> bool:
        """Runs updates until `num_updates` have been applied, or early stopping; saves at intervals and at the end.

        The host reads from the device only to log or save and, with several ranks, to time the two updates after a log
        line. Saving blocks training only while the state is copied: the chief writes checkpoints in the
        background, and only the last one is waited for.

        Args:
          afterwards: called on all ranks once the end is reached, with the telemetry and the number of updates that the
            model was trained for; if there were evaluations, the model has the best checkpoint's weights then.

        Returns: False if a signal or --max_hours stopped the training before its end; it is saved then, too.

        Raises:
          DivergedError: too many consecutive updates had a non-finite gradient.
          UserError: the folder holds another run, no checkpoint in it is sound, ranks differ, or the last save failed.
        """
        self._workers.require_same(self._training.identity)
        self._begin(changes=self._folder.check(self._training.identity, self._training.sources))
        started = time.monotonic()
        self._run_updates()
        training_secs = time.monotonic() - started
        if not self._stopped_by:
            afterwards(self._telemetry, self._take_best())
        reason = self._stopped_by or (CONVERGED if self._num_applied < self._training.num_updates else DONE)
        self._telemetry.end(reason, total_secs=training_secs)
        self._next_report_at = 0.0
        self._renew_report()
        return not self._stopped_by

    def _begin(self, changes: str) -> None:
        """Fills the state, binds the folder to this run, and opens the log, with the `changes` since the last start."""
        config, training = self._config, self._training
        with self._workers.keep_alive():
            resumed_from = self._resume_or_initialise() if self._workers.is_chief else None
        self.state.broadcast(self._workers)
        update = self.state.updates_applied
        self._evaluator.resume(update)
        if self._workers.is_chief:  # only now: a run that is refused must not bind the folder
            record = run_record(
                config, training.settings, training.workload, sources=training.sources, **training.facts
            )
            self._folder.write_config(training.identity, record, training.companions)
        peak = peak_tflops(device_name(), config.precision)
        self._telemetry.start(
            training.num_updates,
            update=update,
            resumed_from=resumed_from,
            phase=training.name,
            device=device_name(),
            num_ranks=config.num_ranks,
            global_batch_size=config.global_batch_size,
            **({"peak_tflops": peak * config.num_ranks} if peak else {}),
            warmup_steps=training.warmup_steps,
            flops_per_sequence=training.flops_per_sequence,
        )
        if changes and resumed_from:  # config.json has only the settings of the last start
            self._telemetry.warning(f"going on with other settings than before ({changes})")
        self._telemetry.warning(*training.warnings)

    def _resume_or_initialise(self) -> Path | None:
        """On the chief: restores the newest sound checkpoint and returns it, or fills the model for a new run."""
        checkpoints, telemetry = self._checkpoints, self._telemetry
        remove_leftovers(checkpoints.folder)
        newest, complaints = checkpoints.newest_undamaged()
        telemetry.warning(*complaints)
        if newest is None and complaints:
            raise UserError(
                f"no checkpoint in {checkpoints.folder} is sound; remove that folder to start this run "
                "from the beginning, or restore one of them"
            )
        if newest is None:
            self._training.initialise(telemetry)
        else:
            self.state.restore(checkpoints, newest)
        return newest

    @property
    def _is_at_end(self) -> bool:
        return self._num_applied >= self._training.num_updates or self._evaluator.has_converged

    def _run_updates(self) -> None:
        config, state = self._config, self.state
        self._num_applied = state.updates_applied
        self._statistics.num_skipped = state.batches_consumed - self._num_applied
        batches = self._training.batches(state.batches_consumed)
        if not self._is_at_end:  # the first read may take long on a remote file system
            with self._workers.keep_alive():
                first = next(batches)
            batches = itertools.chain([first], batches)
        with noted_stop_signals() as signals, self._writer:
            self._evaluate()  # one that was due when a signal stopped the previous start
            began, is_first = time.monotonic(), True
            while not self._is_at_end and not self._stopped_by:
                self._update(batches, signals)
                if is_first:
                    is_first, loss = False, self._statistics.last_loss()
                    self._telemetry.first_update(self._num_applied, loss, time.monotonic() - began)
                is_due = self._stopped_by or self._num_applied % config.save_checkpoint_steps == 0
                is_reported = is_due or self._num_applied % config.display_loss_steps == 0
                if is_reported or self._is_at_end or self._evaluator.is_due(self._num_applied):
                    self._log()  # corrects self._num_applied, so the end may not have been reached after all
                if (not self._stopped_by and self._evaluate()) or is_due or self._is_at_end:
                    with self._statistics.timed("saving"), self._workers.keep_alive():
                        if self._workers.is_chief:
                            is_last = bool(self._stopped_by) or self._is_at_end
                            self._writer.save(state, self._training.identity, is_last=is_last)

    def _update(self, batches: Iterator[Batch], signals: list[int]) -> None:
        with self._statistics.timed("input"):
            batch = next(batches)
        reason = self._reason_to_stop(signals)
        with self._statistics.timed("compute"):
            result = self._make_update(
                batch.features,
                self.state.batches_consumed,
                num_micro_batches=batch.num_micro_batches,
                stop_requested=reason is not None,
                is_long=self._is_long,
                is_timed=self._workers.size > 1 and self._statistics.needs_times,
            )
        if self._is_long:  # the step may just have been traced
            for remark in self._training.model.backend.remarks:
                self._note_once(remark)
        self.state.batches_consumed += 1
        self._statistics.add(result, batch)
        self._is_long = result.own_secs > LONG_UPDATE_SECS
        self._num_applied += 1  # wrong if the update was skipped, which only the device knows; `_log` corrects it
        # Several ranks agree to stop at the beginning of an update; a single rank can stop immediately.
        if self._workers.size == 1:
            self._stopped_by = self._reason_to_stop(signals)
        elif result.stop_requested:
            self._stopped_by = reason or "signal"

    def _reason_to_stop(self, signals: list[int]) -> str | None:
        """Why this rank asks all ranks to stop; None if it does not."""
        if signals:
            return "signal"
        max_hours = self._config.max_hours
        if max_hours is None or not self._workers.is_chief:  # the chief reports the reason, so it must decide
            return None
        return "max_hours" if time.monotonic() - STARTED_AT > 3600 * max_hours else None

    def _make_update(self, features: Features, batch_number: int, **options: Any) -> UpdateResult:
        """One update. If a rank runs out of memory in the first few, all ranks halve the micro-batch and try again.

        After these trial updates, which include compilation, all memory has been allocated. On a CPU the process is
        usually killed instead, so only the memory plan helps. With packed rows, whose split is fixed, none is tried.
        """
        while self._num_trials:
            # Timed, so that a device that runs out of memory reports it now.
            update = self._step.agree_on_update(
                self._split_again(features), batch_number, **{**options, "is_timed": True}
            )
            sums: GradientSums | None = None
            with self._workers.keep_alive():
                try:
                    sums = self._step.sum_gradients(update)
                except OutOfMemoryError:  # an error that leaves `keep_alive` ends all ranks
                    if self._split.micro_batch_size == 1:
                        raise
            if not self._workers.gather(np.array([sums is None], np.float64)).any():
                self._num_trials -= 1
                assert sums
                return self._step.apply(update, sums)
            old, self._split, self._num_trials = self._split, halve(self._split), TRIAL_UPDATES
            self._telemetry.warning(
                f"out of memory with a micro-batch of {old.micro_batch_size}: going on with "
                f"{self._split.num_accumulation_steps} micro-batches of {self._split.micro_batch_size} instead of "
                f"{old.num_accumulation_steps} of {old.micro_batch_size}, the same examples in each update"
            )
        return self._step(self._split_again(features), batch_number, **options)

    def _split_again(self, features: Features) -> Features:
        """The same rows [A, B, ...], in micro-batches of the present size."""
        if tuple(features["input_ids"].shape[:2]) == self._split.shape:
            return features
        return {name: tf.reshape(values, [*self._split.shape, *values.shape[2:]]) for name, values in features.items()}

    def _log(self) -> None:
        state, loss_watch = self.state, self._training.loss_watch
        figures, last = self._statistics.read(self._config.global_batch_size)
        self._num_applied = state.updates_applied  # fewer than were attempted if some were skipped
        self._telemetry.train(self._num_applied, batches_consumed=state.batches_consumed, **figures)
        if state.loss_scale.num_consecutive_skips() >= max_skips(state.loss_scale):
            self._writer.wait()
            records = self._training.name_records(state.batches_consumed - 1)
            raise DivergedError(describe_divergence(state, last.norm_by_variable.numpy(), records, self._checkpoints))
        if loss_watch and (warning := loss_watch.add(self._num_applied, figures["total_loss"])):
            self._telemetry.warning(warning)

    def _evaluate(self) -> bool:
        """Scores the weights if that is due; returns whether they are the best so far."""
        if not self._evaluator.is_due(self._num_applied):
            return False
        with self._statistics.timed("evaluation"):
            return self._evaluator.evaluate(self._num_applied)

    def _take_best(self) -> int:
        """Restores the checkpoint that stands for the run, unless it is the last one; returns its update."""
        checkpoints, state = self._checkpoints, self.state
        last = state.updates_applied
        with self._workers.keep_alive():
            evaluations = read_evaluations(checkpoints.folder) if self._workers.is_chief else None
            if evaluations and last not in evaluations.by_update:  # only earlier starts had --eval_steps
                (checkpoints.folder / EVALUATIONS).unlink()
                self._telemetry.note("the last checkpoint stands for the run: only earlier ones were scored")
                evaluations = None
            if evaluations and evaluations.best != last:
                path, complaints = checkpoints.best_undamaged()
                self._telemetry.warning(*complaints)
                assert path
                state.restore(checkpoints, path)
        update = int(self._workers.gather(np.array([state.updates_applied]))[0, 0])
        if evaluations and update in evaluations.by_update:
            value = f"{evaluations.score} = {evaluations.by_update[update]:.5g}"
            path = checkpoint_path(checkpoints.folder, update)
            self._telemetry.note(f"best checkpoint: {value} after update {update:,} of {last:,}; {path}")
        if update != last:
            state.broadcast(self._workers)
        return update

    def _renew_report(self) -> None:
        """(Re)writes report.html in the run folder, on the chief, unless it still rests (`REPORT_REST`)."""
        folder, started = self._folder.path, time.monotonic()
        if self._workers.is_chief and started >= self._next_report_at:
            self._telemetry.write(REPORT, report.write_page, [folder], folder / REPORT, folder.name)
            ended = time.monotonic()
            self._next_report_at = ended + REPORT_REST * (ended - started)
