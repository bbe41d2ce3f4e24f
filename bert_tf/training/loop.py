"""The training loop: begin or resume, update, log, save, stop."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from bert_tf import report
from bert_tf.base.determinism import keep_autotune_results
from bert_tf.base.errors import UserError
from bert_tf.base.signals import STARTED_AT, noted_stop_signals
from bert_tf.batches.batches import Batch
from bert_tf.bert_config import BertConfig
from bert_tf.memory.halving import HalvingStep
from bert_tf.memory.plan import PROGRAM, Workload, micro_batches_at_once, predict, split_into
from bert_tf.model.backends import Plain, make_backend
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, SaveError
from bert_tf.run.flops import peak_tflops
from bert_tf.run.loss_watch import LossWatch
from bert_tf.run.run_folder import provenance
from bert_tf.run.statistics import UpdateStatistics, compare_ranks, first_non_finite, variable_figures
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import TrainingConfig, compute_dtype
from bert_tf.training.step import TrainState

# A run gives up after this many consecutive updates with a non-finite gradient. With loss scaling some are
# normal until the scale fits; otherwise something is wrong.
MAX_SKIPS_WHILE_SCALING, MAX_SKIPS = 25, 3
# Values of ONEDNN_MAX_CPU_ISA.
_BELOW_AVX512 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI")
# How many ranges of records the error message names; --replay_update lists them all.
_NAMED_RECORDS = 8


class DivergedError(UserError):
    """Too many consecutive updates had a non-finite gradient, so nothing is learned any more."""


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long `run_updates` runs and how often it logs and saves."""

    config: TrainingConfig
    num_updates: int
    identity: Mapping[str, Any]  # written into each checkpoint
    name_records: Callable[[int], list[str]] = lambda _: []  # number of a global batch -> its records, for messages
    watch: LossWatch | None = None  # None: no warnings about the loss


def max_skips(loss_scale: LossScale) -> int:
    """The number of consecutive skipped updates after which a run gives up."""
    return MAX_SKIPS_WHILE_SCALING if loss_scale.enabled else MAX_SKIPS


@dataclasses.dataclass(frozen=True)
class Run:
    """The ranks of a run, and where its results go."""

    workers: Workers
    checkpoints: CheckpointFolder
    telemetry: Telemetry
    after_save: Callable[[], None] = lambda: None  # called on the chief after each checkpoint, from any thread


@dataclasses.dataclass
class Training:
    """What a loop trains, and on which batches.

    Attributes:
      step: a `TrainStep` or a wrapper around one.
      batches_from: number of a global batch -> iterator over this rank's batches, from that one on.
      name_metrics: the objective's mean metrics -> logged values by name.
    """

    step: Any
    state: TrainState
    batches_from: Callable[[int], Iterator[Batch]]
    name_metrics: Callable[[np.ndarray], dict[str, float]]


def run_updates(training: Training, run: Run, settings: LoopSettings) -> str | None:
    """Runs updates until `settings.num_updates` have been applied; saves at intervals and at the end.

    The host reads from the device only to log or save. Saving blocks training only while the state is copied: the
    chief writes checkpoints in the background, and only the last one is waited for.

    Returns:
      None if the end was reached, else what stopped the run after saving it: "signal" or "max_hours".

    Raises:
      DivergedError: too many consecutive updates had a non-finite gradient.
      UserError: the last save failed.
    """
    return _Loop(training, run, settings).run()


