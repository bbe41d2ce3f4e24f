"""Pre-training as a task: opens records or token files, and makes the model, its batches and its objective."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.base.errors import UserError
from bert_tf.batches.instance_set import OTHER_TOKENIZATION, InstanceSet
from bert_tf.batches.packing import MAX_INSTANCES_PER_ROW, predictions_per_row
from bert_tf.bert_config import GOOGLE_VOCAB_SIZE, BertConfig
from bert_tf.memory.plan import Workload
from bert_tf.settings.declaration import pick_settings
from bert_tf.settings.programs import PretrainingOptions
from bert_tf.settings.training import BatchSplit, PretrainingConfig, check_unpacked
from bert_tf.tasks.pretraining.settings import SETTINGS
from bert_tf.tasks.task import Facts, Run, Task
from bert_tf.text.vocabulary import SETTINGS as TOKENIZER_SETTINGS

if TYPE_CHECKING:
    from bert_tf.model.backends.plain import Plain
    from bert_tf.model.heads import MaskedWordModel
    from bert_tf.run.telemetry import Telemetry
    from bert_tf.tasks.pretraining.evaluation import Scorer

_PACKS_NOTHING = (
    "--packing saves whole micro-batches, and each update has only one here (num_accumulation_steps=1), so it saves "
    "nothing; accumulate more, smaller ones"
)


class PretrainingTask(Task):
    """One phase of pre-training.

    Attributes:
      no_next_sentence, dropout: as in `PretrainingConfig`.
      instances: the instances to train on.
      held_out_instances: the instances that are scored; None: there are none.
      tokenizer_files: texts by file name, of the tokenizer that made the instances; {} for records made elsewhere.
    """

    settings, name, main_score, lower_is_better, trains = SETTINGS, "", "loss", True, True
    instances: InstanceSet
    held_out_instances: InstanceSet | None = None
    tokenizer_files: Mapping[str, str] = {}

    def __init__(self, no_next_sentence: bool, dropout: float | None):
        self.no_next_sentence, self.dropout = no_next_sentence, dropout
        kind = "MaskedWord" if no_next_sentence else "Pretraining"
        self.model, self.objective = f"bert_tf.model.heads:{kind}Model", f"bert_tf.model.losses:{kind}Objective"

    @classmethod
    def from_settings(cls, config: PretrainingConfig, options: PretrainingOptions) -> PretrainingTask:
        if config.eval_steps and not options.eval_files:
            raise UserError("--eval_steps needs held-out data: name it with --eval_files")
        check_unpacked(config.train_batch_size, config.packing)
        return cls(config.no_next_sentence, config.dropout)

    @classmethod
    def plan_config(cls, options: PretrainingOptions) -> BertConfig:
        return _choose_config(options, InstanceSet(options.input_files, "input_files") if options.input_files else None)

    @classmethod
    def workload(cls, config: PretrainingConfig, options: PretrainingOptions, bert_config: BertConfig) -> Workload:
        length, num_predictions = config.max_seq_length, config.max_predictions_per_seq
        num_instances = 1
        if config.packing:
            num_instances = MAX_INSTANCES_PER_ROW
            num_predictions = predictions_per_row(num_predictions, length, options.masked_lm_prob)
        return Workload.from_config(
            config,
            options,
            bert_config,
            sequence_length=length,
            num_predictions=num_predictions,
            num_instances=num_instances,
            no_next_sentence=config.no_next_sentence,
        )

    def open(self, run: Run) -> None:
        """As `Task.open`; the chief first makes missing indexes and pairs, and decompresses GZIP shards."""
        run.workers.chief_first(lambda: self._open(run))

    def _open(self, run: Run) -> None:
        from bert_tf.batches.data_sets import open_instances
        from bert_tf.batches.masking import MaskingRules

        config, options = run.config, run.options
        rules = pick_settings(MaskingRules, options, max_predictions_per_seq=config.max_predictions_per_seq)
        sets: dict[str, InstanceSet] = {}
        for flag in ("input_files", "eval_files"):
            if patterns := getattr(options, flag):
                sets[flag] = open_instances(patterns, flag, config.max_seq_length, rules, self.no_next_sentence)
        self.instances, self.held_out_instances = sets["input_files"], sets.get("eval_files")
        files = [set(map(Path.resolve, instances.files)) for instances in sets.values()]
        if len(files) == 2 and (shared := files[0] & files[1]):
            run.say(
                f"warning: --eval_files names {len(shared)} of the files of --input_files, such as {min(shared)}; "
                "scores on text that is trained on say nothing of other text: the folder 'test' holds what is held out"
            )
        self.bert_config = _choose_config(options, self.instances)
        # A checkpoint's vocabulary may have reserved rows beyond the data's.
        num_rows, has_reserved_rows = self.bert_config.vocab_size, bool(options.init_checkpoint)
        warnings = [each.check_vocabulary(num_rows, has_reserved_rows=has_reserved_rows) for each in sets.values()]
        if warnings[0]:
            run.say(warnings[0])
        self.bert_config.check_length(config.max_seq_length)
        self.tokenizer_files, *held_out_files = (instances.tokenizer_files() for instances in sets.values())
        if self.tokenizer_files and held_out_files not in ([], [{}], [self.tokenizer_files]):
            folders = [instances.folder for instances in sets.values()]
            raise UserError(
                f"the data of --eval_files ({folders[1]}) {OTHER_TOKENIZATION} those of --input_files ({folders[0]}); "
                "use the same for both"
            )

    def prepare(self, run: Run) -> None:
        """Checks that all ranks have the same data: file sizes, fingerprints (of records: by samples) and manifests."""
        sets = {"data in --input_files": self.instances, "data in --eval_files": self.held_out_instances}
        with run.workers.keep_alive():  # it looks at every shard, which may take long on a remote file system
            data = {
                name: [
                    instances.fingerprint(),
                    instances.facts()["manifest_sha256"],
                    [file.stat().st_size for file in instances.files],
                ]
                for name, instances in sets.items()
                if instances
            }
        run.workers.require_same({**data, "tokenizer": self.tokenizer_files})

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return self.instances.num_instances

    def held_out(self, config: PretrainingConfig) -> str | None:
        if not (instances := self.held_out_instances):
            return None
        limit = (config.max_eval_steps or instances.num_instances) * config.eval_batch_size * config.num_ranks
        return f"{min(limit, instances.num_instances)} of {instances.fingerprint()}"

    def make_model(self, config: BertConfig, backend: Plain, seed: int) -> MaskedWordModel:
        return super().make_model(config if self.dropout is None else config.with_dropout(self.dropout), backend, seed)

    def identity(self, run: Run) -> Facts:
        return {"data": self.instances.fingerprint(run.config.packing)}

    def training(self, run: Run, model: MaskedWordModel) -> Facts:
        from bert_tf.batches.batches import training_batches
        from bert_tf.batches.data_order import GlobalOrder
        from bert_tf.interchange.initialise import find_weights, initialise_from
        from bert_tf.run.statistics import LossWatch

        config, options, workers = run.config, run.options, run.workers
        start, vocab_size, global_size = options.init_checkpoint, model.config.vocab_size, config.global_batch_size
        data, order = self.instances, GlobalOrder(self.instances.copies, config.seed)
        # A single process may stand in for all ranks of the configuration, and compute their micro-batches in turn.
        num_micro_batches = global_size // config.train_batch_size // workers.size
        split = BatchSplit(config.train_batch_size, num_micro_batches, workers.size, workers.rank)

        evaluation = self.held_out_instances.facts() if self.held_out_instances else None
        return dict(
            batches=lambda first: training_batches(
                data, order, split, first_batch=first, vocab_size=vocab_size, packing=config.packing
            ),
            name_records=lambda number: data.name_ranges(order.ranges(number * global_size, global_size)),
            initialise=lambda telemetry: initialise_from(
                find_weights(start) if start else None,
                model,
                telemetry,
                tokenizer_files=self.tokenizer_files,
                allow_missing=options.allow_missing_weights,
            ),
            sources={"data": f"{data.num_instances:,} instances in {len(data.files)} file(s), first {data.files[0]}"},
            companions=self.model_files,
            facts={"data": data.facts(), "evaluation_data": evaluation, "tokenizer": self._tokenizer_facts()},
            warnings=[_PACKS_NOTHING] if config.packing and config.num_accumulation_steps == 1 else [],
            loss_watch=LossWatch(self.make_objective().untrained_loss(vocab_size), config.warmup_steps),
        )

    def _tokenizer_facts(self) -> Facts:
        files = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.tokenizer_files.items()}
        return {**json.loads(self.tokenizer_files.get(TOKENIZER_SETTINGS, "{}")), "sha256": files}

    def make_scorer(self, run: Run, model: MaskedWordModel) -> Scorer:
        from bert_tf.tasks.pretraining.evaluation import make_scorer

        return make_scorer(run.config, self.held_out_instances, model, self.make_objective(), run.workers)

    def evaluate(self, scorer: Scorer, telemetry: Telemetry, update: int) -> dict[str, float]:
        return scorer.scores(telemetry, update) if scorer.scores else {}

    def finish(self, scorer: Scorer, telemetry: Telemetry, update: int) -> None:
        """Scores on all ranks; then the chief writes the encoder, for which no rank waits, however long it takes."""
        from bert_tf.run.checkpoint import PREFIX, save_encoder

        telemetry.results(update, self.evaluate(scorer, telemetry, update), {})
        if telemetry.is_chief:
            prefix = telemetry.run_folder / "pretrained" / f"{PREFIX}-1"  # where NVIDIA's TF2 code writes it
            save_encoder(prefix, scorer.model.variables, self.bert_config.vocab_size, self.model_files)


def _choose_config(options: PretrainingOptions, instances: InstanceSet | None) -> BertConfig:
    """The model's configuration by the options; `instances`: the data, or None if a plan is made without."""
    from bert_tf.interchange.initialise import choose_config, find_weights

    size, file, start = options.bert_model, options.bert_config_file, options.init_checkpoint
    if (size and file) or not (size or file or start):
        raise UserError(
            "give either --bert_config_file or --bert_model (large, base, medium, small, mini, tiny), or neither where "
            "--init_checkpoint has a configuration beside it"
        )
    if not size:
        return choose_config(file, None if file or not start else find_weights(start))
    if not instances:
        print(f"without --input_files: Google's vocabulary of {GOOGLE_VOCAB_SIZE:,} pieces")
        return BertConfig.preset(size, GOOGLE_VOCAB_SIZE)
    if instances.vocab_size is None:
        raise UserError(
            f"--bert_model={size} needs the vocabulary's size, but there is no manifest.json beside "
            f"{instances.files[0]}; give --bert_config_file instead"
        )
    return BertConfig.preset(size, instances.vocab_size)
