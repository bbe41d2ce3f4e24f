"""The command line of a ``python -m bert_tf...`` or a script; it needs no package, as the doctor does not."""

from __future__ import annotations

import argparse
from typing import NoReturn

from bert_tf.base.errors import UserError


class CommandParser(argparse.ArgumentParser):
    """For ``python -m bert_tf...``: raises a mistake as `UserError`, in one line without the usage.

    Options cannot be abbreviated, and the description keeps its lines.
    """

    def __init__(self, program: str, description: str | None):
        super().__init__(
            program, description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see --help")
