"""The two-phase LAMB recipe: fifteen arguments, two runs of run_pretraining.py."""
from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from bert_tf.config import PRECISIONS, PRESETS
from bert_tf.errors import UserError
from bert_tf.launch import ranks
from bert_tf.launch.arguments import Argument, Values, describe_arguments, one_of, parse_arguments, positive, whole
from bert_tf.launch.job import (
    CHECKOUT,
    Surroundings,
    check_tensorflow,
    end_dry_run,
    program_command,
    run_program,
    show,
    shown,
)
from bert_tf.launch.prepared_data import Prepared, choose_prepared

ARGUMENTS = (
    Argument("train_batch_size_phase1", "64", whole(1)),
    Argument("train_batch_size_phase2", "8", whole(1)),
    Argument("eval_batch_size", "8", whole(1)),
    Argument("learning_rate_phase1", "7.5e-4", positive),
    Argument("learning_rate_phase2", "5e-4", positive),
    Argument("precision", "fp16", one_of(*PRECISIONS)),
    Argument("use_xla", "true", one_of("true", "false")),
    Argument("num_gpus", "8", whole(1)),
    Argument("warmup_steps_phase1", "2000", whole(0)),
    Argument("warmup_steps_phase2", "200", whole(0)),
    Argument("train_steps", "7820", whole(1)),
    Argument("save_checkpoint_steps", "100", whole(1)),
    Argument("num_accumulation_phase1", "128", whole(1)),
    Argument("num_accumulation_steps_phase2", "512", whole(1)),
    Argument("bert_model", "large", one_of(*PRESETS)),
)


@dataclasses.dataclass(frozen=True)
class Phase:
    """One phase of the LAMB recipe; batch size and rate are per rank."""

    number: int
    max_seq_length: int
    max_predictions_per_seq: int
    train_batch_size: int
    num_accumulation_steps: int
    num_ranks: int
    learning_rate: float
    warmup_steps: int
    num_updates: int

    @property
    def global_batch_size(self) -> int:
        return self.train_batch_size * self.num_accumulation_steps * self.num_ranks

    @property
    def num_sequences(self) -> int:
        return self.global_batch_size * self.num_updates

    def describe(self) -> List[str]:
        lines = {"global_batch_size": self.global_batch_size,
                 "effective_learning_rate": f"{self.learning_rate * self.num_ranks:g}",
                 "updates": self.num_updates, "sequences": self.num_sequences,
                 "max_seq_length": self.max_seq_length, "max_predictions_per_seq": self.max_predictions_per_seq}
        return [f"{name}_phase{self.number} = {value}" for name, value in lines.items()]


