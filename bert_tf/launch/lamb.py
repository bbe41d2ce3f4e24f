"""The two-phase LAMB recipe: fifteen arguments."""

from __future__ import annotations

from collections.abc import Sequence

from bert_tf.base.errors import UserError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Typed, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import LENGTHS, Phase, Recipe, check_warmup, rows_in
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
    steps, num_ranks = typed["train_steps"], typed["num_gpus"]
    sizes = [typed["train_batch_size_phase1"], typed["train_batch_size_phase2"]]
    accumulations = [typed["num_accumulation_phase1"], typed["num_accumulation_steps_phase2"]]
    first, second = (rows_in(size) * accumulation for size, accumulation in zip(sizes, accumulations))
    phases = [
        Phase(
            f"phase_{number}",
            *LENGTHS[number - 1],
            sizes[number - 1],
            accumulations[number - 1],
            num_ranks,
            typed[f"learning_rate_phase{number}"],
            typed[f"warmup_steps_phase{number}"],
            num_updates,
            starts_after,
        )
        for number, num_updates, starts_after in (
            (1, steps * 9 // 10, None),
            (2, steps // 10 * first // second, "phase_1"),
        )
    ]
    for number, phase in enumerate(phases, 1):
        if only not in (None, phase.name):
            continue
        if phase.num_updates < 1:
            raise UserError(
                f"{typed.title('train_steps')} is {steps}: phase {number} would have no update (phase 1 "
                "has train_steps*9//10, phase 2 train_steps//10 times the ratio of the global batches, "
                f"here {first * num_ranks} to {second * num_ranks}); raise train_steps"
            )
        check_warmup(phase, typed.title(f"warmup_steps_phase{number}"))
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
