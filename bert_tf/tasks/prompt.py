"""What is typed at a prompt, or piped in."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from bert_tf.base.errors import UserError
from bert_tf.ranks.workers import Workers


def check_one_process(workers: Workers) -> None:
    """Raises `UserError` if there are several: one prompt is read by one."""
    if workers.size > 1:
        raise UserError("--mode=interactive answers in one process; omit --use_horovod")


def show_prompt(text: str) -> None:
    """Shows a prompt in a terminal; a pipe needs none."""
    if sys.stdin.isatty():
        print(text, end="", flush=True)


def typed_lines(prompt: str) -> Iterator[str]:
    """Lines from stdin, up to an empty line or the end."""
    show_prompt(prompt)
    try:
        while line := sys.stdin.readline().strip():
            yield line
            show_prompt(prompt)
    except UnicodeDecodeError as error:
        raise UserError(f"what was typed is not {error.encoding.upper()}; type or convert it to that") from None
