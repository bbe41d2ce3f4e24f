"""One pre-training phase: puts its inputs, model, training and evaluation together.

What the layers below need of the settings is derived here, once: split, schedule, objective, identity.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.base.errors import UserError
from bert_tf.base.files import read_json_object
from bert_tf.base.progress import Progress
from bert_tf.base.tensorflow import keras, tf
from bert_tf.batches.batches import Batch, evaluation_batches, training_batches
from bert_tf.batches.data_order import GlobalOrder
from bert_tf.batches.data_sets import open_instances
from bert_tf.batches.instance_set import InstanceSet
from bert_tf.batches.masking import MaskingRules
from bert_tf.bert_config import BertConfig
from bert_tf.interchange.initialise import find_weights, initialise_from
from bert_tf.model.backends import make_backend
from bert_tf.model.heads import MaskedWordModel, PretrainingModel
from bert_tf.model.losses import MaskedWordObjective, Objective, PretrainingObjective
from bert_tf.optimizer.keras_optimizers import make_optimizer
from bert_tf.ranks.workers import Workers
from bert_tf.run.checkpoint import save_encoder
from bert_tf.run.device import prepare_device
from bert_tf.run.gpus import pretraining_flops_per_sequence
from bert_tf.run.run_folder import CONFIG, RunFolder, write_whole
from bert_tf.run.statistics import LossWatch
from bert_tf.run.telemetry import Telemetry
from bert_tf.settings.training import BatchSplit, PretrainingConfig, compute_dtype
from bert_tf.text.vocabulary import SETTINGS
from bert_tf.training.evaluation import Evaluation
from bert_tf.training.trainer import Trainer, Training

# The model and the objective, with next sentence and with no_next_sentence.
_LEARNED = ((PretrainingModel, PretrainingObjective()), (MaskedWordModel, MaskedWordObjective()))
# Names of metrics in an evaluation: ours -> NVIDIA's.
_EVALUATED = {
    "mlm_accuracy": "masked_lm_accuracy",
    "mlm_loss": "masked_lm_loss",
    "nsp_accuracy": "next_sentence_accuracy",
    "nsp_loss": "next_sentence_loss",
    "total_loss": "loss",
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
        return {"data": self.training.facts(), "evaluation_data": evaluation, "tokenizer": tokenizer}

    @property
    def companions(self) -> dict[str, str]:
        """Files saved with the weights, so that a checkpoint is a complete model."""
        return {"bert_config.json": self.bert_config.to_json(), **self.tokenizer_files}

    def on_all_ranks(self) -> dict[str, Any]:
        """What must be the same on all ranks, by name. Records have no checksum, only sizes and usually a manifest."""
        sets = {"data in --input_files": self.training, "data in --eval_files": self.evaluation}
        data = {
            name: [
                instances.fingerprint(),
                instances.facts()["manifest_sha256"],
                [file.stat().st_size for file in instances.files],
            ]
            for name, instances in sets.items()
            if instances
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


def make_training(
    config: PretrainingConfig, inputs: PretrainingInputs, identity: dict[str, Any], workers: Workers, name: str = ""
) -> Training:
    """The training of one phase, whose model has random weights as yet."""
    bert_config = inputs.bert_config
    prepare_device(config.precision, config.xla_scope)
    backend = make_backend(config.xla_scope, compute_dtype(config.precision), recompute=config.recompute)
    model_class, objective = _LEARNED[config.no_next_sentence]
    model = model_class(bert_config, backend, config.seed)
    packs_nothing = (
        "--packing saves whole micro-batches, and each update has only one here (num_accumulation_steps=1), so it "
        "saves nothing; accumulate more, smaller ones"
    )
    data, order = inputs.training, GlobalOrder(inputs.training.copies, config.seed)
    # A single process may stand in for all ranks of the configuration; it then computes their micro-batches in turn.
    num_micro_batches = config.global_batch_size // config.train_batch_size // workers.size
    split = BatchSplit(config.train_batch_size, num_micro_batches, workers.size, workers.rank)

    def batches(first: int) -> Iterator[Batch]:
        vocab_size, packing = bert_config.vocab_size, config.packing
        return training_batches(data, order, split, first_batch=first, vocab_size=vocab_size, packing=packing)

    def name_records(batch_number: int) -> list[str]:
        return data.name(order.ranges(batch_number * config.global_batch_size, config.global_batch_size))

    def initialise(telemetry: Telemetry) -> None:
        weights = find_weights(inputs.init_checkpoint) if inputs.init_checkpoint else None
        files, allow_missing = inputs.tokenizer_files, inputs.allow_missing_weights
        initialise_from(weights, model, telemetry, tokenizer_files=files, allow_missing=allow_missing)

    return Training(
        name,
        model,
        objective,
        batches=batches,
        name_records=name_records,
        optimizer=make_optimizer(
            config.optimizer_type,
            config.effective_learning_rate,
            config.warmup_steps,
            config.num_train_steps,
            config.continuous_join,
            compiled=config.xla_scope != "off",
            **config.optimizer_options,
        ),
        num_updates=config.num_train_steps,
        warmup_steps=config.warmup_steps,
        identity=identity,
        flops_per_sequence=pretraining_flops_per_sequence(
            bert_config, config.max_seq_length, config.max_predictions_per_seq, uses_pooler=model.has_pooler
        ),
        initialise=initialise,
        sources=inputs.sources,
        companions=inputs.companions,
        facts=inputs.facts(),
        warnings=[packs_nothing] if config.packing and config.num_accumulation_steps == 1 else [],
        watch=LossWatch(objective.untrained_loss(bert_config.vocab_size), config.warmup_steps),
        evaluation=_make_evaluation(config, inputs, model, objective, workers),
    )


def training_of_run(model_dir: Path, input_files: str | None) -> tuple[PretrainingConfig, Training]:
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
    training = open_instances(patterns, "input_files", config.max_seq_length, rules, config.no_next_sentence)
    # What may be missing in the initial weights was decided when the run began.
    inputs = PretrainingInputs(bert_config, {}, training, None, identity["init_checkpoint"], allow_missing_weights=True)
    now = run_identity(config, inputs)
    changed = [name for name in identity if identity[name] != now.get(name)]
    if changed:
        raise UserError(
            f"{patterns} or the settings are no longer those of the run in {model_dir} "
            f"({', '.join(changed)} differ); name the run's own records with --input_files"
        )
    return config, make_training(config, inputs, now, Workers())


def pretrain(config: PretrainingConfig, inputs: PretrainingInputs, folder: RunFolder, workers: Workers) -> bool:
    """Runs or continues one phase in its folder, and evaluates at its end.

    Returns True if the phase is finished, False if a signal or --max_hours stopped it.
    """
    with workers.keep_alive():  # both look at every shard, which on a remote file system may take a rank a long time
        identity, common = run_identity(config, inputs), inputs.on_all_ranks()
    workers.require_same(common)
    training = make_training(config, inputs, identity, workers, folder.path.name)

    def finish(telemetry: Telemetry, update: int) -> None:
        if workers.is_chief:
            save_encoder(folder.path, training.model.variables, inputs.bert_config.vocab_size, inputs.companions)
        if training.evaluation:
            results = {**training.evaluation.scores(telemetry, update), "global_step": update}
            telemetry.evaluation(update, **results)
            if workers.is_chief:
                lines = "".join(f"{name} = {value}\n" for name, value in results.items())
                write_whole(folder.path / "eval_results.txt", lines)

    return Trainer(config, training, workers, folder).fit(finish)


def _make_evaluation(
    config: PretrainingConfig, inputs: PretrainingInputs, model: keras.Model, objective: Objective, workers: Workers
) -> Evaluation | None:
    """Mean metrics over the held-out instances, without dropout; None if there are no such instances."""
    if not (instances := inputs.evaluation):
        return None
    split = BatchSplit(config.eval_batch_size, 1, workers.size, workers.rank)
    num_all = -(-instances.num_instances // split.global_batch_size)
    num_batches = min(num_all, config.max_eval_steps or num_all)
    compiled = tf.function(
        lambda features: objective(model, features, None)[1], jit_compile=model.backend.scope == "step", autograph=False
    )
    num_denominators = len(objective.denominator_names)

    @functools.cache  # those of the best weights are wanted again at the end
    def scores(telemetry: Telemetry, _: int) -> dict[str, float]:
        if num_batches < num_all:
            telemetry.note(
                f"evaluating {num_batches * split.global_batch_size:,} of {instances.num_instances:,} held-out "
                "instances (--max_eval_steps)"
            )
        batches = evaluation_batches(instances, split, num_batches, vocab_size=inputs.bert_config.vocab_size)
        sums = np.zeros([num_denominators + len(objective.metric_names)])
        is_silent = not workers.is_chief
        shown = Progress(batches, total=num_batches, unit="batches", description="evaluation", disable=is_silent)
        with workers.keep_alive():
            for features in shown:
                sums[:num_denominators] += objective.local_denominators(features)
                sums[num_denominators:] += compiled(features).numpy()
        totals = workers.gather(sums).sum(axis=0)
        denominators = np.maximum(totals[:num_denominators], 1.0)
        means = objective.name_metrics(totals[num_denominators:] / denominators[list(objective.metric_denominators)])
        return {theirs: means[ours] for ours, theirs in _EVALUATED.items() if ours in means}

    interval = config.eval_interval(inputs.training.num_instances)
    return Evaluation(scores, "loss", instances.fingerprint(), interval, lower_is_better=True)
