"""The training loops: resume, update, log, save, evaluate, stop.

`run_updates` is the loop of every training here; `pretrain` is one pre-training phase around it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from bert_tf import report
from bert_tf.blocks import Blocks
from bert_tf.checkpoint import CheckpointFolder, SaveError, load_weights, resolve
from bert_tf.config import BertConfig, TrainConfig, compute_dtype
from bert_tf.data_order import GlobalOrder
from bert_tf.distributed import Workers
from bert_tf.errors import STOP_SIGNALS, UserError
from bert_tf.input_pipeline import Batch, RecordSet, evaluation_batches, training_batches
from bert_tf.interval import Interval, first_non_finite, variable_figures
from bert_tf.loss_watch import LossWatch
from bert_tf.losses import PretrainingObjective
from bert_tf.memory import Split, Workload
from bert_tf.memory_trial import fit_into_memory
from bert_tf.model import PretrainingModel
from bert_tf.optimization import LossScale, make_optimizer
from bert_tf.run_folder import RunFolder, provenance, write_whole
from bert_tf.telemetry import Telemetry, peak_tflops, pretraining_flops_per_sequence
from bert_tf.train_step import Features, TrainStep

# Updates in a row with a non-finite gradient after which a run gives up. Where float16 holds gradients some are
# the loss scale finding its level; otherwise they mean that something is wrong.
MAX_SKIPS_WHILE_SCALING, MAX_SKIPS = 25, 3
# Runs of records that the message about them names; --replay_update lists all.
_NAMED_RECORDS = 8


@dataclasses.dataclass
class TrainState:
    """Everything that a checkpoint holds, and the position in the data."""

    model: tf.keras.Model
    optimizer: Any
    loss_scale: LossScale
    batches_consumed: int = 0

    @property
    def variables(self) -> list[tf.Variable]:
        return [*self.model.variables, *self.optimizer.slot_variables]

    @property
    def updates_applied(self) -> int:
        return int(self.optimizer.iterations.numpy())

    def save(self, checkpoints: CheckpointFolder, identity: Mapping[str, Any]) -> Path:
        state = {
            "batches_consumed": self.batches_consumed,
            "loss_scale": self.loss_scale.state(),
            "identity": dict(identity),
        }
        return checkpoints.save(self.updates_applied, self.variables, state)

    def restore(self, checkpoints: CheckpointFolder, path: Path) -> None:
        state = checkpoints.restore(path, self.variables)
        self.optimizer.iterations.assign(state["updates_applied"])
        self.loss_scale.restore(state["loss_scale"])
        self.batches_consumed = state["batches_consumed"]

    def share(self, workers: Workers) -> None:
        """Gives all ranks what rank 0 holds."""
        self.batches_consumed = int(workers.gather(np.array([self.batches_consumed], np.int64))[0, 0])
        workers.broadcast([*self.variables, self.optimizer.iterations, *self.loss_scale.variables])


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """How long `run_updates` runs and how often it shows and saves."""

    num_updates: int
    global_batch_size: int
    save_checkpoint_steps: int
    display_loss_steps: int
    identity: Mapping[str, Any]  # written into each checkpoint
    name_records: Callable[[int], list[str]] = lambda _: []  # of a global batch, for people
    watch: LossWatch | None = None  # None: the loss is not judged


def max_skips(loss_scale: LossScale) -> int:
    """After how many skipped updates in a row a run gives up."""
    return MAX_SKIPS_WHILE_SCALING if loss_scale.enabled else MAX_SKIPS


class _StopSignals:
    """Notes SIGTERM and SIGUSR1, so that the running update can be finished and saved."""

    def __init__(self) -> None:
        self.received: str | None = None

    @contextlib.contextmanager
    def watched(self) -> Iterator[_StopSignals]:
        def note(number: int, _: Any) -> None:
            self.received = signal.Signals(number).name

        previous = {number: signal.signal(number, note) for number in STOP_SIGNALS}
        try:
            yield self
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def run_updates(
    step: TrainStep,
    state: TrainState,
    batches_from: Callable[[int], Iterator[Batch]],
    settings: LoopSettings,
    checkpoints: CheckpointFolder,
    telemetry: Telemetry,
    workers: Workers,
    *,
    name_metrics: Callable[[np.ndarray], dict[str, float]],
    after_save: Callable[[], None] = lambda: None,
) -> bool:
    """Updates until `settings.num_updates` have been applied; saves at intervals and at the end.

    The host reads the device only where it logs or saves.

    Args:
      batches_from: number of a global batch -> iterator over this rank's batches from there on.
      name_metrics: the objective's mean metrics -> what is logged.
      after_save: called on the chief after each checkpoint.

    Returns:
      True when the end was reached, False when a signal stopped the run (it was saved).

    Raises:
      UserError: too many updates in a row had a non-finite gradient, or the last save failed.
    """
    skipped = state.batches_consumed - state.updates_applied
    applied = saved_at = state.updates_applied
    interval, batches = Interval(), batches_from(state.batches_consumed)
    stop, changes = False, None

    def log() -> None:
        nonlocal skipped, applied, changes
        shown = interval.read(settings.global_batch_size)
        skipped += shown.pop("skipped")
        norms, changes = shown.pop("norm_by_variable"), shown.pop("change_by_variable")
        metrics = name_metrics(shown.pop("means"))
        applied = state.updates_applied  # fewer than were tried where some were skipped
        telemetry.train(applied, batches_consumed=state.batches_consumed, **metrics, skipped_updates=skipped, **shown)
        if state.loss_scale.num_consecutive_skips() >= max_skips(state.loss_scale):
            raise UserError(_describe_skips(step, state, settings, norms, saved_at))
        for warning in settings.watch.add(applied, metrics["total_loss"]) if settings.watch else ():
            telemetry.warning(warning)

    def save() -> None:
        nonlocal saved_at
        saved_at = applied
        if workers.is_chief:
            save_as_chief()

    def save_as_chief() -> None:
        started = time.monotonic()
        try:
            path = state.save(checkpoints, settings.identity)
        except SaveError as error:
            if stop or applied >= settings.num_updates:
                raise
            telemetry.warning(str(error))
            return
        telemetry.checkpoint(applied, path, time.monotonic() - started)
        if changes is not None:
            telemetry.by_variable(applied, variable_figures(step.variables, changes))
        after_save()

    with _StopSignals().watched() as signals:
        while applied < settings.num_updates and not stop:
            with interval.timed("input"):
                batch = next(batches)
            with interval.timed("compute"):
                result = step(
                    batch.features,
                    state.batches_consumed,
                    num_micro_batches=batch.num_micro_batches,
                    stop_requested=signals.received is not None,
                )
            state.batches_consumed += 1
            interval.add(result, batch)
            applied += 1
            # Ranks agree at the beginning of an update; one alone need not wait for the next one.
            stop = result.stop_requested or (workers.size == 1 and signals.received is not None)
            due = applied % settings.save_checkpoint_steps == 0
            if stop or due or applied % settings.display_loss_steps == 0 or applied == settings.num_updates:
                log()
            if stop or due or applied == settings.num_updates:
                workers.together(save)
    return not stop


def _describe_skips(
    step: TrainStep, state: TrainState, settings: LoopSettings, norms_V: np.ndarray, saved_at: int
) -> str:
    """What to say when the last updates were all skipped; `norms_V` is the last one's gradient."""
    batch, limit = state.batches_consumed - 1, max_skips(state.loss_scale)
    bad = first_non_finite(step.variables, norms_V) or "no single variable, but the sum of their squares"
    records = settings.name_records(batch)
    more = f" and {len(records) - _NAMED_RECORDS} more ranges" if len(records) > _NAMED_RECORDS else ""
    checkpoint = f"the checkpoint of update {saved_at} is sound" if saved_at else "no checkpoint had been saved"
    return (
        f"{limit} updates in a row had a non-finite gradient, so nothing is learned any more; the last one was "
        f"global batch {batch}, not finite first in {bad}; its records (file, number in it): "
        f"{', '.join(records[:_NAMED_RECORDS]) or 'unknown'}{more}; {checkpoint}. --replay_update="
        f"{state.updates_applied + 1} takes that update apart; a lower learning rate, a longer warm-up or "
        "--precision=fp32 may help"
    )


