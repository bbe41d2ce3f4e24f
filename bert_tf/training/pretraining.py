"""One pre-training phase: its inputs, model, loop and evaluation put together."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.progress import Progress
from bert_tf.batches.batches import Batch, evaluation_batches, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.config import BatchSplit, BertConfig, PretrainingConfig, compute_dtype
from bert_tf.interchange.initialise import find_weights, initialise_from
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import CheckpointFolder, save_encoder
from bert_tf.run.flops import peak_tflops, pretraining_flops_per_sequence
from bert_tf.run.loss_watch import LossWatch
from bert_tf.run.run_folder import RunFolder, provenance, write_whole
from bert_tf.run.telemetry import DONE, Telemetry
from bert_tf.training.loop import (
    LoopSettings,
    Run,
    Training,
    describe_devices,
    evaluate,
    make_blocks,
    run_updates,
    start_or_resume,
    with_halving,
    write_report,
)
from bert_tf.training.step import StepSettings, TrainState, TrainStep


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
    vocabulary: str | None  # text of vocab.txt, saved with the weights; None for records made elsewhere
    training: InstanceSet
    evaluation: InstanceSet | None
    init_checkpoint: str | None

    @property
    def sources(self) -> dict[str, str]:
        """The files that a hash in `run_identity` stands for."""
        data = self.training
        return {"data": f"{data.num_instances:,} instances in {len(data.files)} file(s), first {data.files[0]}"}

    @property
    def companions(self) -> dict[str, str]:
        """Files saved with the weights, so that a checkpoint is a complete model."""
        texts = {"bert_config.json": self.bert_config.to_json()}
        return {**texts, "vocab.txt": self.vocabulary} if self.vocabulary else texts

    def on_all_ranks(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name. Records have no checksum, but sizes, and mostly a manifest."""
        sets = {"data in --input_files": self.training, "data in --eval_files": self.evaluation}
        data = {
            name: [found.fingerprint(), found.facts()["manifest_sha256"], [file.stat().st_size for file in found.files]]
            for name, found in sets.items()
            if found
        }
        return {**data, "vocabulary": self.vocabulary}


def run_identity(config: PretrainingConfig, inputs: PretrainingInputs) -> dict[str, Any]:
    """The settings that must not change within a pre-training run."""
    return {
        **config.identity(),
        "bert_config": inputs.bert_config.to_dict(),
        "data": inputs.training.fingerprint(config.packing),
        "init_checkpoint": inputs.init_checkpoint,
    }


def global_batch_records(config: PretrainingConfig, inputs: PretrainingInputs, batch_number: int) -> list[str]:
    """The instances of a global batch (files and numbers), for messages."""
    order, size = GlobalOrder(inputs.training.copies, config.seed), config.global_batch_size
    return inputs.training.name(order.ranges(batch_number * size, size))


def make_training(config: PretrainingConfig, inputs: PretrainingInputs, workers: Workers) -> Training:
    """Makes what a phase trains, with random weights.

    A single process may replace all ranks of the configuration; it then computes their micro-batches in turn.
    """
    optimizer = make_optimizer(
        config.optimizer_type,
        config.effective_learning_rate,
        config.warmup_steps,
        config.num_train_steps,
        config.joins_continuously,
        compiled=config.xla_scope != "off",
        **config.optimizer_options,
    )
    state = TrainState(
        PretrainingModel(inputs.bert_config, make_blocks(config), config.seed),
        optimizer,
        LossScale(enabled=config.scales_loss),
    )
    settings = StepSettings(config.seed, compute_dtype(config.allreduce_compression))
    split = BatchSplit(
        config.train_batch_size,
        config.num_accumulation_steps * config.num_ranks // workers.size,
        workers.size,
        workers.rank,
    )
    order = GlobalOrder(inputs.training.copies, config.seed)

    def batches_from(batch_number: int) -> Iterator[Batch]:
        return training_batches(
            inputs.training,
            order,
            split,
            first_batch=batch_number,
            vocab_size=inputs.bert_config.vocab_size,
            packing=config.packing,
        )

    step = TrainStep(state, PretrainingObjective(), workers, settings)
    return Training(step, state, batches_from, name_pretraining_metrics)


