"""What an examination yields, and how it runs other programs: with a time limit, and saying why one failed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

from bert_tf.base.errors import MissingError, UserError
from bert_tf.base.files import CHECKOUT

# States of a finding: a training works; it works, but not as well as it could; it does not work.
OK, WARNING, PROBLEM = "OK", "warning", "problem"


class Finding(NamedTuple):
    """What an examination has found."""

    state: str
    message: str  # if the state is not OK, also what to do


Findings = Iterator[Finding]


def judge(is_fine: bool, fine: str, fault: str, state: str = PROBLEM) -> Finding:
    """OK with one text, or `state` with the other, which ends with what to do."""
    return Finding(OK, fine) if is_fine else Finding(state, fault)


def problems(check: Callable[..., object], *arguments: Any, missing: str = PROBLEM) -> list[Finding]:
    """What a check refuses, as `base.machine`'s do; `missing`: the state of what may be otherwise for the real run."""
    try:
        check(*arguments)
    except UserError as error:
        return [Finding(missing if isinstance(error, MissingError) else PROBLEM, str(error))]
    return []


def whole(findings: Findings) -> Findings:
    """The findings of an examination, and as the last one the `UserError` that has ended it."""
    try:
        yield from findings
    except UserError as error:
        yield Finding(PROBLEM, str(error))


def ask(command: Sequence[str], limit_secs: float, fault: str, remedy: str, **variables: str) -> tuple[str, str]:
    """What a program prints to its two outputs, with `variables` in its environment.

    Raises:
      UserError: it ended with another code than 0, or not within `limit_secs`; the message is `fault`, why, `remedy`.
    """
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}", **variables}
    pipe = subprocess.PIPE
    # In its own session, so that its children can be killed with it.
    child = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, errors="replace", env=environment, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=limit_secs)
        said = ""
    except subprocess.TimeoutExpired:
        said = "it did not end in time"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if child.poll() is None else ():
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(5)
    if not said and (code := child.returncode):
        lines = [line.strip() for line in f"{out}\n{err}".splitlines() if line.strip()] or [f"code {code}"]
        said = next((line for line in reversed(lines) if "Error" in line), lines[-1])
        said = f"{signal.Signals(-code).name}: {said}" if code < 0 else said
    if said:
        raise UserError(f"{fault} ({said}): {remedy}")
    return out, err


def ask_python(code: str, remedy: str) -> tuple[str, str]:
    """What Python code prints that may import TensorFlow, which takes minutes on a slow network drive; see `ask`."""
    return ask([sys.executable, "-c", code], 300.0, "it cannot be imported", remedy, TF_CPP_MIN_LOG_LEVEL="0")
