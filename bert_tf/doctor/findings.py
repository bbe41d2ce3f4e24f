"""What an examination yields, and how it runs other programs: with a time limit, and with the reason of a failure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import MissingError, UserError, as_user_error
from bert_tf.base.files import CHECKOUT
from bert_tf.base.machine.software import check_temporary_folder

# States of a finding: a training works; it works, but not as well as it could; it does not work.
OK, WARNING, PROBLEM = "OK", "warning", "problem"


class Finding(NamedTuple):
    """One result of an examination."""

    state: str
    message: str  # if the state is not OK, also what to do


Findings = Iterator[Finding]


def judge(is_fine: bool, fact: str, remedy: str, state: str = PROBLEM) -> Finding:
    """OK with the fact alone if `is_fine`, else `state` with the fact and what to do."""
    return Finding(OK, fact) if is_fine else Finding(state, f"{fact}; {remedy}")


def problems(check: Callable[..., object], *arguments: Any) -> list[Finding]:
    """The finding if a check, such as those of `base.machine`, raises an error; else none.

    For something missing it is only a warning, because the machine of the real run may have it.
    """
    try:
        check(*arguments)
    except UserError as error:
        return [Finding(WARNING if isinstance(error, MissingError) else PROBLEM, str(error))]
    return []


def with_error_as_finding(findings: Findings) -> Findings:
    """The findings of an examination; an error that is the user's to mend becomes the last finding."""
    try:
        yield from findings
    except Exception as raised:
        if (error := as_user_error(raised)) is None:
            raise
        yield Finding(PROBLEM, str(error))


def ask(command: Sequence[str], limit_secs: float, fault: str, remedy: str, **variables: str) -> tuple[str, str]:
    """What a program prints to stdout and to stderr, with `variables` in its environment.

    Raises:
      UserError: it ended with another code than 0, or not within `limit_secs`; the message is `fault`, why, `remedy`.
    """
    pipe, path = subprocess.PIPE, f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}"
    variables = {**os.environ, "PYTHONPATH": path, **variables}
    # In its own session, so that its children can be killed with it.
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, errors="replace", env=variables, start_new_session=True)
    try:
        out, err = child.communicate(timeout=limit_secs)
    except subprocess.TimeoutExpired:
        raise UserError(f"{fault} (it did not end in time): {remedy}") from None
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if child.poll() is None else ():
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(5)
    if code := child.returncode:
        ended = signal.Signals(-code).name if code < 0 else f"code {code}"
        lines = [line.strip() for line in f"no word\n{out}\n{err}".splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "Error" in line), lines[-1])
        raise UserError(f"{fault} ({ended}, {reason}): {remedy}")
    return out, err


def ask_python(code: str, remedy: str) -> tuple[str, str]:
    """What Python code prints, as `ask`; it may import TensorFlow, which takes minutes on a slow network drive."""
    check_temporary_folder()
    return ask([sys.executable, "-c", code], 300.0, "it cannot be imported", remedy, TF_CPP_MIN_LOG_LEVEL="0")
