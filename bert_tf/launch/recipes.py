"""The recipes of pre-training, LAMB in two phases and Adam in one, with the arguments of NVIDIA's scripts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.bert_config import PRESETS
from bert_tf.launch.arguments import Typed, arguments
from bert_tf.launch.environment import LaunchEnvironment
from bert_tf.launch.pretraining import LENGTHS, Phase, Recipe
from bert_tf.settings.programs import PRETRAINING

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


def make_phase(typed: Typed, name: str, lengths: tuple[int, int], *, num_updates: int, ending: str = "") -> Phase:
    """The phase that was typed; `ending`: that of the names of its arguments."""

    def value(setting: str) -> Any:
        return typed[typed.name_of(setting, ending)]

    sizes = value("train_batch_size"), value("num_accumulation_steps"), typed[typed.name_of("num_ranks")]
    return Phase(name, *lengths, *sizes, value("learning_rate"), value("warmup_steps"), num_updates)


def check_warmup(phase: Phase, argument: str) -> None:
    """Raises `UserError` if the warm-up is longer than its phase; `argument` names it in the message."""
    if phase.warmup_steps > phase.num_updates:
        raise UserError(f"{argument} is {phase.warmup_steps}: must be at most the phase's {phase.num_updates} updates")


def make_phases(typed: Typed, only: str | None = None) -> list[Phase]:
    """Both phases of the recipe, with nine tenths and one tenth of the sequences.

    The number of updates and the warm-up are checked in both phases, or only in the one named `only`.

    Raises:
      UserError: a phase has no update, or its warm-up is longer than the phase.
    """
    steps = typed["train_steps"]
    first, second = (
        make_phase(typed, f"phase_{number}", LENGTHS[number - 1], num_updates=num_updates, ending=f"_phase{number}")
        for number, num_updates in ((1, steps * 9 // 10), (2, steps // 10))
    )
    num_updates = second.num_updates * first.global_batch_size // second.global_batch_size
    phases = [first, dataclasses.replace(second, num_updates=num_updates, starts_after=first.name)]
    for phase in phases if only is None else [phase for phase in phases if phase.name == only]:
        if phase.num_updates < 1:
            rule = "phase 1 has train_steps*9//10, phase 2 train_steps//10 times the ratio of the global batches"
            typed_steps = f"{typed.title('train_steps')} is {steps}"
            raise UserError(f"{typed_steps}: {phase.title} would have no update ({rule}); raise train_steps")
        check_warmup(phase, typed.title(typed.name_of("warmup_steps", phase.name[-1])))
    return phases


def parse(texts: Sequence[str]) -> Typed:
    """The fifteen values; raises `UserError` as `Typed` does."""
    # The article that people copy from omits num_gpus in its list of names.
    if len(texts) == len(LAMB) - 1 and texts[-1] in PRESETS:
        position = 1 + [argument.name for argument in LAMB].index("num_gpus")
        said = f"these are {len(texts)} values, and the last is a model's name, of position {len(LAMB)}"
        raise UserError(f"num_gpus seems to be missing (position {position}): {said}")
    return Typed(LAMB, texts)


def launch_lamb(texts: Sequence[str], environment: LaunchEnvironment, only: str | None = None) -> int:
    """Runs both phases, or only one; returns the ranks' exit code."""
    typed = parse(texts)
    return Recipe("pretraining_lamb", typed, environment, "lamb", make_phases(typed, only)).launch(only)


def only_phase(name: str, lengths: tuple[int, int], typed: Typed) -> Phase:
    """The phase of a recipe with one. Raises `UserError` if its warm-up is longer."""
    phase = make_phase(typed, name, lengths, num_updates=typed["train_steps"])
    check_warmup(phase, typed.title("warmup_steps"))
    return phase


def launch_adam(texts: Sequence[str], environment: LaunchEnvironment) -> int:
    """Runs the one phase, NVIDIA's recipe of 1,144,000 updates; returns the ranks' exit code."""
    typed = Typed(ADAM, texts)
    phase = only_phase("pretraining", (typed["seq_len"], typed["max_pred_per_seq"]), typed)
    return Recipe("pretraining_adam", typed, environment, "adamw", [phase]).launch()