def pretraining_phases(values: Values) -> List[Phase]:
    """Both phases of the recipe, nine tenths and one tenth of the sequences' updates.

    Raises:
      UserError: a phase has no update, or a warm-up that is longer than it.
    """
    first_batch = values["train_batch_size_phase1"] * values["num_accumulation_phase1"]
    second_batch = values["train_batch_size_phase2"] * values["num_accumulation_steps_phase2"]
    steps = values["train_steps"]
    num_ranks = values["num_gpus"]
    phases = [
        Phase(1, 128, 20, values["train_batch_size_phase1"], values["num_accumulation_phase1"], num_ranks,
              values["learning_rate_phase1"], values["warmup_steps_phase1"], steps * 9 // 10),
        Phase(2, 512, 80, values["train_batch_size_phase2"], values["num_accumulation_steps_phase2"], num_ranks,
              values["learning_rate_phase2"], values["warmup_steps_phase2"],
              steps // 10 * first_batch // second_batch),
    ]
    for phase in phases:
        if phase.num_updates < 1:
            raise UserError(f"train_steps (position 11) is {steps}: phase {phase.number} would have no update (phase 1 "
                            "has train_steps*9//10, phase 2 train_steps//10 times the ratio of the global batches, "
                            f"here {first_batch * num_ranks} to {second_batch * num_ranks}); raise train_steps")
        if phase.warmup_steps > phase.num_updates:
            raise UserError(f"warmup_steps_phase{phase.number} (position {8 + phase.number}) is {phase.warmup_steps}: "
                            f"must be at most the phase's {phase.num_updates} updates")
    return phases


def pretraining_folder(values: Values, phases: Sequence[Phase], surroundings: Surroundings) -> Path:
    name = (f"tf_bert_pretraining_lamb_{values['bert_model']}_{values['precision']}"
            f"_gbs1{phases[0].global_batch_size}_gbs2{phases[1].global_batch_size}")
    return surroundings.path("RESULTS_DIR", CHECKOUT / "results" / name)


def check_same_plan(folder: Path, plan: Mapping[str, Any], may_change: bool) -> None:
    """Compares with the plan of the run in `folder`, if there is one.

    Raises:
      UserError: it was started with other values; names each difference.
    """
    file = folder / "plan.json"
    if may_change or not file.exists():
        return
    try:
        earlier = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{file} is damaged; delete it, and the run goes on if its settings are the same") from None
    differences = [f"{name}: {earlier.get(name)!r} there, {plan.get(name)!r} now"
                   for name in {**earlier, **plan} if earlier.get(name) != plan.get(name)]
    if differences:
        raise UserError(f"{folder} holds a run with other arguments ({'; '.join(differences)}); use the same again, "
                        "another RESULTS_DIR, or CONTINUE_WITH_CHANGES=1 to go on with the new ones")


def write_plan(folder: Path, plan: Mapping[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / ".plan.json.tmp"
        temporary.write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
        os.replace(temporary, folder / "plan.json")
    except OSError as error:
        raise UserError(f"{folder} cannot be written to ({error.strerror}); set RESULTS_DIR to another "
                        "folder") from None


def is_finished(phase: Phase, run_folder: Path) -> bool:
    """Whether the phase has been evaluated after its last update."""
    try:
        lines = (run_folder / "eval_results.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return f"global_step = {phase.num_updates}" in lines


def pretraining_command(values: Values, phase: Phase, data: Prepared, folder: Path, may_change: bool) -> List[str]:
    run_folder = folder / f"phase_{phase.number}"
    flags: Dict[str, Any] = {
        "bert_model": values["bert_model"], "input_files": data.training, "eval_files": data.test,
        "model_dir": run_folder, "train_batch_size": phase.train_batch_size,
        "eval_batch_size": values["eval_batch_size"], "learning_rate": phase.learning_rate, "optimizer_type": "lamb",
        "num_train_steps": phase.num_updates, "warmup_steps": phase.warmup_steps,
        "num_accumulation_steps": phase.num_accumulation_steps,
        "save_checkpoint_steps": values["save_checkpoint_steps"], "max_seq_length": phase.max_seq_length,
        "max_predictions_per_seq": phase.max_predictions_per_seq, "precision": values["precision"],
        "enable_xla": values["use_xla"], "dllog_path": run_folder / "dllogger.json"}
    if phase.number == 2:
        flags["init_checkpoint"] = folder / "phase_1"
    return program_command("run_pretraining.py", flags, may_change)


def parse(typed: Sequence[str]) -> Values:
    """The fifteen values; raises `UserError` as `parse_arguments` does."""
    # The article that people copy from leaves num_gpus out of its list of names.
    if len(typed) == len(ARGUMENTS) - 1 and typed[-1] in PRESETS:
        position = 1 + [argument.name for argument in ARGUMENTS].index("num_gpus")
        raise UserError(f"num_gpus seems to be missing (position {position}): these are {len(typed)} values and the "
                        f"last is a model's name, which belongs at position {len(ARGUMENTS)}")
    return parse_arguments(ARGUMENTS, typed)


def launch(typed: Sequence[str], surroundings: Surroundings, only_phase: Optional[int] = None) -> int:
    """Both phases, or one of them; returns the ranks' exit code."""
    values = parse(typed)
    phases = pretraining_phases(values)
    folder = pretraining_folder(values, phases, surroundings)
    num_ranks = values["num_gpus"]
    show(describe_arguments(ARGUMENTS, typed))
    show([line for phase in phases for line in phase.describe()])
    show([f"sequences_in_all = {sum(phase.num_sequences for phase in phases)}",
          f"device = {surroundings.describe_device(num_ranks)}", f"results_dir = {shown(folder)}"])
    surroundings.check_num_gpus(num_ranks)
    wanted = [phase for phase in phases if only_phase in (None, phase.number)]

    def prepare():
        dataset = surroundings.environ.get("DATASET") or None
        data = choose_prepared(surroundings.data_dir, dataset, [
            (phase.max_seq_length, phase.max_predictions_per_seq) for phase in wanted])
        launcher = ranks.choose_launcher(num_ranks, surroundings.environ)
        show([f"dataset = {data[0].dataset}", f"launcher = {launcher}"])
        plan = {**values, "dataset": data[0].dataset}
        check_same_plan(folder, plan, surroundings.may_change)
        return data, launcher, plan

    if surroundings.is_dry_run:
        return end_dry_run(prepare)
    check_tensorflow()
    data, launcher, plan = prepare()
    if only_phase == 2 and not is_finished(phases[0], folder / "phase_1"):
        raise UserError(f"phase 2 starts from the end of phase 1, which {shown(folder / 'phase_1')} has not reached; "
                        "run scripts/run_pretraining_lamb_phase1.sh with the same arguments first")
    write_plan(folder, plan)
    for phase, records in zip(wanted, data):
        run_folder = folder / f"phase_{phase.number}"
        if is_finished(phase, run_folder):
            show([f"phase {phase.number}: finished already, {shown(run_folder)}"])
            continue
        command = pretraining_command(values, phase, records, folder, surroundings.may_change)
        code = run_program(f"phase {phase.number}", command, num_ranks, launcher, surroundings, run_folder / "logs")
        if code:
            return code
    write_joint_report(folder, [folder / f"phase_{phase.number}" for phase in phases])
    return 0


def launch_phase1(typed: Sequence[str], surroundings: Surroundings) -> int:
    return launch(typed, surroundings, only_phase=1)


def launch_phase2(typed: Sequence[str], surroundings: Surroundings) -> int:
    return launch(typed, surroundings, only_phase=2)


def write_joint_report(folder: Path, run_folders: Sequence[Path]) -> None:
    from bert_tf.report import write_report

    there = [run for run in run_folders if (run / "metrics.jsonl").exists()]
    write_report(there, folder / "report.html", title=f"Pre-training, {folder.name}")
    show([f"curves: {shown(folder / 'report.html')}", *(f"checkpoints: {shown(run / 'checkpoints')}" for run in there)])
