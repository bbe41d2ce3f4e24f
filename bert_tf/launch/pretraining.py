"""What the pre-training recipes share: their phases, each of which is a run of run_pretraining.py, in one folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import check_output, read_json_object
from bert_tf.launch.arguments import Values
from bert_tf.launch.call import Call, check_model, config_file, find_checkpoint
from bert_tf.launch.environment import as_typed, show, shown
from bert_tf.launch.prepared_data import PreparedData, choose_data
from bert_tf.run.evaluations import find_best
from bert_tf.run.run_folder import (
    CONFIG,
    REPORT,
    describe_differences,
    find_checkpoints,
    find_damage,
    is_report,
    write_whole,
)
from bert_tf.settings.programs import PRETRAINING
from bert_tf.settings.training import AUTO, MAX_GLOBAL_BATCH, check_unpacked

LENGTHS = ((128, 20), (512, 80))  # of both phases: tokens, and predicted ones
PLAN, WAY_OUT = "plan.json", "set RESULTS_DIR to another folder"


@dataclasses.dataclass(frozen=True)
class Phase:
    """A run at one sequence length; batch size and learning rate are per rank.

    A batch size of "auto" counts as 1, because the accumulation argument then counts single rows.
    """

    name: str  # also that of its run folder
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int | str
    num_accumulation_steps: int
    num_ranks: int
    learning_rate: float
    warmup_steps: int
    num_updates: int
    starts_after: str | None = None  # the phase whose weights it starts from

    def __post_init__(self) -> None:
        if self.global_batch_size > MAX_GLOBAL_BATCH:
            size = f"{self.global_batch_size:,} sequences in an update (batch size x accumulation x num_gpus)"
            raise UserError(f"{self.title}: {size}, at most {MAX_GLOBAL_BATCH:,} are possible; make one smaller")

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")

    @property
    def global_batch_size(self) -> int:
        num_rows = 1 if isinstance(self.train_batch_size, str) else self.train_batch_size
        return num_rows * self.num_accumulation_steps * self.num_ranks

    @property
    def num_sequences(self) -> int:
        return self.global_batch_size * self.num_updates

    def describe(self, suffix: str) -> list[str]:
        lines = {
            "global_batch_size": self.global_batch_size,
            "effective_learning_rate": f"{self.learning_rate * self.num_ranks:g}",
            "updates": self.num_updates,
            "sequences": self.num_sequences,
            "max_seq_length": self.max_seq_length,
            "max_predictions_per_seq": self.max_predictions_per_seq,
        }
        return [f"{name}{suffix} = {value}" for name, value in lines.items()]


@dataclasses.dataclass(frozen=True)
class Recipe(Call):
    """A call of a recipe, and the phases that follow from it, in order."""

    optimizer_type: str  # run_pretraining.py's flag
    phases: Sequence[Phase]
    is_cased: bool | None = None  # the vocabulary of the data; None: any

    @property
    def size(self) -> str:
        numbers = range(1, len(self.phases) + 1) if len(self.phases) > 1 else [""]
        return "_".join(f"gbs{number}{phase.global_batch_size}" for number, phase in zip(numbers, self.phases))

    def run_folder(self, phase: Phase) -> Path:
        return self.folder / phase.name

    def is_finished(self, phase: Phase, *, and_evaluated: bool) -> bool:
        """Whether there is an undamaged checkpoint after the phase's last update, and, if asked, its evaluation."""
        run_folder = self.run_folder(phase)
        checkpoints = find_checkpoints(run_folder / "checkpoints")
        newest, results = max(checkpoints, default=0), run_folder / "eval_results.txt"
        if newest < phase.num_updates or find_damage(checkpoints[newest]) is not None:
            return False
        evaluated = find_best(run_folder / "checkpoints") or phase.num_updates
        lines = results.read_text(encoding="utf-8").splitlines() if results.is_file() else []
        return not and_evaluated or f"global_step = {evaluated}" in lines

    def launch(self, only: str | None = None) -> int:
        """Runs all phases, or only the one named `only`; returns the ranks' exit code."""
        folder, environment = self.folder, self.environment
        chosen = [phase for phase in self.phases if only in (None, phase.name)]
        self.show_plan(self._describe(chosen[0]))
        for phase in chosen:
            check_unpacked(phase.train_batch_size, environment.given("packing"))
        prepared = environment.prepare(self.num_ranks, folder, lambda: self._prepare(chosen))
        if prepared is None:
            return 0
        data, plan = prepared
        write_whole(folder / PLAN, json.dumps(plan, indent=2) + "\n", WAY_OUT)
        for phase, records in zip(chosen, data):
            if self.is_finished(phase, and_evaluated=records.has_test):
                show([f"{phase.title}: finished already, {shown(self.run_folder(phase))}"])
                continue
            if code := self.train(phase.title, "pretraining", PRETRAINING, self._flags(phase, records)):
                return code
        self._write_report()
        return 0

    def _prepare(self, chosen: Sequence[Phase]) -> tuple[list[PreparedData], dict[str, Any]]:
        """The data of the `chosen` phases, and the plan, which must not change during the run.

        Raises:
          UserError: something is missing, or the run in the folder was started with other values.
        """
        folder, environment = self.folder, self.environment
        unbegun = [phase for phase in self.phases if not (self.run_folder(phase) / CONFIG).exists()]
        if len(unbegun) == len(self.phases):
            check_output(folder / PLAN, str(folder / PLAN), lambda beginning: b'"bert_model"' in beginning)
            check_output(folder / REPORT, str(folder / REPORT), is_report)
        if environment.init_checkpoint:
            checkpoint = find_checkpoint(environment.init_checkpoint, f"INIT_CHECKPOINT={environment.init_checkpoint}")
            if config_file(checkpoint).is_file():
                check_model(checkpoint, self.typed)
        data = choose_data(
            environment.data_dir,
            environment.given("dataset"),
            [(phase.max_seq_length, phase.max_predictions_per_seq) for phase in chosen],
            environment.given("data_format") or ("tokens" if environment.given("no_next_sentence") else None),
            self.is_cased,
        )
        data_format = data[0].data_format
        show([f"dataset = {data[0].dataset}", f"data_format = {data_format}"])
        if not all(records.has_test for records in data):
            show(["evaluation = none, because the dataset has no test split"])
        plan = {
            **{name: as_typed(value) for name, value in self.typed.values.items()},
            "dataset": data[0].dataset,
            "init_checkpoint": environment.init_checkpoint,
            **{name: environment.given(name) or None for name in ("packing", "no_next_sentence")},
            "data_format": data_format,
        }
        if not environment.given("continue_with_changes") and len(unbegun) < len(self.phases):
            check_same_plan(folder, plan, unbegun)
        earlier = next((phase for phase in self.phases if phase.name == chosen[0].starts_after), None)
        if earlier and not self.is_finished(earlier, and_evaluated=False):
            start = f"{chosen[0].title} starts from the end of {earlier.title}"
            raise MissingError(f"{start}, which {shown(self.run_folder(earlier))} has not reached; run it first")
        return data, plan

    def _describe(self, first: Phase) -> list[str]:
        """What follows from the arguments."""
        start = self._start_of(first)
        lines = []
        for phase in self.phases:
            lines += phase.describe("_" + phase.name.replace("_", "") if len(self.phases) > 1 else "")
        return [
            *lines,
            f"sequences_in_all = {sum(phase.num_sequences for phase in self.phases)}",
            f"init_checkpoint = {shown(Path(start)) if start else 'none (random weights)'}",
            f"packing = {as_typed(bool(self.environment.given('packing')))}",
        ]

    def _flags(self, phase: Phase, data: PreparedData) -> Values:
        finds_size, run_folder = phase.train_batch_size == AUTO, self.run_folder(phase)
        flags = {
            **self.typed.flags(),
            "input_files": data.folder / "training",
            "eval_files": data.folder / "test" if data.has_test else None,
            "model_dir": run_folder,
            "train_batch_size": phase.train_batch_size,
            "num_accumulation_steps": None if finds_size else phase.num_accumulation_steps,
            "global_batch_size": phase.global_batch_size if finds_size else None,
            "learning_rate": phase.learning_rate,
            "optimizer_type": self.optimizer_type,
            "num_train_steps": phase.num_updates,
            "warmup_steps": phase.warmup_steps,
            "max_seq_length": phase.max_seq_length,
            "max_predictions_per_seq": phase.max_predictions_per_seq,
            "init_checkpoint": self._start_of(phase),
            "dllog_path": run_folder / "dllogger.json",
        }
        return flags if data.has_test else {**flags, "max_eval_steps": None}

    def _start_of(self, phase: Phase) -> str | None:
        """The checkpoint that the phase's weights start from; None: random weights."""
        return str(self.folder / phase.starts_after) if phase.starts_after else self.environment.init_checkpoint

    def _write_report(self) -> None:
        from bert_tf.report import write_page

        begun = [run for run in map(self.run_folder, self.phases) if (run / "metrics.jsonl").exists()]
        write_page(begun, self.folder / REPORT, title=f"Pre-training, {self.folder.name}")
        checkpoints = [f"checkpoints: {shown(run / 'checkpoints')}" for run in begun]
        show([f"curves: {shown(self.folder / REPORT)}", *checkpoints])


def check_same_plan(folder: Path, plan: Mapping[str, Any], unbegun: Sequence[Phase]) -> None:
    """Raises `UserError` if the run in `folder` was started with another plan.

    The arguments of phases that have not begun may change.
    """
    file = folder / PLAN
    if not file.exists():
        return
    earlier = read_json_object(file, "delete it, and the run goes on if its settings are the same")
    endings = tuple(phase.name.replace("_", "") for phase in unbegun)
    fixed = [name for name in {**earlier, **plan} if not name.endswith(endings)]
    if differences := describe_differences(*({name: values.get(name) for name in fixed} for values in (earlier, plan))):
        ways = "use the same again, another RESULTS_DIR, or CONTINUE_WITH_CHANGES=1"
        raise UserError(f"{folder} holds a run with other arguments ({differences}); {ways}")