class _Loop:
    """One call of `run_updates`, and how far it has come."""

    def __init__(self, training: Training, run: Run, settings: LoopSettings):
        self._training, self._run, self._settings = training, run, settings
        self._applied = training.state.updates_applied
        self._num_skipped = training.state.batches_consumed - self._applied
        self._statistics = UpdateStatistics()
        self._stopped_by: str | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoints")
        self._write: Future[None] | None = None  # of the newest checkpoint
        self._changes_Vx3: np.ndarray | None = None  # of the last update that was both logged and applied

    @property
    def _is_at_end(self) -> bool:
        return self._applied >= self._settings.num_updates

    def run(self) -> str | None:
        training, config = self._training, self._settings.config
        batches = training.batches_from(training.state.batches_consumed)
        if not self._is_at_end:  # on a remote file system the first read may take a rank a long time
            first = self._run.workers.run_keeping_alive(lambda: next(batches))
            batches = itertools.chain([first], batches)
        # However the updates end, a checkpoint that is being written is completed first.
        with noted_stop_signals() as signals, self._writer:
            while not self._is_at_end and not self._stopped_by:
                self._update(batches, signals)
                is_due = self._stopped_by or self._applied % config.save_checkpoint_steps == 0
                if is_due or self._is_at_end or self._applied % config.display_loss_steps == 0:
                    self._log()  # corrects self._applied, so the end may not have been reached after all
                if is_due or self._is_at_end:
                    with self._statistics.timed("saving"):
                        self._run.workers.run_keeping_alive(self._save)
        return self._stopped_by

    def _stop_wanted(self, signals: list[int]) -> str | None:
        """Why this rank asks all ranks to stop; None if it does not."""
        if signals:
            return "signal"
        max_hours = self._settings.config.max_hours
        if max_hours is None or not self._run.workers.is_chief:  # the chief reports the reason, so it must decide
            return None
        return "max_hours" if time.monotonic() - STARTED_AT > 3600 * max_hours else None

    def _update(self, batches: Iterator[Batch], signals: list[int]) -> None:
        training, state = self._training, self._training.state
        with self._statistics.timed("input"):
            batch = next(batches)
        wanted = self._stop_wanted(signals)
        with self._statistics.timed("compute"):
            result = training.step(
                batch.features,
                state.batches_consumed,
                num_micro_batches=batch.num_micro_batches,
                stop_requested=wanted is not None,
            )
        state.batches_consumed += 1
        self._statistics.add(result, batch)
        self._applied += 1  # wrong if the update was skipped, which only the device knows; `_log` corrects it
        # Several ranks agree to stop at the beginning of an update; a single rank can stop immediately.
        if self._run.workers.size == 1:
            self._stopped_by = self._stop_wanted(signals)
        elif result.stop_requested:
            self._stopped_by = wanted or "signal"

    def _log(self) -> None:
        training, telemetry = self._training, self._run.telemetry
        state, watch = training.state, self._settings.watch
        figures = self._statistics.read(self._settings.config.global_batch_size)
        self._num_skipped += figures.pop("skipped")
        norms_V, self._changes_Vx3 = figures.pop("norm_by_variable"), figures.pop("change_by_variable")
        metrics = training.name_metrics(figures.pop("means"))
        self._applied = state.updates_applied  # fewer than were attempted if some were skipped
        ranks = compare_ranks(figures.pop("own_secs"), self._run.workers)
        figures = {**metrics, "skipped_updates": self._num_skipped, **figures, **ranks}
        telemetry.train(self._applied, batches_consumed=state.batches_consumed, **figures)
        if state.loss_scale.num_consecutive_skips() >= max_skips(state.loss_scale):
            self._wait_for_write()
            raise DivergedError(_describe_skips(training, self._run, self._settings, norms_V))
        for warning in watch.add(self._applied, metrics["total_loss"]) if watch else ():
            telemetry.warning(warning)

    def _save(self) -> None:
        training, run = self._training, self._run
        keep_autotune_results(run.checkpoints.folder.parent)
        if not run.workers.is_chief:
            return
        started = time.monotonic()
        self._wait_for_write()  # of the previous checkpoint, so that there are never two copies
        snapshot = training.state.copy(run.checkpoints, self._settings.identity)
        changes, is_last = self._changes_Vx3, bool(self._stopped_by) or self._is_at_end
        copied_secs = time.monotonic() - started

        def write() -> None:
            began = time.monotonic()
            try:
                path = run.checkpoints.write(snapshot)
            except SaveError as error:
                if is_last:
                    raise
                run.telemetry.warning(str(error))
                return
            write_secs = time.monotonic() - began
            waited_secs = copied_secs + write_secs if is_last else copied_secs
            run.telemetry.checkpoint(snapshot.update, path, waited_secs, write_secs)
            if changes is not None:
                run.telemetry.by_variable(snapshot.update, variable_figures(training.step.variables, changes))
            run.after_save()

        self._write = self._writer.submit(write)
        if is_last:
            self._wait_for_write()

    def _wait_for_write(self) -> None:
        if self._write:
            self._write.result()
            self._write = None


def _describe_skips(training: Training, run: Run, settings: LoopSettings, norms_V: np.ndarray) -> str:
    """The error message after too many skipped updates; `norms_V` are the last update's gradient norms."""
    step, state = training.step, training.state
    batch, limit = state.batches_consumed - 1, max_skips(state.loss_scale)
    bad = first_non_finite(step.variables, norms_V) or "no single variable, but the sum of their squares"
    records = settings.name_records(batch)
    more = f" and {len(records) - _NAMED_RECORDS} more ranges" if len(records) > _NAMED_RECORDS else ""
    saved = run.checkpoints.newest_finite()
    sound = f"{saved.name} is sound" if saved else "there is no checkpoint of finite weights"
    return (
        f"{limit} updates in a row had a non-finite gradient, so nothing is learned any more; the last one was "
        f"global batch {batch}, not finite first in {bad}; its records (file, number in it): "
        f"{', '.join(records[:_NAMED_RECORDS]) or 'unknown'}{more}; {sound}. --replay_update="
        f"{state.updates_applied + 1} examines that update; a lower learning rate, a longer warm-up or "
        "--precision=fp32 may help"
    )


def open_run(
    config: TrainingConfig, vocab_size: int, companions: Mapping[str, str], workers: Workers, telemetry: Telemetry
) -> Run:
    """The run in the telemetry's folder. `companions`: text files, by name, saved beside every copy of the weights."""
    checkpoints = CheckpointFolder(
        telemetry.run_folder / "checkpoints", keep=config.keep_checkpoints, vocab_size=vocab_size, companions=companions
    )
    return Run(workers, checkpoints, telemetry, after_save=lambda: write_report(telemetry))