def pretrain(
    config: PretrainingConfig,
    inputs: PretrainingInputs,
    model_dir: Path,
    workers: Workers,
    *,
    continue_with_changes: bool = False,
    dllog_path: str | None = None,
) -> bool:
    """Runs or continues one phase in `model_dir`, and evaluates at its end.

    Returns True when the phase is finished, False when a signal or --max_hours stopped it.
    """
    bert_config, identity = inputs.bert_config, run_identity(config, inputs)
    workers.require_same({**inputs.on_all_ranks(), **identity})
    if workers.is_chief:
        folder = RunFolder(model_dir)
        folder.check(identity, continue_with_changes, inputs.sources)
    telemetry = Telemetry(
        model_dir, is_chief=workers.is_chief, total_updates=config.num_train_steps, dllog_path=dllog_path
    )
    checkpoints = CheckpointFolder(
        model_dir / "checkpoints",
        keep=config.keep_checkpoints,
        vocab_size=bert_config.vocab_size,
        companions=inputs.companions,
    )
    run = Run(workers, checkpoints, telemetry, after_save=lambda: write_report(model_dir, telemetry))
    training = make_training(config, inputs, workers)
    training.step, state = with_halving(training.step, config, run), training.state
    with telemetry:
        resumed_from = start_or_resume(
            state,
            run,
            lambda: initialise_from(
                find_weights(inputs.init_checkpoint) if inputs.init_checkpoint else None,
                state.model,
                bert_config.vocab_size,
                telemetry,
                inputs.vocabulary,
            ),
        )
        if workers.is_chief:  # only now, when no setting can be refused any more
            folder.bind(identity, _run_record(config, inputs), inputs.companions, continue_with_changes)
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
            config.max_hours,
        )
        stopped_by = run_updates(training, run, settings)
        finished = stopped_by is None
        if finished and workers.is_chief:
            save_encoder(model_dir, state.model.variables, bert_config.vocab_size, inputs.companions)
        if finished and inputs.evaluation:
            _evaluate_phase(config, inputs, state, run, model_dir)
        telemetry.end(stopped_by or DONE)
        if workers.is_chief:
            write_report(model_dir, telemetry)
    return finished


def _evaluate_phase(
    config: PretrainingConfig, inputs: PretrainingInputs, state: TrainState, run: Run, model_dir: Path
) -> None:
    assert inputs.evaluation
    workers = run.workers
    batches = evaluation_batches(
        inputs.evaluation,
        batch_size=config.eval_batch_size,
        max_batches=config.max_eval_steps,
        rank=workers.rank,
        num_ranks=workers.size,
        vocab_size=inputs.bert_config.vocab_size,
    )
    num_all = -(-inputs.evaluation.num_instances // (config.eval_batch_size * workers.size))
    num_batches = min(num_all, config.max_eval_steps or num_all)
    if num_batches < num_all:
        run.telemetry.note(
            f"evaluating {num_batches * config.eval_batch_size * workers.size:,} of "
            f"{inputs.evaluation.num_instances:,} held-out instances (--max_eval_steps)"
        )
    bar = Progress(batches, total=num_batches, unit="batches", description="evaluation", disable=not workers.is_chief)
    means = name_pretraining_metrics(evaluate(state.model, PretrainingObjective(), bar, workers))
    results = {
        "masked_lm_accuracy": means["mlm_accuracy"],
        "masked_lm_loss": means["mlm_loss"],
        "next_sentence_accuracy": means["nsp_accuracy"],
        "next_sentence_loss": means["nsp_loss"],
        "loss": means["total_loss"],
        "global_step": state.updates_applied,
    }
    run.telemetry.evaluation(state.updates_applied, **results)
    if workers.is_chief:
        lines = "".join(f"{name} = {value}\n" for name, value in results.items())
        write_whole(model_dir / "eval_results.txt", lines)


def _run_record(config: PretrainingConfig, inputs: PretrainingInputs) -> dict[str, Any]:
    return {
        "settings": config.to_dict(),
        "bert_config": inputs.bert_config.to_dict(),
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        "data": inputs.training.facts(),
        "sources": inputs.sources,
        "evaluation_data": inputs.evaluation.facts() if inputs.evaluation else None,
        **describe_devices(),
        **provenance(),
    }


def _telemetry_facts(config: PretrainingConfig, bert_config: BertConfig) -> dict[str, Any]:
    devices = describe_devices()
    peak = peak_tflops(devices["device"], config.precision)
    return {
        **devices,
        "num_ranks": config.num_ranks,
        "global_batch_size": config.global_batch_size,
        "flops_per_sequence": pretraining_flops_per_sequence(
            bert_config, config.max_seq_length, config.max_predictions_per_seq
        ),
        "warmup_steps": config.warmup_steps,
        **({"peak_tflops": peak * config.num_ranks} if peak else {}),
    }
