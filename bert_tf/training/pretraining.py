"""One pre-training phase: puts its inputs, model, loop and evaluation together."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from bert_tf.base.progress import Progress
from bert_tf.batches.batches import Batch, evaluation_batches, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.initialise import find_weights, initialise_from
from bert_tf.model.heads import PretrainingModel
from bert_tf.model.losses import PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.optimizer.loss_scale import LossScale
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import save_encoder
from bert_tf.run.flops import pretraining_flops_per_sequence
from bert_tf.run.loss_watch import LossWatch
from bert_tf.run.run_folder import RunFolder, write_whole
from bert_tf.run.telemetry import DONE, Telemetry
from bert_tf.settings.training import BatchSplit, PretrainingConfig, compute_dtype
from bert_tf.text.vocabulary import SETTINGS
from bert_tf.training.loop import (
    LoopSettings,
    Run,
    Training,
    begin,
    make_blocks,
    open_run,
    run_record,
    run_updates,
    write_report,
)
from bert_tf.training.step import Features, TrainState, TrainStep


def name_pretraining_metrics(means: np.ndarray) -> dict[str, float]:
    """The metrics of `PretrainingObjective` under NVIDIA's names."""
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
    tokenizer_files: dict[str, str]  # by name, saved with the weights; {} for records made elsewhere
    training: InstanceSet
    evaluation: InstanceSet | None
    init_checkpoint: str | None
    allow_missing_weights: bool = False  # in the encoder of init_checkpoint

    @property
    def sources(self) -> dict[str, str]:
        """Describes the files that a hash in `run_identity` stands for."""
        data = self.training
        return {"data": f"{data.num_instances:,} instances in {len(data.files)} file(s), first {data.files[0]}"}

    def facts(self) -> dict[str, Any]:
        """For ``config.json``."""
        evaluation = self.evaluation.facts() if self.evaluation else None
        files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.tokenizer_files.items()}
        tokenizer = {**json.loads(self.tokenizer_files.get(SETTINGS, "{}")), "sha256": files}
        return {
            "data": self.training.facts(),
            "sources": self.sources,
            "evaluation_data": evaluation,
            "tokenizer": tokenizer,
        }

    @property
    def companions(self) -> dict[str, str]:
        """Files saved with the weights, so that a checkpoint is a complete model."""
        return {"bert_config.json": self.bert_config.to_json(), **self.tokenizer_files}

    def on_all_ranks(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name. Records have no checksum, only sizes and usually a manifest."""
        sets = {"data in --input_files": self.training, "data in --eval_files": self.evaluation}
        data = {
            name: [found.fingerprint(), found.facts()["manifest_sha256"], [file.stat().st_size for file in found.files]]
            for name, found in sets.items()
            if found
        }
        return {**data, "tokenizer": self.tokenizer_files}


def run_identity(config: PretrainingConfig, inputs: PretrainingInputs) -> dict[str, Any]:
    """The settings that must not change within a pre-training run."""
    return {
        **config.identity(),
        "bert_config": inputs.bert_config.to_dict(),
        "data": inputs.training.fingerprint(config.packing),
        "init_checkpoint": inputs.init_checkpoint,
    }


def global_batch_records(config: PretrainingConfig, inputs: PretrainingInputs, batch_number: int) -> list[str]:
    """The instances of a global batch, as files and record numbers, for messages."""
    order, size = GlobalOrder(inputs.training.copies, config.seed), config.global_batch_size
    return inputs.training.name(order.ranges(batch_number * size, size))


def make_training(config: PretrainingConfig, inputs: PretrainingInputs, workers: Workers) -> Training:
    """Makes what a phase trains, with random weights.

    A single process may stand in for all ranks of the configuration; it then computes their micro-batches in turn.
    """
    optimizer = make_optimizer(
        config.optimizer_type,
        config.effective_learning_rate,
        config.warmup_steps,
        config.num_train_steps,
        config.continuous_join,
        compiled=config.xla_scope != "off",
        **config.optimizer_options,
    )
    model = PretrainingModel(inputs.bert_config, make_blocks(config), config.seed)
    # If gradients are float16 anywhere, small ones need a loss scale.
    loss_scale = LossScale(enabled="fp16" in (config.precision, config.allreduce_compression))
    state = TrainState(model, optimizer, loss_scale)
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

    reduce_dtype = compute_dtype(config.allreduce_compression)
    step = TrainStep(state, PretrainingObjective(), workers, config.seed, reduce_dtype)
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

    Returns True if the phase is finished, False if a signal or --max_hours stopped it.
    """
    bert_config = inputs.bert_config
    # Both look at every shard, which on a remote file system may take a rank a long time.
    identity, common = workers.run_keeping_alive(lambda: (run_identity(config, inputs), inputs.on_all_ranks()))
    workers.require_same({**common, **identity})
    if workers.is_chief:
        folder = RunFolder(model_dir)
        folder.check(identity, continue_with_changes, inputs.sources)
    telemetry = Telemetry(
        model_dir, is_chief=workers.is_chief, total_updates=config.num_train_steps, dllog_path=dllog_path
    )
    run = open_run(config, bert_config.vocab_size, inputs.companions, workers, telemetry)
    training = make_training(config, inputs, workers)
    state = training.state

    def initialise() -> None:
        weights = find_weights(inputs.init_checkpoint) if inputs.init_checkpoint else None
        initialise_from(
            weights,
            state.model,
            telemetry,
            tokenizer_files=inputs.tokenizer_files,
            allow_missing=inputs.allow_missing_weights,
        )

    def bind() -> None:
        record = run_record(config, bert_config, **inputs.facts())
        folder.bind(identity, record, inputs.companions)

    with telemetry:
        begin(
            training,
            run,
            config,
            initialise,
            bind,
            phase=model_dir.name,
            warmup_steps=config.warmup_steps,
            flops_per_sequence=pretraining_flops_per_sequence(
                bert_config, config.max_seq_length, config.max_predictions_per_seq
            ),
        )
        if config.packing and config.num_accumulation_steps == 1:
            telemetry.warning(
                "--packing saves whole micro-batches, and each update has only one here "
                "(num_accumulation_steps=1), so it saves nothing; accumulate more, smaller ones"
            )
        settings = LoopSettings(
            config,
            config.num_train_steps,
            identity,
            functools.partial(global_batch_records, config, inputs),
            LossWatch(bert_config.vocab_size, config.warmup_steps),
        )
        stopped_by = run_updates(training, run, settings)
        finished = stopped_by is None
        if finished and workers.is_chief:
            save_encoder(model_dir, state.model.variables, bert_config.vocab_size, inputs.companions)
        if finished and inputs.evaluation:
            _evaluate_phase(config, inputs, state, run, model_dir)
        telemetry.end(stopped_by or DONE)
        write_report(telemetry)
    return finished


def evaluate(model: tf.keras.Model, batches: Iterable[Features], workers: Workers) -> dict[str, float]:
    """Mean metrics over the batches [B, ...] of all ranks, without dropout, under NVIDIA's names."""
    objective = PretrainingObjective()
    compiled = tf.function(
        lambda features: objective(model, features, None)[1], jit_compile=model.backend.scope == "step", autograph=False
    )
    num_denominators = len(objective.denominator_names)
    sums = np.zeros([num_denominators + len(objective.metric_names)])

    def add_all() -> None:
        for features in batches:
            sums[:num_denominators] += objective.local_denominators(features)
            sums[num_denominators:] += compiled(features).numpy()

    workers.run_keeping_alive(add_all)
    totals = workers.gather(sums).sum(axis=0)
    denominators = np.maximum(totals[:num_denominators], 1.0)
    return name_pretraining_metrics(totals[num_denominators:] / denominators[list(objective.metric_denominators)])


def _evaluate_phase(
    config: PretrainingConfig, inputs: PretrainingInputs, state: TrainState, run: Run, model_dir: Path
) -> None:
    assert inputs.evaluation
    workers = run.workers
    batches = evaluation_batches(
        inputs.evaluation,
        batch_size=config.eval_batch_size,
        max_batches=config.max_eval_steps or 0,
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
    means = evaluate(state.model, bar, workers)
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
