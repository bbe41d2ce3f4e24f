"""Reads lines that are typed at a prompt, or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bert_tf.base.errors import UserError


def typed_lines(prompt: str, *, are_last: bool = False) -> Iterator[str]:
    """Lines from stdin, up to an empty line or the end. A terminal shows the prompt; a pipe needs none.

    If they `are_last` (nothing else is read after them), a pipe's empty lines only separate its paragraphs, and are
    skipped.
    """
    try:
        while True:
            is_terminal = sys.stdin.isatty()
            if is_terminal:
                print(prompt, end="", flush=True)
            if not (line := sys.stdin.readline()):
                return
            if text := line.strip():
                yield text
            elif is_terminal or not are_last:
                return
    except UnicodeDecodeError as error:
        raise UserError(f"what was typed is not {error.encoding.upper()}; type or convert it to that") from None
