"""The recipes of pre-training, LAMB in two phases and Adam in one: each phase is a run of run_pretraining.py."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_output, read_json_object
from bert_tf.base.locks import FileLock, LockedError
from bert_tf.bert_config import BertConfig
from bert_tf.launch.arguments import Positionals, Values, arguments
from bert_tf.launch.call import Call, Run, check_model, config_file, find_checkpoint
from bert_tf.launch.environment import LaunchEnvironment, as_argument, short_path, show
from bert_tf.launch.prepared_data import PreparedData, choose_data
from bert_tf.run.events import CONVERGED, DONE, last_event
from bert_tf.run.run_folder import (
    CONFIG,
    REPORT,
    describe_differences,
    find_checkpoints,
    find_damage,
    is_report,
    read_config,
)
from bert_tf.settings.declaration import pick_settings
from bert_tf.settings.programs import PRETRAINING, MaskingOptions
from bert_tf.settings.training import AUTO, MAX_GLOBAL_BATCH, PretrainingConfig, check_unpacked

LENGTHS = ((128, 20), (512, 80))  # per phase: max_seq_length, max_predictions_per_seq
PLAN = "plan.json"
LAMB = arguments(
    """
    train_batch_size_phase1=64 train_batch_size_phase2=8 eval_batch_size=8
    learning_rate_phase1=7.5e-4 learning_rate_phase2=5e-4 precision=fp16 use_xla=true num_gpus=8
    warmup_steps_phase1=2000 warmup_steps_phase2=200 train_steps=7820 save_checkpoint_steps=100
    num_accumulation_phase1=128 num_accumulation_steps_phase2=512 bert_model=large
    """,
    *PRETRAINING,
)
ADAM = arguments(
    """
    train_batch_size=16 eval_batch_size=8 learning_rate=1e-4 precision=fp16 use_xla=true num_gpus=8 warmup_steps=10000
    train_steps=1144000 save_checkpoint_steps=5000 bert_model=large num_accumulation_steps=1 seq_len=512
    max_pred_per_seq=80
    """,
    *PRETRAINING,
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A run at one sequence length; batch size and learning rate are per rank.

    A batch size of "auto" counts as 1, because the accumulation argument then counts a rank's sequences.
    """

    name: str  # also the name of its run folder
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int | str
    num_accumulation_steps: int
    num_ranks: int
    learning_rate: float
    warmup_steps: int
    num_updates: int
    argument_suffix: str = ""  # with which the names of its own arguments end
    starts_after: str | None = None  # the phase whose weights it starts from

    def __post_init__(self) -> None:
        if self.global_batch_size > MAX_GLOBAL_BATCH:
            raise UserError(
                f"{self.title}: {self.global_batch_size:,} sequences in an update (batch size x accumulation x "
                f"num_gpus), at most {MAX_GLOBAL_BATCH:,} are possible; make one smaller"
            )

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def micro_batch_size(self) -> int:
        return 1 if isinstance(self.train_batch_size, str) else self.train_batch_size

    @property
    def num_sequences(self) -> int:
        return self.global_batch_size * self.num_updates

    def describe(self) -> list[str]:
        lines = {
            "global_batch_size": self.global_batch_size,
            "effective_learning_rate": f"{self.learning_rate * self.num_ranks:g}",
            "updates": self.num_updates,
            "sequences": self.num_sequences,
            "max_seq_length": self.max_seq_length,
            "max_predictions_per_seq": self.max_predictions_per_seq,
        }
        return [f"{name}{self.argument_suffix} = {value}" for name, value in lines.items()]


