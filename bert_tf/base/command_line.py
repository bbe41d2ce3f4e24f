"""The command line of a ``python -m bert_tf...`` or a script, and the parsing of its numbers and switches.

Numbers are parsed more strictly than by Python's own conversions. Needs only the standard library, as the doctor does.
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from bert_tf.base.errors import UserError

_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_HOME = re.compile(r"(?:^|(?<=,)|(?<=, ))~[^/,]*")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_switch(text: str) -> bool:
    """Parses a switch. Raises ValueError for anything but 1, 0, true, false, yes and no, in any case."""
    if text.lower() not in _SWITCHES:
        raise ValueError("must be 1, 0, true, false, yes or no")
    return _SWITCHES[text.lower()]


def parse_whole(text: str) -> int:
    """Parses a whole number of up to 18 digits. Raises ValueError for others such as 1_0, which `int` reads as 10."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("must be a whole number, of 18 digits at most")
    return int(text)


def parse_number(text: str) -> float:
    """Parses a decimal number. Raises ValueError for others, for inf and nan, and for numbers too large for a float."""
    if not _NUMBER.fullmatch(text) or math.isinf(float(text)):
        raise ValueError("must be a number")
    return float(text)


def suggestion(word: str, known_words: Iterable[str]) -> str:
    """The end of an error message that suggests the known word most similar to `word`; empty if none is similar."""
    similar = difflib.get_close_matches(word, list(known_words), 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def expand_home(text: str) -> str:
    """Expands ~ and ~user in a path or in comma-separated paths; a shell does not expand --name=~/x."""
    return _HOME.sub(lambda home: os.path.expanduser(home[0]), text)


def _path(text: str) -> Path:
    if not text:  # which `Path` would take for the current folder
        raise argparse.ArgumentTypeError("must not be empty")
    return Path(expand_home(text))


class CommandParser(argparse.ArgumentParser):
    """For ``python -m bert_tf...``: reports a mistake as a `UserError` of one line, without the usage.

    Options cannot be abbreviated, and the description keeps its line breaks.
    """

    def __init__(self, program: str, description: str | None):
        super().__init__(
            program, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        self.register("type", Path, _path)
        self._negative_number_matcher = _NUMBER  # else argparse takes -1e-05 for an option

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument (--\w+): '(.*)' must be ", r"\1=\2: must be ", message, flags=re.DOTALL)
        raise UserError(f"{message}; see --help")


def add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --vocab_file, --do_lower_case and --strip_accents, for programs whose default is the model's tokenizer."""
    parser.add_argument(
        "--vocab_file",
        type=expand_home,
        help="the model's vocab.txt, tokenizer.json or SentencePiece .model, if it is not beside the weights",
    )
    for name, effect in (("do_lower_case", "lower-case the text"), ("strip_accents", "take accents off letters")):
        parser.add_argument(
            f"--{name}",
            type=int,
            choices=(0, 1),
            help=f"1: {effect}; default: as the model says, else as its vocabulary suggests",
        )
