"""The command lines of the programs, made from the declarations of their settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bert_tf.base.command_line import CommandParser, suggestion
from bert_tf.base.errors import UserError
from bert_tf.settings.declaration import Setting, argument_type, settings_of

# Flags of NVIDIA's programs -> what to do here.
_FOREIGN_FLAGS = {
    "--amp": "it is called --precision=fp16 here",
    "--horovod": "it is called --use_horovod here",
    "--use_xla": "it is called --enable_xla here",
    "--output_dir": "it is called --model_dir here",
    "--num_steps_per_epoch": "it is called --num_train_steps here",
    "--save_checkpoints_steps": "it is called --save_checkpoint_steps here",
    "--use_fp16": "it is --precision=fp16 here; choose another --precision instead",
    "--masking": "records are masked when they are made; training masks token files anew in each epoch: "
    "--action create_token_files",
}
_ALIASES = dict.fromkeys(("--use_fp16", "--use_fp16=true"), "--precision=fp16")


def add_option(parser: argparse.ArgumentParser, option: Setting) -> None:
    """Adds ``--name=value``, and for a switch ``--name`` and ``--noname``."""
    is_switch = option.kind == "bool"
    bare = True if is_switch else option.bare
    rule = f" ({option.rule})" if option.kind in ("int", "float") else ""
    default = "" if option.default is None else f" Default: {option.default}."
    parser.add_argument(
        f"--{option.name}",
        type=argument_type(option),
        help=f"{option.help}{rule}{default}".replace("%", "%%"),
        metavar="|".join(map(str, option.choices)) or option.name.upper(),
        **({} if bare is None else {"nargs": "?", "const": bare}),  # type: ignore[arg-type]
    )
    if is_switch:
        parser.add_argument(
            f"--no{option.name}", action="store_const", const=False, dest=option.name, help=argparse.SUPPRESS
        )


def parse_options(
    program: str, description: str | None, options: Iterable[Setting], arguments: Sequence[str]
) -> dict[str, Any]:
    """The values that the arguments give, by option. Raises `UserError` if an argument is invalid or unknown."""
    parser = CommandParser(program, description)
    parser.usage = f"{program} [--option=value ...]"
    parser.argument_default = argparse.SUPPRESS  # so that only options that are given have a value
    names = []
    for option in options:
        add_option(parser, option)
        names.append(f"--{option.name}")
    for argument in arguments:
        if argument.endswith("=--"):  # argparse would take -- as the end of the options
            parser.error(f"{argument}: -- is not a value")
    values, unknown = parser.parse_known_args([_ALIASES.get(argument, argument) for argument in arguments])
    if unknown:
        word = unknown[0].partition("=")[0]
        if word in _FOREIGN_FLAGS:
            parser.error(f"{word}: {_FOREIGN_FLAGS[word]}")
        parser.error(f"unknown argument {word}{suggestion(word, names)}")
    return vars(values)


def parse_flags(argv: Sequence[str], description: str | None, *classes: type) -> SimpleNamespace:
    """The flags that the classes declare, by name, with the values that `argv` gives or their defaults.

    `typed`: the names of those that `argv` gives.
    """
    declared = [each for each in settings_of(*classes) if each.is_flag]
    defaults = {each.name: None if each.is_required else each.default for each in declared}
    values = parse_options(f"run_{Path(argv[0]).name}", description, declared, argv[1:])  # the script's name
    return SimpleNamespace(**{**defaults, **values}, typed=frozenset(values))


def require_flags(flags: SimpleNamespace, *classes: type) -> None:
    """Raises `UserError` if a flag has no value that the classes require."""
    for each in settings_of(*classes):
        if each.is_required and not getattr(flags, each.name):
            raise UserError(f"--{each.name} is required: {each.help}")
