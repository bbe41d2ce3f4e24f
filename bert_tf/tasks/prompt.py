"""What is typed at a prompt, or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bert_tf.base.errors import UserError


def typed_lines(prompt: str) -> Iterator[str]:
    """Lines from stdin, up to an empty line or the end. A terminal shows the prompt; a pipe needs none."""
    try:
        while True:
            if sys.stdin.isatty():
                print(prompt, end="", flush=True)
            if not (line := sys.stdin.readline().strip()):
                return
            yield line
    except UnicodeDecodeError as error:
        raise UserError(f"what was typed is not {error.encoding.upper()}; type or convert it to that") from None
