"""Positional arguments: each stands for a setting, whose declaration says what may be typed."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import Setting, find_setting

Values = dict[str, Any]

# Names of arguments in NVIDIA's scripts -> the settings that they stand for. A phase's number at the end is left out.
_SETTING_OF = {
    "batch_size": "predict_batch_size",
    "batch_size_per_gpu": "predict_batch_size",
    "checkpoint": "init_checkpoint",
    "epochs": "num_train_epochs",
    "learning_rate_per_gpu": "learning_rate",
    "max_pred_per_seq": "max_predictions_per_seq",
    "num_accumulation": "num_accumulation_steps",
    "num_gpu": "num_ranks",
    "num_gpus": "num_ranks",
    "seq_len": "max_seq_length",
    "seq_length": "max_seq_length",
    "train_steps": "num_train_steps",
    "use_xla": "enable_xla",
}
_PHASE = re.compile(r"_phase\d$")


@dataclasses.dataclass(frozen=True)
class Argument:
    """One positional argument, with its default as it would be typed."""

    name: str
    default: str
    setting: Setting

    @property
    def words(self) -> Sequence[str]:
        """The texts that only this argument takes; empty if it takes any text or number."""
        return ("true", "false") if self.setting.kind == "bool" else tuple(map(str, self.setting.choices))

    @property
    def rule(self) -> str:
        if self.setting.word:
            return f"{self.setting.rule} (the accumulation argument then counts a rank's sequences)"
        return f"one of {', '.join(self.words)}" if self.words else self.setting.rule

    def parse(self, text: str) -> Any:
        """The value of a text. Raises ValueError if the text does not follow the rule."""
        if not text or (self.words and text not in self.words):
            raise ValueError
        return self.setting.parse(text)


def arguments(declared: str, *classes: type, **special: Setting) -> tuple[Argument, ...]:
    """The arguments ``name=default ...``, in order.

    Args:
      classes: those that declare the settings.
      special: declarations of arguments that are no setting of these, or have another range, by name.
    """
    made = []
    for pair in declared.split():
        name, _, default = pair.partition("=")
        short = _PHASE.sub("", name)
        setting = special.get(name) or find_setting(_SETTING_OF.get(short, short), *classes)
        made.append(Argument(name, default, setting))
    return tuple(made)


@dataclasses.dataclass(frozen=True)
class Typed:
    """A launcher's arguments: the texts that were typed for the first ones, and the values of all.

    Raises:
      UserError: there are too many, or one has the wrong type or is out of range.
    """

    arguments: Sequence[Argument]
    texts: Sequence[str]
    values: Values = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        known, texts = self.arguments, self.texts
        names = [each.name for each in known]
        # The article that people copy from omits num_gpus in its list of names.
        if "num_gpus" in names and len(texts) == len(known) - 1 and texts[-1] in known[-1].words:
            raise UserError(
                f"num_gpus seems to be missing (position {1 + names.index('num_gpus')}): these are {len(texts)} "
                f"values, and the last is a model's name, of position {len(known)}"
            )
        if len(texts) > len(known):
            raise UserError(
                f"{len(texts)} arguments, but there are {len(known)}, besides the variables (docs/settings.md): "
                f"{' '.join(names)}; the surplus is from {texts[len(known)]!r} on"
            )
        for argument, text in itertools.zip_longest(known, texts):
            text = argument.default if text is None else text
            try:
                self.values[argument.name] = argument.parse(text)
            except ValueError:
                # NVIDIA's scripts for other frameworks have the same arguments in other orders.
                raise UserError(
                    f"{self.title(argument.name)} is {text!r}: must be {argument.rule}; --help shows the order"
                ) from None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def name_of(self, setting: str, phase: str = "") -> str:
        """The name of the argument that stands for a setting, with this ending; "" if none does."""
        names = (each.name for each in self.arguments if each.setting.name == setting and each.name.endswith(phase))
        return next(names, "")

    def title(self, name: str) -> str:
        """What messages call an argument."""
        return f"{name} (position {1 + [argument.name for argument in self.arguments].index(name)})"

    def describe(self) -> list[str]:
        """A line for each argument, with the text that was typed or the default."""
        values = [*self.texts, *(f"{argument.default} (default)" for argument in self.arguments[len(self.texts) :])]
        return [f"{argument.name} = {text}" for argument, text in zip(self.arguments, values)]

    def flags(self) -> dict[str, Any]:
        """The program's flags that the arguments stand for; without those of single phases, and of the ranks."""
        return {
            argument.setting.name: self[argument.name]
            for argument in self.arguments
            if argument.setting.is_flag and not _PHASE.search(argument.name)
        }