def begin(
    training: Training,
    run: Run,
    config: TrainingConfig,
    initialise: Callable[[], None],
    bind: Callable[[], None],
    **facts: Any,
) -> None:
    """Fills the model from the newest checkpoint, or by `initialise`, and opens the log.

    Args:
      bind: binds the run folder to these settings; called on the chief, once no setting can be refused any more.
      facts: for the log, besides those that follow from the configuration.
    """
    if config.may_split_more:
        training.step = HalvingStep(training.step, run.workers, config.split(run.workers.rank), run.telemetry.warning)
    resumed_from = start_or_resume(training.state, run, initialise)
    if run.workers.is_chief:
        bind()
    device = device_name()
    peak = peak_tflops(device, config.precision)
    run.telemetry.start(
        update=training.state.updates_applied,
        resumed_from=resumed_from,
        device=device,
        num_ranks=config.num_ranks,
        global_batch_size=config.global_batch_size,
        **({"peak_tflops": peak * config.num_ranks} if peak else {}),
        **facts,
    )


def run_record(config: TrainingConfig, bert_config: BertConfig, **facts: Any) -> dict[str, Any]:
    """What ``config.json`` records besides a run's identity."""
    record = {
        "settings": config.to_dict(),
        "bert_config": bert_config.to_dict(),
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        **facts,
        "device": device_name(),
        **provenance(),
    }
    settings = record["settings"]
    work = Workload.from_flags(
        {**settings, "num_at_once": micro_batches_at_once(config.xla_scope)}, bert_config, config.num_ranks
    )
    work = split_into(work, config.train_batch_size, config.num_accumulation_steps)
    planned = {"num_parameters": work.num_parameters}
    if not settings.get("packing"):  # the memory plan does not cover packed rows
        # On a CPU the peak is the whole process's, so it includes the program itself.
        bytes_planned = predict(work).total + (PROGRAM if record["device"] == "CPU" else 0)
        planned["memory_mib"] = round(bytes_planned / 2**20)
    return {**record, "planned": planned}


def start_or_resume(state: TrainState, run: Run, initialise: Callable[[], None]) -> Path | None:
    """Restores the newest sound checkpoint, or calls `initialise`; rank 0 reads it and broadcasts it to all ranks."""
    checkpoints, workers, telemetry = run.checkpoints, run.workers, run.telemetry

    def restore() -> Path | None:
        try:
            checkpoints.remove_leftovers()  # saving does this too, but a finished run does not save
        except OSError as error:
            telemetry.warning(
                f"{error.filename}, left by a save that was killed, could not be removed "
                f"({error.strerror}); it does no harm but takes room"
            )
        newest, complaints = checkpoints.newest_sound()
        for complaint in complaints:
            telemetry.warning(complaint)
        if newest is None and complaints:
            raise UserError(
                f"no checkpoint in {checkpoints.folder} is sound; remove that folder to start this run "
                "from the beginning, or restore one of them"
            )
        if newest is None:
            initialise()
        else:
            state.restore(checkpoints, newest)
        return newest

    newest = workers.run_keeping_alive(restore if workers.is_chief else lambda: None)
    state.broadcast(workers)
    return newest


def make_blocks(config: TrainingConfig) -> Plain:
    """Makes the model's backend, and sets TF32 for the whole process.

    Raises:
      UserError: bf16 on a processor that gains nothing from it.
    """
    if config.precision == "bf16" and not tf.config.list_physical_devices("GPU") and not has_fast_bf16():
        raise UserError(
            "--precision=bf16: this processor has no AVX-512 (or ONEDNN_MAX_CPU_ISA hides it), without which bfloat16 "
            "is slower than float32 or ends the process; omit the flag, or give --precision=fp32"
        )
    tf.config.experimental.enable_tensor_float_32_execution(config.precision == "tf32")
    return make_backend(config.xla_scope, compute_dtype(config.precision), recompute=config.recompute)


def has_fast_bf16(environ: Mapping[str, str] = os.environ, cpu_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether oneDNN multiplies bfloat16 matrices on this processor: an x86 processor needs AVX-512 for that."""
    if environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in _BELOW_AVX512:
        return False
    flags = [line for line in cpu_info.read_text().splitlines() if line.startswith("flags")]  # none: not x86
    return not flags or "avx512f" in flags[0].split()


def device_name() -> str:
    """The name of the device that a rank computes on."""
    gpus = tf.config.list_physical_devices("GPU")
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU") if gpus else "CPU"


def write_report(telemetry: Telemetry) -> None:
    """(Re)writes the run's own report.html, on the chief; a failure is only a warning."""
    folder = telemetry.run_folder
    try:
        if telemetry.is_chief:
            report.write_page([folder], folder / "report.html", title=folder.name)
    except OSError as error:
        telemetry.warning(f"{folder / 'report.html'} could not be written ({error.strerror})")
