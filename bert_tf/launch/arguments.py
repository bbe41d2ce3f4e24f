"""The launchers' positional arguments: each stands for a setting, whose declaration says which values it takes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence
from typing import Any

from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import Setting, find_setting

Values = dict[str, Any]

# Names of arguments in NVIDIA's scripts, without a phase's number at the end -> the settings that they stand for.
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
        """The only texts that this argument takes; empty if it takes any text or number."""
        return ("true", "false") if self.setting.kind == "bool" else tuple(map(str, self.setting.choices))

    @property
    def rule(self) -> str:
        if self.setting.word:
            return f"{self.setting.rule} (the accumulation argument then counts a rank's sequences)"
        return f"one of {', '.join(self.words)}" if self.words else self.setting.rule

    def parse(self, text: str) -> Any:
        """The value that a text stands for. Raises ValueError if the text does not follow the rule."""
        if not text or (self.words and text not in self.words):
            raise ValueError
        return self.setting.parse(text)


def arguments(declared: str, *classes: type, **special: Setting) -> tuple[Argument, ...]:
    """The arguments that `declared` lists in order, as ``name=default ...``.

    Args:
      classes: the classes that declare the settings.
      special: by argument, declarations that are not in the classes, or have another range there.
    """
    result = []
    for pair in declared.split():
        name, _, default = pair.partition("=")
        base_name = _PHASE.sub("", name)
        setting = special.get(name) or find_setting(_SETTING_OF.get(base_name, base_name), *classes)
        result.append(Argument(name, default, setting))
    return tuple(result)


@dataclasses.dataclass(frozen=True)
class Positionals:
    """A launcher's arguments: the texts that a user typed for the first ones, and the values of all of them.

    Raises:
      UserError: there are too many, or one has the wrong type or is out of range.
    """

    arguments: Sequence[Argument]
    texts: Sequence[str]
    values: Values = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        arguments, texts = self.arguments, self.texts
        names = [argument.name for argument in arguments]
        # The article that people copy from omits num_gpus in its list of names.
        if "num_gpus" in names and len(texts) == len(arguments) - 1 and texts[-1] in arguments[-1].words:
            raise UserError(
                f"num_gpus seems to be missing (position {1 + names.index('num_gpus')}): these are {len(texts)} "
                f"values, and the last is a model's name, of position {len(arguments)}"
            )
        if len(texts) > len(arguments):
            raise UserError(
                f"{len(texts)} arguments, but there are {len(arguments)}, besides the variables (docs/settings.md): "
                f"{' '.join(names)}; the surplus is from {texts[len(arguments)]!r} on"
            )
        for argument, text in itertools.zip_longest(arguments, texts):
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
        """The name of the argument that stands for a setting and ends with `phase`; "" if there is none."""
        for argument in self.arguments:
            if argument.setting.name == setting and argument.name.endswith(phase):
                return argument.name
        return ""

    def title(self, name: str) -> str:
        """The argument's name and position, for messages."""
        return f"{name} (position {1 + [argument.name for argument in self.arguments].index(name)})"

    def describe(self) -> list[str]:
        """A line for each argument, with the text that was typed or the default."""
        values = [*self.texts, *(f"{argument.default} (default)" for argument in self.arguments[len(self.texts) :])]
        return [f"{argument.name} = {text}" for argument, text in zip(self.arguments, values)]

    def flags(self) -> dict[str, Any]:
        """The program's flags that the arguments stand for, except those of single phases and the number of ranks."""
        return {
            argument.setting.name: self[argument.name]
            for argument in self.arguments
            if argument.setting.is_flag and not _PHASE.search(argument.name)
        }
