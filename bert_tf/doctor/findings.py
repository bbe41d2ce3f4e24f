"""What an examination yields, and how it runs other programs: with a time limit, and saying why one failed."""

from __future__ import annotations

import contextlib
import json
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
    """What a check of `launch.checks` refuses; `missing`: the state of what may be otherwise for the real run."""
    try:
        check(*arguments)
    except UserError as error:
        return [Finding(missing if isinstance(error, MissingError) else PROBLEM, str(error))]
    return []


class Answer(NamedTuple):
    """How a program ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else f"code {self.code}")
        return f"{signal.Signals(-self.code).name}: {said}" if self.code < 0 else said

    def json(self) -> Any:
        """The JSON value in its last line. Raises ValueError if it failed."""
        if self.code != 0:
            raise ValueError(self.reason)
        return json.loads(self.out.strip().rpartition("\n")[2])


def ask(command: Sequence[str], limit_secs: float, **variables: str) -> Answer:
    """Runs a program for at most `limit_secs`, with `variables` in its environment."""
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{os.environ.get('PYTHONPATH', '')}", **variables}
    pipe = subprocess.PIPE
    # In its own session, so that its children can be killed with it.
    child = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, errors="replace", env=environment, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=limit_secs)
        return Answer(child.returncode, out, err)
    except subprocess.TimeoutExpired:
        return Answer(1, "", "it did not end in time")
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL) if child.poll() is None else ():
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(child.pid, number)
                child.wait(5)


def ask_python(code: str) -> Answer:
    """Runs Python code that may import TensorFlow, which takes minutes on a slow network drive."""
    return ask([sys.executable, "-c", code], 300.0, TF_CPP_MIN_LOG_LEVEL="0")
