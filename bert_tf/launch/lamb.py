"""The two-phase LAMB recipe: fifteen arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bert_tf.base.errors import UserError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Values, arguments, parse_arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import Phase, Recipe, check_warmup, rows_in
from bert_tf.settings.programs import PRETRAINING

ARGUMENTS = arguments(
    """
    train_batch_size_phase1=64 train_batch_size_phase2=8 eval_batch_size=8
    learning_rate_phase1=7.5e-4 learning_rate_phase2=5e-4 precision=fp16 use_xla=true num_gpus=8
    warmup_steps_phase1=2000 warmup_steps_phase2=200 train_steps=7820 save_checkpoint_steps=100
    num_accumulation_phase1=128 num_accumulation_steps_phase2=512 bert_model=large
    """,
    *PRETRAINING,
)


POSITIONS = {argument.name: f"{argument.name} (position {number})" for number, argument in enumerate(ARGUMENTS, 1)}


def make_phases(values: Values, only: str | None = None, names: Mapping[str, str] = POSITIONS) -> list[Phase]:
    """Both phases of the recipe, with nine tenths and one tenth of the sequences.

    The number of updates and the warm-up are checked in both phases, or only in the one named `only`; `names` gives
    the arguments' names for error messages.

    Raises:
      UserError: a phase has no update, or its warm-up is longer than the phase.
    """
    steps, num_ranks = values["train_steps"], values["num_gpus"]
    accumulations = (values["num_accumulation_phase1"], values["num_accumulation_steps_phase2"])
    first_batch, second_batch = (
        rows_in(values[f"train_batch_size_phase{number}"]) * accumulation
        for number, accumulation in enumerate(accumulations, 1)
    )
    phases = [
        Phase(
            f"phase_{number}",
            *lengths,
            values[f"train_batch_size_phase{number}"],
            accumulations[number - 1],
            num_ranks,
            values[f"learning_rate_phase{number}"],
            values[f"warmup_steps_phase{number}"],
            num_updates,
            starts_after,
        )
        for number, lengths, num_updates, starts_after in (
            (1, (128, 20), steps * 9 // 10, None),
            (2, (512, 80), steps // 10 * first_batch // second_batch, "phase_1"),
        )
    ]
    for number, phase in enumerate(phases, 1):
        if only not in (None, phase.name):
            continue
        if phase.num_updates < 1:
            raise UserError(
                f"{names['train_steps']} is {steps}: phase {number} would have no update (phase 1 "
                "has train_steps*9//10, phase 2 train_steps//10 times the ratio of the global batches, "
                f"here {first_batch * num_ranks} to {second_batch * num_ranks}); raise train_steps"
            )
        check_warmup(phase, names[f"warmup_steps_phase{number}"])
    return phases


def parse(typed: Sequence[str]) -> Values:
    """The fifteen values; raises `UserError` as `parse_arguments` does."""
    # The article that people copy from omits num_gpus in its list of names.
    if len(typed) == len(ARGUMENTS) - 1 and typed[-1] in PRESETS:
        position = 1 + [argument.name for argument in ARGUMENTS].index("num_gpus")
        raise UserError(
            f"num_gpus seems to be missing (position {position}): these are {len(typed)} values and the "
            f"last is a model's name, which belongs at position {len(ARGUMENTS)}"
        )
    return parse_arguments(ARGUMENTS, typed)


def launch(typed: Sequence[str], environment: LaunchEnvironment, only: str | None = None) -> int:
    """Runs both phases, or only one; returns the ranks' exit code."""
    values = parse(typed)
    return Recipe("lamb", "lamb", ARGUMENTS, typed, values, make_phases(values, only)).launch(environment, only)
