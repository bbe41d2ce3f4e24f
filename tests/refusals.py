"""What a test says of a mistake: the call is refused with these words."""

from __future__ import annotations

import subprocess
from typing import Any, Callable

import pytest

from bert_tf.base.errors import UserError


def refused(message: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Fails unless the call raises a `UserError` of one line, in which the pattern `message` is found."""
    with pytest.raises(UserError, match=message) as raised:
        call(*arguments, **named)
    text = str(raised.value)
    del raised  # whose traceback holds this frame, and with it a run folder's lock
    assert "\n" not in text


def refusal(ended: subprocess.CompletedProcess, code: int = 2) -> str:
    """The one line with which a program has refused its start, having printed nothing else."""
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1), (ended.stdout, ended.stderr)
    assert ended.stderr.startswith("error: ")
    return ended.stderr