def evaluate(model: tf.keras.Model, objective, batches: Iterator[Features], workers: Workers) -> np.ndarray:
    """The objective's mean metrics over batches [B, ...] of all ranks, without dropout: float64 [M]."""
    compiled = tf.function(
        lambda features: objective(model, features, None)[1], jit_compile=model.blocks.scope == "step", autograph=False
    )
    num_denominators = len(objective.denominator_names)
    sums = np.zeros([num_denominators + len(objective.metric_names)])

    def add_all() -> None:
        for features in batches:
            sums[:num_denominators] += objective.local_denominators(features)
            sums[num_denominators:] += compiled(features).numpy()

    workers.together(add_all)
    totals = workers.gather(sums).sum(axis=0)
    denominators = np.maximum(totals[:num_denominators], 1.0)
    return totals[num_denominators:] / denominators[list(objective.metric_denominators)]


def start_or_resume(
    state: TrainState,
    checkpoints: CheckpointFolder,
    workers: Workers,
    telemetry: Telemetry,
    initialise: Callable[[], None],
) -> Path | None:
    """Restores the newest sound checkpoint, or calls `initialise`; rank 0 reads, all ranks get it."""

    def restore() -> Path | None:
        try:
            checkpoints.remove_leftovers()  # saving does it too, but a run at its end saves no more
        except OSError as error:
            telemetry.warning(
                f"{error.filename} is left of a save that was killed and could not be removed "
                f"({error.strerror}); it is in nobody's way but takes room"
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

    newest = workers.together(restore if workers.is_chief else lambda: None)
    state.share(workers)
    return newest


def make_blocks(config: Any) -> Blocks:
    """The blocks for a TrainConfig or a FinetuningConfig, and what is set for the whole process with them."""
    tf.config.experimental.enable_tensor_float_32_execution(config.precision == "tf32")
    return Blocks(config.xla_scope, compute_dtype(config.precision), config.recompute)


def agree_on_split(split: Split, workers: Workers) -> Split:
    """The split with the smallest micro-batch that any rank has chosen."""
    num_rows = split.micro_batch_size * split.num_accumulation_steps
    size = int(workers.gather(np.array([split.micro_batch_size])).min()) if split.is_auto else split.micro_batch_size
    if split.is_auto and workers.is_chief:
        print(
            f"--train_batch_size=auto: by the plan {num_rows // size} micro-batch(es) of {size} on each rank fit",
            flush=True,
        )
    return Split(size, num_rows // size, split.is_auto)


def describe_devices() -> dict[str, Any]:
    """Name of the device a rank computes on, for config.json."""
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return {"device": "CPU"}
    return {"device": tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")}


def check_same_vocabulary(prefix: Path, vocabulary: str | None) -> None:
    """Raises `UserError` where a vocab.txt beside the checkpoint numbers its pieces otherwise than the records do."""
    file = prefix.parent / "vocab.txt"
    if vocabulary is None or not file.is_file():
        return
    theirs, ours = file.read_text(encoding="utf-8").split("\n"), vocabulary.split("\n")
    for number, (piece, other) in enumerate(itertools.zip_longest(theirs, ours)):
        if (piece or "").strip() != (other or "").strip():
            raise UserError(
                f"--init_checkpoint={prefix} has another vocabulary than the records: piece {number} is "
                f"{piece!r} in {file}, {other!r} in theirs; make records with the checkpoint's vocabulary "
                "(bertPrep.py --action create_tfrecord_files --vocab_file)"
            )


def initialise_from(
    init_checkpoint: str | None,
    model: tf.keras.Model,
    vocab_size: int,
    telemetry: Telemetry,
    vocabulary: str | None = None,
) -> None:
    """Loads all weights that a checkpoint and the model share, and says which they do not share.

    `vocabulary` is the text of the vocab.txt that the data was made with.
    """
    if not init_checkpoint:
        telemetry.note("starting from random weights")
        return
    prefix = resolve(init_checkpoint)
    check_same_vocabulary(prefix, vocabulary)
    loaded, missing, unused = load_weights(prefix, model.variables, vocab_size)
    if not loaded:
        raise UserError(f"--init_checkpoint={prefix} holds none of the model's variables; name a BERT checkpoint")
    telemetry.note(f"starting from {prefix}: {len(loaded)} variables loaded")
    for what, names in (
        ("not in the checkpoint, left as initialised", missing),
        ("in the checkpoint, not used", unused),
    ):
        if names:
            telemetry.note(f"  {what}: {', '.join(names)}")


def name_pretraining_metrics(means: np.ndarray) -> dict[str, float]:
    """Metrics of `PretrainingObjective` under NVIDIA's names."""
    mlm_loss, nsp_loss, mlm_accuracy, nsp_accuracy = map(float, means)
    return {
        "total_loss": mlm_loss + nsp_loss,
        "mlm_loss": mlm_loss,
        "nsp_loss": nsp_loss,
        "mlm_accuracy": mlm_accuracy,
        "nsp_accuracy": nsp_accuracy,
    }


@dataclasses.dataclass(frozen=True)
class PretrainingInputs:
    """What a phase reads, checked before it starts."""

    bert_config: BertConfig
    vocabulary: str | None  # text of vocab.txt, put beside the weights; None for foreign records
    training: RecordSet
    evaluation: RecordSet | None
    init_checkpoint: str | None

    @property
    def companions(self) -> dict[str, str]:
        """What is put beside the weights, so that a checkpoint is a model on its own."""
        texts = {"bert_config.json": self.bert_config.to_json()}
        return {**texts, "vocab.txt": self.vocabulary} if self.vocabulary else texts


def run_identity(config: TrainConfig, inputs: PretrainingInputs) -> dict[str, Any]:
    """What makes a pre-training run this run and no other."""
    return {
        **config.identity(),
        "bert_config": inputs.bert_config.to_dict(),
        "data": inputs.training.fingerprint(config.packing),
        "init_checkpoint": inputs.init_checkpoint,
    }


def global_batch_records(config: TrainConfig, inputs: PretrainingInputs, batch_number: int) -> list[str]:
    """The records of a global batch, for people: files and numbers."""
    order, size = GlobalOrder(inputs.training.records_per_file, config.seed), config.global_batch_size
    return inputs.training.name(order.runs(batch_number * size, size))


def make_training(
    config: TrainConfig, inputs: PretrainingInputs, workers: Workers, on_halving: Callable[[str], None] | None = None
) -> tuple[TrainState, TrainStep, PretrainingObjective, Callable[[int], Iterator[Batch]]]:
    """What a phase trains with, from random weights on; the last one is `run_updates`' `batches_from`.

    One process may stand in for all ranks of the configuration: then it does their micro-batches one after the other.
    """
    model = PretrainingModel(inputs.bert_config, make_blocks(config), config.seed)
    optimizer = make_optimizer(
        config.optimizer_type,
        config.effective_learning_rate,
        config.warmup_steps,
        config.num_train_steps,
        compiled=config.xla_scope != "off",
        continuous_join=config.continuous_join,
        **config.optimizer_options,
    )
    loss_scale = LossScale(enabled=config.scales_loss)
    objective = PretrainingObjective()
    split = {
        "micro_batch_size": config.train_batch_size,
        "num_accumulation_steps": config.num_accumulation_steps * config.num_ranks // workers.size,
    }
    step = TrainStep(
        model,
        objective,
        optimizer,
        workers,
        loss_scale,
        scope=config.xla_scope,
        seed=config.seed,
        settings=repr(run_identity(config, inputs)),
        reduce_dtype=compute_dtype(config.allreduce_compression),
        on_halving=on_halving,
        **split,
    )
    order = GlobalOrder(inputs.training.records_per_file, config.seed)

    def batches_from(batch_number: int) -> Iterator[Batch]:
        return training_batches(
            inputs.training,
            order,
            first_batch=batch_number,
            rank=workers.rank,
            num_ranks=workers.size,
            vocab_size=inputs.bert_config.vocab_size,
            packing=config.packing,
            **split,
        )

    return TrainState(model, optimizer, loss_scale), step, objective, batches_from


def workload(config: TrainConfig, bert_config: BertConfig) -> Workload:
    return Workload(
        bert_config,
        config.max_seq_length,
        config.max_predictions_per_seq,
        config.xla_scope,
        config.train_batch_size,
        config.precision,
        config.recompute,
        config.num_ranks,
    )


def pretrain(
    config: TrainConfig,
    inputs: PretrainingInputs,
    model_dir: Path,
    workers: Workers,
    *,
    continue_with_changes: bool = False,
    dllog_path: str | None = None,
) -> bool:
    """Runs one phase in `model_dir`, or what is left of it, with an evaluation at its end.

    Returns True when the phase is finished, False when a signal stopped it.
    """
    bert_config, identity = inputs.bert_config, run_identity(config, inputs)
    if workers.is_chief:
        folder = RunFolder(model_dir)
        folder.check(identity, continue_with_changes)  # first, because a trial of the memory may take minutes
    config = fit_into_memory(config, workload(config, bert_config), config.optimizer_type, model_dir, workers)
    if workers.is_chief:
        folder.bind(identity, _run_record(config, inputs), inputs.companions, continue_with_changes)
    telemetry = Telemetry(
        model_dir, is_chief=workers.is_chief, total_updates=config.num_train_steps, dllog_path=dllog_path
    )
    state, step, objective, batches_from = make_training(
        config, inputs, workers, on_halving=telemetry.warning if config.may_split_more else None
    )
    checkpoints = CheckpointFolder(
        model_dir / "checkpoints",
        keep=config.keep_checkpoints,
        vocab_size=bert_config.vocab_size,
        companions=inputs.companions,
    )
    with telemetry:
        resumed_from = start_or_resume(
            state,
            checkpoints,
            workers,
            telemetry,
            lambda: initialise_from(
                inputs.init_checkpoint, state.model, bert_config.vocab_size, telemetry, inputs.vocabulary
            ),
        )
        telemetry.start(
            update=state.updates_applied,
            resumed_from=resumed_from,
            phase=model_dir.name,
            **_telemetry_facts(config, bert_config),
        )
        if config.packing and config.num_accumulation_steps == 1:
            telemetry.warning(
                "--packing saves whole micro-batches, and each update has only one here "
                "(num_accumulation_steps=1), so it saves nothing; accumulate more, smaller ones"
            )
        settings = LoopSettings(
            config.num_train_steps,
            config.global_batch_size,
            config.save_checkpoint_steps,
            config.display_loss_steps,
            identity,
            functools.partial(global_batch_records, config, inputs),
            LossWatch(bert_config.vocab_size, config.warmup_steps),
        )
        finished = run_updates(
            step,
            state,
            batches_from,
            settings,
            checkpoints,
            telemetry,
            workers,
            name_metrics=name_pretraining_metrics,
            after_save=lambda: write_report(model_dir, telemetry),
        )
        if finished and inputs.evaluation:
            _evaluate_phase(
                config,
                inputs.evaluation,
                bert_config.vocab_size,
                state.model,
                objective,
                workers,
                telemetry,
                model_dir,
                state.updates_applied,
            )
        telemetry.end("done" if finished else "signal", update=state.updates_applied)
        if workers.is_chief:
            write_report(model_dir, telemetry)
    return finished


def write_report(model_dir: Path, telemetry: Telemetry) -> None:
    """(Re)writes the run's own report.html; a full disk is worth a warning, not the run."""
    try:
        report.write_report([model_dir], model_dir / "report.html", title=model_dir.name)
    except OSError as error:
        telemetry.warning(f"{model_dir / 'report.html'} could not be written ({error.strerror})")


def _evaluate_phase(
    config: TrainConfig,
    records: RecordSet,
    vocab_size: int,
    model: tf.keras.Model,
    objective: PretrainingObjective,
    workers: Workers,
    telemetry: Telemetry,
    model_dir: Path,
    update: int,
) -> None:
    batches = evaluation_batches(
        records,
        batch_size=config.eval_batch_size,
        max_batches=config.max_eval_steps,
        rank=workers.rank,
        num_ranks=workers.size,
        vocab_size=vocab_size,
    )
    means = name_pretraining_metrics(evaluate(model, objective, batches, workers))
    results = {
        "masked_lm_accuracy": means["mlm_accuracy"],
        "masked_lm_loss": means["mlm_loss"],
        "next_sentence_accuracy": means["nsp_accuracy"],
        "next_sentence_loss": means["nsp_loss"],
        "loss": means["total_loss"],
        "global_step": update,
    }
    telemetry.evaluation(update, **results)
    if workers.is_chief:
        lines = "".join(f"{name} = {value}\n" for name, value in results.items())
        write_whole(model_dir / "eval_results.txt", lines)


def _run_record(config: TrainConfig, inputs: PretrainingInputs) -> dict[str, Any]:
    return {
        "settings": config.to_dict(),
        "bert_config": inputs.bert_config.to_dict(),
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        "data": inputs.training.facts(),
        "evaluation_data": inputs.evaluation.facts() if inputs.evaluation else None,
        **describe_devices(),
        **provenance(),
    }


def _telemetry_facts(config: TrainConfig, bert_config: BertConfig) -> dict[str, Any]:
    peak = peak_tflops(describe_devices()["device"], config.precision)
    flops = pretraining_flops_per_sequence(bert_config, config.max_seq_length, config.max_predictions_per_seq)
    facts = {
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        "flops_per_sequence": flops,
        "warmup_steps": config.warmup_steps,
    }
    return {**facts, "peak_tflops": peak * config.num_ranks} if peak else facts