@dataclasses.dataclass(frozen=True)
class Pretraining(Call):
    """A call of a recipe, and the phases that follow from it, in order.

    Attributes:
      optimizer_type: the flag of run_pretraining.py.
      only_phase: the name of the only phase to run; None: all are run.
      is_cased: whether the vocabulary of the data must be cased; None: either.
      locks: holds the lock of the results folder while the call is carried out.
    """

    optimizer_type: str
    phases: Sequence[Phase]
    only_phase: str | None = None
    is_cased: bool | None = None
    locks: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    def launch(self) -> int:
        with self.locks:
            return super().launch()

    @property
    def size(self) -> str:
        return "_".join(f"gbs{phase.argument_suffix[-1:]}{phase.global_batch_size}" for phase in self.phases)

    @property
    def chosen_phases(self) -> list[Phase]:
        return [phase for phase in self.phases if self.only_phase in (None, phase.name)]

    def run_folder(self, phase: Phase) -> Path:
        return self.folder / phase.name

    def has_weights(self, phase: Phase) -> bool:
        """Whether there is an undamaged checkpoint of the phase's last update, or of its end by EARLY_STOPPING."""
        checkpoints = find_checkpoints(self.run_folder(phase) / "checkpoints")
        newest = max(checkpoints, default=None)
        if newest is None or (newest < phase.num_updates and self.end_reason(phase) != CONVERGED):
            return False
        return find_damage(checkpoints[newest]) is None

    def reason_to_skip(self, phase: Phase) -> str:
        """Why the phase's run need not be started; "" if it must be.

        It is finished when it has weights and has recorded its end, which follows the evaluation and the exported
        files. After early stopping it is started again, as only the program knows the scores and decides whether it is
        finished; but not any more once the next phase has a checkpoint. That phase would not take what this one
        learned then, so weights that are gone, or that changed arguments ask for, are not trained either.
        """
        has_successor = self._has_successor(phase)
        if not self.has_weights(phase):
            return "left as it is, because the next phase goes on from its own checkpoint" if has_successor else ""
        ends = (DONE, CONVERGED) if has_successor else (DONE,)
        return "finished already" if self.end_reason(phase) in ends else ""

    def has_begun(self, phase: Phase) -> bool:
        return (self.run_folder(phase) / CONFIG).exists()

    def _has_successor(self, phase: Phase) -> bool:
        """Whether a phase that starts from this one's weights has a checkpoint, and so needs them no more."""
        return any(
            find_checkpoints(self.run_folder(other) / "checkpoints")
            for other in self.phases
            if other.starts_after == phase.name
        )

    def end_reason(self, phase: Phase) -> str | None:
        """The recorded reason why the phase's run has ended; None if it has not ended, or was started again."""
        event = last_event(self.run_folder(phase)) or {}
        return event["reason"] if event.get("event") == "end" else None

    def describe(self) -> list[str]:
        start = self._start_of(self.chosen_phases[0])
        return [
            *itertools.chain(*(phase.describe() for phase in self.phases)),
            f"sequences_in_all = {sum(phase.num_sequences for phase in self.phases)}",
            f"init_checkpoint = {short_path(Path(start)) if start else 'none (random weights)'}",
            f"packing = {as_argument(bool(self.environment.value_of('packing')))}",
        ]

    def check(self) -> None:
        """Raises `UserError` if a chosen phase has no update, or settings that do not go together."""
        share = self.environment.value_of("masked_lm_prob")
        for phase in self.chosen_phases:
            if share and (num_masked := round(share * phase.max_seq_length)) > phase.max_predictions_per_seq:
                raise UserError(
                    f"MASKED_LM_PROB={share:g}: {num_masked} of {phase.max_seq_length} tokens, but {phase.title} has "
                    f"{phase.max_predictions_per_seq} predictions; give less, or use run_pretraining.py with "
                    f"--max_predictions_per_seq={num_masked}"
                )
            if not phase.num_updates:
                raise UserError(
                    f"{self.positionals.title('train_steps')} is {self.positionals['train_steps']}: {phase.title} "
                    "would have no update; raise it, or make its update smaller"
                )
            check_unpacked(phase.train_batch_size, self.environment.value_of("packing"))
            try:
                self.check_settings("pretraining", {**self._flags(phase), "train_batch_size": phase.micro_batch_size})
            except UserError as error:
                raise UserError(f"{phase.title}, of {phase.num_updates} updates: {error}") from None

    def runs(self) -> list[Run]:
        """The runs of the chosen phases. Each writes the plan, which must not change while they run.

        Raises:
          UserError: something is missing, or the run in the folder was started with other values.
        """
        folder, environment, chosen = self.folder, self.environment, self.chosen_phases
        not_begun = [phase for phase in self.phases if not self.has_begun(phase)]
        has_begun = len(not_begun) < len(self.phases)
        if not has_begun:
            if (folder / CONFIG).exists():
                raise UserError(
                    f"RESULTS_DIR={folder} is the folder of a run, which does not go on there; name the folder above "
                    "it, to go on with its phases, or a new one"
                )
            check_output(folder / PLAN, str(folder / PLAN), lambda beginning: b'"bert_model"' in beginning)
            check_output(folder / REPORT, str(folder / REPORT), is_report)
        if environment.init_checkpoint and chosen[0] in not_begun:  # later it is only compared
            checkpoint = find_checkpoint(environment.init_checkpoint, f"INIT_CHECKPOINT={environment.init_checkpoint}")
            if config_file(checkpoint).is_file():
                check_model(checkpoint, self.positionals)
        data = self._choose_data()
        plan = {
            **{name: as_argument(value) for name, value in self.positionals.values.items()},
            "dataset": data[0].dataset,
            "init_checkpoint": environment.init_checkpoint,
            **{name: bool(environment.value_of(name)) for name in ("packing", "no_next_sentence")},
            "data_format": data[0].data_format,
            "text_sha256": data[0].text,
        }
        previous = next((phase for phase in self.phases if phase.name == chosen[0].starts_after), None)
        if previous and not (self.has_weights(previous) or self._has_successor(previous)):
            raise MissingError(
                f"{chosen[0].title} starts from the end of {previous.title}, which "
                f"{short_path(self.run_folder(previous))} has not reached; run it first"
            )
        if not environment.is_dry_run:
            self.locks.enter_context(lock_folder(folder))  # so that the plan does not change while the runs go on
        if has_begun and not environment.value_of("continue_with_changes"):
            check_same_plan(folder, plan, not_begun)
            for phase, prepared in zip(chosen, data):
                if phase not in not_begun:
                    _check_same(self.run_folder(phase), "settings", self.describe_changes(phase, prepared))
        files = {folder / PLAN: json.dumps(plan, indent=2) + "\n"}
        return [self._run(phase, prepared)._replace(files=files) for phase, prepared in zip(chosen, data)]

    def identity(self, phase: Phase) -> Values:
        """The settings of a phase that must not change within its run, by the names in its config.json."""
        settings = SimpleNamespace(**self.settings("pretraining", self._flags(phase)))
        config = pick_settings(
            PretrainingConfig,
            settings,
            train_batch_size=phase.micro_batch_size,
            num_accumulation_steps=phase.num_accumulation_steps,
            num_ranks=phase.num_ranks,
        )
        return {**dataclasses.asdict(pick_settings(MaskingOptions, settings)), **config.identity()}

    def describe_changes(self, phase: Phase, data: PreparedData | None = None) -> str:
        """How the settings of a phase that has begun differ from those of this call; "" if they do not.

        The program compares more, but is not started for a run that is finished. If the next phase has used the weights
        of an early end, the settings of early stopping count, too. Raises `UserError` for an unreadable config.json.
        """
        recorded = read_config(self.run_folder(phase))
        assert recorded, "it has begun"
        data_facts = recorded.get("data", {})
        # Records have no rules in config.json: they are masked by the default ones.
        rules = {**dataclasses.asdict(MaskingOptions()), **data_facts.get("masking_rules", {})}
        old: Values = {**rules, **recorded["identity"]}
        model = BertConfig.preset(self.positionals["bert_model"], old["bert_config"]["vocab_size"])
        new = {"bert_config": model.to_dict(), **self.identity(phase)}
        if self.end_reason(phase) == CONVERGED and self._has_successor(phase):
            for name in ("eval_steps", "early_stopping"):
                old[name], new[name] = recorded.get("settings", {}).get(name), self.environment.value_of(name)
        old_manifest = data_facts.get("manifest_sha256")
        if data and old_manifest and old_manifest != data.manifest_sha256:
            old["data"] = f"{data_facts['input_files']}, manifest {old_manifest[:16]}"
            new["data"] = f"{data.folder / 'training'}, manifest {data.manifest_sha256[:16]}"
        return describe_differences({name: old.get(name) for name in new}, new)

    def _choose_data(self) -> list[PreparedData]:
        """The data of each chosen phase. Raises `UserError` if there are none, or EVAL_STEPS lacks held-out data."""
        value_of = self.environment.value_of
        data = choose_data(
            self.environment.data_dir,
            value_of("dataset"),
            [(phase.max_seq_length, phase.max_predictions_per_seq) for phase in self.chosen_phases],
            value_of("data_format") or ("tokens" if value_of("no_next_sentence") else None),
            self.is_cased,
        )
        show(f"dataset = {data[0].dataset}", f"data_format = {data[0].data_format}")
        if without := [prepared for prepared in data if not prepared.has_test]:
            if value_of("eval_steps"):
                raise UserError(
                    f"EVAL_STEPS={self.environment.environ['EVAL_STEPS']}: {without[0].folder} has no test split; "
                    "leave EVAL_STEPS and EARLY_STOPPING out, or make data with one (bertPrep.py --action sharding "
                    "--fraction_test_set=0.1, and the stages after it)"
                )
            show("evaluation = none, because the dataset has no test split")
        return data

    def _run(self, phase: Phase, data: PreparedData) -> Run:
        flags = {**self._flags(phase), "input_files": data.folder / "training"}
        flags.update({"eval_files": data.folder / "test"} if data.has_test else {"max_eval_steps": None})
        return Run(phase.title, "pretraining", flags, reason_to_skip=lambda: self.reason_to_skip(phase))

    def _flags(self, phase: Phase) -> Values:
        is_auto, run_folder = phase.train_batch_size == AUTO, self.run_folder(phase)
        return {
            **self.positionals.flags(),
            "model_dir": run_folder,
            "train_batch_size": phase.train_batch_size,
            "num_accumulation_steps": None if is_auto else phase.num_accumulation_steps,
            "global_batch_size": phase.global_batch_size if is_auto else None,
            "learning_rate": phase.learning_rate,
            "optimizer_type": self.optimizer_type,
            "num_train_steps": phase.num_updates,
            "warmup_steps": phase.warmup_steps,
            "max_seq_length": phase.max_seq_length,
            "max_predictions_per_seq": phase.max_predictions_per_seq,
            "init_checkpoint": self._start_of(phase),
            "dllog_path": run_folder / "dllogger.json",
        }

    def _start_of(self, phase: Phase) -> str | None:
        """The checkpoint that the phase's weights start from; None: random weights."""
        return str(self.folder / phase.starts_after) if phase.starts_after else self.environment.init_checkpoint

    def results(self, runs: Sequence[Run]) -> Sequence[str]:
        """Writes the report of all phases that have begun."""
        from bert_tf.report import write_page

        begun = [run for run in map(self.run_folder, self.phases) if (run / "metrics.jsonl").exists()]
        write_page(begun, self.folder / REPORT, title=f"Pre-training, {self.folder.name}")
        return [
            f"curves: {short_path(self.folder / REPORT)}",
            *(f"checkpoints: {short_path(run / 'checkpoints')}" for run in begun),
        ]


