"""The two-phase LAMB recipe: fifteen arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Typed, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import LENGTHS, Phase, Recipe, check_warmup, make_phase
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


def make_phases(typed: Typed, only: str | None = None) -> list[Phase]:
    """Both phases of the recipe, with nine tenths and one tenth of the sequences.

    The number of updates and the warm-up are checked in both phases, or only in the one named `only`.

    Raises:
      UserError: a phase has no update, or its warm-up is longer than the phase.
    """
    steps = typed["train_steps"]
    first, second = (
        make_phase(typed, f"phase_{number}", LENGTHS[number - 1], num_updates, f"_phase{number}")
        for number, num_updates in ((1, steps * 9 // 10), (2, steps // 10))
    )
    num_updates = second.num_updates * first.global_batch_size // second.global_batch_size
    phases = [first, dataclasses.replace(second, num_updates=num_updates, starts_after=first.name)]
    for phase in phases if only is None else [phase for phase in phases if phase.name == only]:
        if phase.num_updates < 1:
            raise UserError(
                f"{typed.title('train_steps')} is {steps}: {phase.title} would have no update (phase 1 has "
                "train_steps*9//10, phase 2 train_steps//10 times the ratio of the global batches, here "
                f"{first.global_batch_size} to {second.global_batch_size}); raise train_steps"
            )
        check_warmup(phase, typed.title(typed.name_of("warmup_steps", phase.name[-1])))
    return phases


def parse(texts: Sequence[str]) -> Typed:
    """The fifteen values; raises `UserError` as `Typed` does."""
    # The article that people copy from omits num_gpus in its list of names.
    if len(texts) == len(ARGUMENTS) - 1 and texts[-1] in PRESETS:
        position = 1 + [argument.name for argument in ARGUMENTS].index("num_gpus")
        raise UserError(
            f"num_gpus seems to be missing (position {position}): these are {len(texts)} values and the "
            f"last is a model's name, which belongs at position {len(ARGUMENTS)}"
        )
    return Typed(ARGUMENTS, texts)


def launch(texts: Sequence[str], environment: LaunchEnvironment, only: str | None = None) -> int:
    """Runs both phases, or only one; returns the ranks' exit code."""
    typed = parse(texts)
    return Recipe("pretraining_lamb", typed, environment, "lamb", make_phases(typed, only)).launch(only)
