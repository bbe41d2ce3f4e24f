"""The flags of the training programs, made from the declarations of their settings."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from bert_tf.base.errors import UserError, exit_on_user_error
from bert_tf.settings.declaration import Setting, settings_of

# Flags of NVIDIA's TF1 and TF2 programs, and what they are called here.
_RENAMED = {
    "amp": "--precision=fp16",
    "horovod": "--use_horovod",
    "use_xla": "--enable_xla",
    "output_dir": "--model_dir",
    "num_steps_per_epoch": "--num_train_steps",
    "save_checkpoints_steps": "--save_checkpoint_steps",
}
_ALIASES = {"use_fp16": "--precision=fp16"}
_HELP = {"--help", "-help", "-h", "--helpfull", "--helpshort", "-?"}


class _Parser(flags.ArgumentParser):
    """Parses a flag's text by the rule of its setting."""

    def __init__(self, declared: Setting):
        self._declared = declared

    def parse(self, argument: Any) -> Any:
        if not isinstance(argument, str):  # a default
            return argument
        try:
            return self._declared.parse(argument)
        except ValueError:
            raise ValueError(f"must be {self._declared.rule}") from None

    def flag_type(self) -> str:
        return self._declared.kind


def define_flags(*classes: type, flag_values: flags.FlagValues = flags.FLAGS) -> None:
    for each in settings_of(*classes):
        default = None if each.is_required else each.default
        if each.is_flag and each.kind == "bool":
            flags.DEFINE_bool(each.name, default, each.help, flag_values)
        elif each.is_flag:
            flags.DEFINE(_Parser(each), each.name, default, each.help, flag_values)


def run_program(main: Any, about: str | None, *classes: type) -> None:
    """Runs `main`, which gets what `parse_flags` returns; --help shows `about`, and the flags of the classes."""
    if not _HELP & set(sys.argv[1:]):
        app.run(main, flags_parser=parse_flags)
        return
    print(about)
    for each in sorted(settings_of(*classes), key=lambda each: each.name):
        if each.is_flag:
            default = flags.FLAGS[each.name].default
            rule = "" if each.kind in ("str", "bool") and not each.choices else f" ({each.rule})"
            print(f"\n--{each.name}{rule}" + ("" if default is None else f"; default: {default}"))
            print(textwrap.fill(each.help, 100, initial_indent="    ", subsequent_indent="    "))


def require_flags(*classes: type) -> None:
    """Raises `UserError` if a flag has no value that the classes require."""
    for each in settings_of(*classes):
        if each.is_required and not flags.FLAGS[each.name].value:
            raise UserError(f"--{each.name} is required: {each.help}")


@exit_on_user_error
def parse_flags(argv: Sequence[str]) -> list[str]:
    """Sets FLAGS, and returns the program's name, in a list.

    Raises `UserError` for any mistake and for arguments that are not flags; for a flag of NVIDIA's programs it names
    the flag to use here.
    """
    arguments: list[str] = [argv[0]]
    for argument in argv[1:]:
        name, equals, value = argument.lstrip("-").partition("=") if argument.startswith("-") else ("", "", "")
        if name in _RENAMED and name not in flags.FLAGS:
            raise UserError(f"--{name} is called {_RENAMED[name]} here")
        if name in _ALIASES and equals and value.lower() not in ("true", "1"):
            raise UserError(f"--{name}={value}: --{name} is {_ALIASES[name]} here; choose another --precision instead")
        arguments.append(_ALIASES.get(name, argument))
    try:
        left = flags.FLAGS(arguments)
    except flags.IllegalFlagValueError as error:
        # absl shows some errors as the pair of a sentence and the value.
        message = re.sub(r"\('(.*)', .*\)$", r"\1", str(error).splitlines()[0])
        raise UserError(message.replace("flag ", "", 1)) from None
    except flags.Error as error:
        raise UserError(f"{str(error).splitlines()[0]}; see --help") from None
    except RecursionError:  # absl compares an unknown name with known ones, recursing letter by letter
        raise UserError("a flag's name is too long to be one; see --help") from None
    if len(left) > 1:
        raise UserError(f"unexpected argument {left[1]!r}; every setting is a flag, see --help")
    return left