def make_phase(
    positionals: Positionals, name: str, lengths: tuple[int, int], *, num_updates: int, argument_suffix: str = ""
) -> Phase:
    """A phase from a launcher's arguments, those whose names end with `argument_suffix`."""

    def value(setting: str) -> Any:
        return positionals[positionals.name_of(setting, argument_suffix)]

    return Phase(
        name,
        *lengths,
        value("train_batch_size"),
        value("num_accumulation_steps"),
        num_ranks=positionals[positionals.name_of("num_ranks")],
        learning_rate=value("learning_rate"),
        warmup_steps=value("warmup_steps"),
        num_updates=num_updates,
        argument_suffix=argument_suffix,
    )


def make_phases(positionals: Positionals) -> list[Phase]:
    """Both phases of the recipe, with nine tenths and one tenth of the sequences."""
    steps = positionals["train_steps"]
    first = make_phase(positionals, "phase_1", LENGTHS[0], num_updates=steps * 9 // 10, argument_suffix="_phase1")
    second = make_phase(positionals, "phase_2", LENGTHS[1], num_updates=steps // 10, argument_suffix="_phase2")
    num_updates = second.num_updates * first.global_batch_size // second.global_batch_size
    return [first, dataclasses.replace(second, num_updates=num_updates, starts_after=first.name)]


def make_lamb(positionals: Positionals, environment: LaunchEnvironment, only_phase: str | None = None) -> Pretraining:
    """Both phases, or only one."""
    return Pretraining("pretraining_lamb", positionals, environment, "lamb", make_phases(positionals), only_phase)


def make_adam(positionals: Positionals, environment: LaunchEnvironment) -> Pretraining:
    """NVIDIA's recipe of 1,144,000 updates in one phase."""
    lengths = positionals["seq_len"], positionals["max_pred_per_seq"]
    phase = make_phase(positionals, "pretraining", lengths, num_updates=positionals["train_steps"])
    return Pretraining("pretraining_adam", positionals, environment, "adamw", [phase])


def lock_folder(folder: Path) -> FileLock:
    """Locks the folder of results, or of a run. Raises `UserError` if another process holds the lock."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / ".lock")
    except LockedError as error:
        raise UserError(
            f"{short_path(folder)} is in use by {error}; name another RESULTS_DIR, or wait for what uses it"
        ) from None


def check_same_plan(folder: Path, plan: Mapping[str, Any], not_begun: Sequence[Phase]) -> None:
    """Raises `UserError` if the run in `folder` was started with another plan.

    Arguments of phases that have not begun may change, as may values that a plan of an older version does not have.
    """
    file = folder / PLAN
    if not file.exists():
        return
    earlier = read_json_object(file, "delete it, and the run goes on if its settings are the same")
    endings = tuple(phase.argument_suffix for phase in not_begun if phase.argument_suffix)
    fixed = [name for name in plan if name in earlier and not name.endswith(endings)]
    differences = describe_differences({name: earlier[name] for name in fixed}, {name: plan[name] for name in fixed})
    _check_same(folder, "arguments", differences)


def _check_same(folder: Path, subject: str, differences: str) -> None:
    """Raises `UserError` if there are differences between the run in `folder` and what would be run now."""
    if differences:
        raise UserError(
            f"{folder} holds a run with other {subject} ({differences}); use the same again, another RESULTS_DIR, or "
            "CONTINUE_WITH_CHANGES=1"
        )
